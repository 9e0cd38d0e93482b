"""Which code of a program this job executes: surely, perhaps, or never."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from jobsubmit.check.program.calls import Callee, Callees, Reach, argument, given_for
from jobsubmit.check.program.functions import command_of
from jobsubmit.check.program.gpus import asks_for_gpus, ends_program
from jobsubmit.check.program.lookups import name_looked_up
from jobsubmit.check.program.module import EXITS, FUNCTIONS, Function, Module, imported_names, spelled, unparsed
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.registries import Registered, registered
from jobsubmit.check.program.tree import children
from jobsubmit.check.program.values import Values
from jobsubmit.check.program.variables import assigned_to, parameters, position

_CONSUME = ("ModuleList", "Sequential", "list", "tuple", "sum")
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MAKES_GROUP = re.compile(r"\b(?:init|setup|start)\w*\(")


class _Flow(IntEnum):
    """How a block of statements ends."""

    ON = 0
    PERHAPS_OUT = 1
    OUT = 2


@dataclass(frozen=True)
class Reached:
    """What is executed; `names` are those of functions that were given as arguments and called."""

    program: Program
    marks: Mapping[ast.AST, Reach]
    names: Mapping[ast.Call, str]

    def of(self, node: ast.AST, module: Module) -> Reach:
        """Return how sure it is that a node is executed."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._of(node, module)
        return found

    @cached_property
    def _known(self) -> dict[ast.AST, Reach]:
        return {}

    def _of(self, node: ast.AST, module: Module) -> Reach:
        for inner in (node, *module.above(node)):
            if inner in self.marks:
                return self.marks[inner]
            if isinstance(inner, (ast.stmt, ast.Call)):
                return Reach.NEVER
        return Reach.NEVER

    def is_sure(self, node: ast.AST, module: Module) -> bool:
        """Return whether something is surely executed."""
        return self.of(node, module) is Reach.SURELY

    def entered(self, function: Function, module: Module) -> Reach:
        """Return how sure it is that a function is called: its first statement is executed that defines nothing."""
        inner = (*FUNCTIONS, ast.ClassDef)
        return self.of(next((one for one in function.body if not isinstance(one, inner)), function.body[0]), module)

    @cached_property
    def calls(self) -> Sequence[tuple[Module, ast.Call, str]]:
        """Return the calls that are reached, with their whole names."""
        return [(module, call, name) for module, call, name in self.program.calls if self.of(call, module)]


def explore(program: Program, values: Values) -> Reached:
    """Follow a program from its first line, through the functions that it calls."""
    way = _Walk(program, values, Callees(program))
    way.run()
    return Reached(program, way.marks, way.callees.names)


@dataclass
class _Walk:
    program: Program
    values: Values
    callees: Callees
    marks: dict[ast.AST, Reach] = field(default_factory=dict)
    entered: dict[ast.AST, Reach] = field(default_factory=dict)
    waiting: list[Callee] = field(default_factory=list)

    @property
    def registered(self) -> Registered:
        """Return what of the program may be looked up by its name."""
        return registered(self.program, self.values.facts.argv)

    def run(self) -> None:
        self._module(self.program.boot, Reach.SURELY)
        while self.waiting:
            function, module, level = self.waiting.pop()
            if level and self._is_new(function, level):
                self._block(function.body, module, level)

    def _module(self, module: Module, level: Reach) -> None:
        if self._is_new(module.tree, level):
            self._block(module.tree.body, module, level)

    def _is_new(self, node: ast.AST, level: Reach) -> bool:
        if self.entered.get(node, Reach.NEVER) >= level:
            return False
        self.entered[node] = level
        return True

    def _mark(self, node: ast.AST, level: Reach) -> None:
        self.marks[node] = max(level, self.marks.get(node, Reach.NEVER))

    def _block(self, body: list[ast.stmt], module: Module, level: Reach) -> _Flow:
        flow = _Flow.ON
        for statement in body:
            flow = max(flow, self._statement(statement, module, level))
            if flow is _Flow.OUT:
                return flow
            if flow is _Flow.PERHAPS_OUT:
                level = min(level, Reach.PERHAPS)
        return flow

    def _statement(self, node: ast.stmt, module: Module, level: Reach) -> _Flow:
        self._mark(node, level)
        for mentioned in module.mentioned.get(node, ()) if level else ():
            if not self._is_of_other_command(mentioned, module):
                self.waiting += self.callees.named(mentioned, module, level)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for decorator in node.decorator_list:
                    self._expression(decorator, module, level)
                self.marks[node] = Reach.NEVER
                if self.registered.is_chosen(node):
                    self.waiting += self.callees.by_name(f"{module.name}.{node.name}", min(level, Reach.PERHAPS))
                if not isinstance(node, ast.ClassDef) and self._is_started_by_decorator(node, module):
                    self.waiting.append(Callee(node, module, level))
                if not isinstance(node, ast.ClassDef) and command_of(node):
                    self.waiting.append(Callee(node, module, min(level, self._reach_of_command(node, module))))
                return _Flow.ON
            case ast.If():
                return self._if(node, module, level)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._expression(node.test if isinstance(node, ast.While) else node.iter, module, level)
                flows = [self._block(body, module, level) for body in (node.body, node.orelse)]
                return _Flow.PERHAPS_OUT if node in module.returning and max(flows) is not _Flow.ON else _Flow.ON
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr, module, level)
                    self.waiting += self.callees.entered(item.context_expr, module, level)
                hides = any("suppress" in unparsed(item.context_expr) for item in node.items)
                return self._block(node.body, module, min(level, Reach.PERHAPS) if hides else level)
            case ast.Try():
                return self._try(node, module, level)
            case ast.Match():
                for case in node.cases:
                    self._block(case.body, module, min(level, Reach.PERHAPS))
                return _Flow.PERHAPS_OUT if node in module.returning else _Flow.ON
            case ast.Import() | ast.ImportFrom():
                for name in imported_names(node, module):
                    if imported := self.program.modules.get(name):
                        self._module(imported, level)
                return _Flow.ON
        for child in children(node):
            self._expression(child, module, level)
        if isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
            return _Flow.OUT
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and self._ends(node.value, module):
            return _Flow.OUT
        return _Flow.ON

    def _is_started_by_decorator(self, function: Function, module: Module) -> bool:
        """Return whether fastcore's `call_parse` calls a function at once: it does so in the file that is started."""
        names = [unparsed(one.func if isinstance(one, ast.Call) else one) for one in function.decorator_list]
        is_parsed = any(name.rpartition(".")[2] == "call_parse" for name in names)
        return is_parsed and module is self.program.boot and self.program.imports("fastcore")

    def _reach_of_command(self, function: Function, module: Module) -> Reach:
        """Return how sure it is that a command of a click group or typer app is called: the first word may say so."""
        commands = [name for one in module.of(ast.FunctionDef) if (name := command_of(one))]
        chosen = self.values.facts.argv[:1]
        if len(commands) == 1 or command_of(function) in chosen:
            return Reach.SURELY
        return Reach.NEVER if {*chosen} & {*commands} else Reach.PERHAPS

    def _is_of_other_command(self, mentioned: ast.expr, module: Module) -> bool:
        """Return whether a function is that of a command, and the job's first word is another one.

        It stands in a dictionary of commands, or a parser of a command gets it as a default: `set_defaults(func=run)`.
        """
        commands, chosen = module.parents.get(mentioned), self.values.facts.argv[:1]
        call = module.parents.get(commands) if isinstance(commands, ast.keyword) else None
        if isinstance(call, ast.Call):
            return self._is_default_of_other(call, module)
        if not chosen or not isinstance(commands, ast.Dict):
            return False
        names = [getattr(key, "value", None) for key in commands.keys]
        return chosen[0] in names and commands.values[names.index(chosen[0])] is not mentioned

    def _is_default_of_other(self, call: ast.Call, module: Module) -> bool:
        """Return whether a call gives a default to the parser of another command than the job's first word."""
        command, chosen = _command_of_default(call, module), self.values.facts.argv[:1]
        return bool(command and chosen) and not chosen[0].startswith("-") and chosen[0] != command

    def _ends(self, call: ast.Call, module: Module) -> bool:
        """Return whether a call does not return: an exit, or a function that surely comes to one."""
        name = self.program.name_of(call.func, module)
        if _is_end(name):
            return True
        found = self.program.definition(name)
        return found is not None and any(
            isinstance(inner, ast.Expr)
            and isinstance(inner.value, ast.Call)
            and _is_end(self.program.name_of(inner.value.func, found[0]))
            for inner in found[1].body
        )

    def _if(self, node: ast.If, module: Module, level: Reach) -> _Flow:
        self._expression(node.test, module, level)
        truth = self.values.truth(node.test, module)
        if truth is None and _asks_whether_done(node):
            truth = False
        if truth is None and _makes_group_once(node):
            truth = True
        if truth is not None:
            taken = node.body if truth else node.orelse
            flow = self._block(taken, module, level)
            # What follows a demand for GPUs is looked at as well: it fails for the same reason.
            is_demand = flow is _Flow.OUT and self.values.facts.gpus == 0 and ends_program(self.values, taken, module)
            return _Flow.ON if is_demand and asks_for_gpus(self.values, node.test, module) else flow
        flows = [self._block(body, module, min(level, Reach.PERHAPS)) for body in (node.body, node.orelse)]
        self.waiting += self._called_either_way(node, module, level)
        if min(flows) is _Flow.OUT:
            return _Flow.OUT
        # A check that raises, or ends with an error, is taken to pass; one that returns is a way of its own.
        leaves = any(
            statement in module.returning or statement in module.succeeding for statement in (*node.body, *node.orelse)
        )
        return _Flow.PERHAPS_OUT if leaves and max(flows) is not _Flow.ON else _Flow.ON

    def _called_either_way(self, node: ast.If, module: Module, level: Reach) -> Iterator[Callee]:
        """Yield the functions that both branches of a condition call, each as a statement of its own."""
        ways = [{self._name_of_statement(one, module) for one in body} for body in (node.body, node.orelse)]
        for name in sorted(set.intersection(*ways) - {""}):
            found = self.program.definition(name)
            if found is not None and isinstance(found[1], FUNCTIONS):
                yield Callee(found[1], found[0], level)

    def _name_of_statement(self, node: ast.stmt, module: Module) -> str:
        call = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
        return self.program.name_of(call.func, module) if isinstance(call, ast.Call) else ""

    def _try(self, node: ast.Try, module: Module, level: Reach) -> _Flow:
        is_caught = any(not _passes_on(handler, module) for handler in node.handlers)
        works = self.values.truth(node, module)
        flow = self._block(node.body, module, min(level, Reach.PERHAPS) if is_caught and not works else level)
        handled = [
            self._block(handler.body, module, level if works is False else min(level, Reach.PERHAPS))
            for handler in (node.handlers if not works else ())
        ]
        if flow is _Flow.ON and _Flow.OUT in handled and node in module.returning:
            flow = _Flow.PERHAPS_OUT
        if flow is not _Flow.OUT:
            flow = max(flow, self._block(node.orelse, module, level))
        after = self._block(node.finalbody, module, level)
        if flow is _Flow.OUT and node.handlers and not all(isinstance(n, ast.Return) for n in node.body[-1:]):
            flow = _Flow.PERHAPS_OUT
        return max(flow, after)

    def _expression(self, node: ast.AST, module: Module, level: Reach) -> None:
        if node not in module.with_calls and node not in self.program.with_properties:
            return
        if isinstance(node, (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)):
            level = level if _is_gone_through(node, module) else min(level, Reach.PERHAPS)
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            self._branches(node, module, level)
            return
        if isinstance(node, ast.Call):
            self._mark(node, level)
            self.waiting += () if self._is_default_of_other(node, module) else self.callees.of(node, module, level)
            self.waiting += self._called_by_text(node, module, level)
            if spelled(node.func).endswith(("import_module", "__import__")) and node.args:
                self._import_by_text(node, module, level)
            if self.program.name_of(node.func, module).endswith(".LightningCLI"):
                self._make_named_classes(level)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.waiting += self.callees.read(node, module, level)
        for child in children(node):
            self._expression(child, module, level)

    def _import_by_text(self, call: ast.Call, module: Module, level: Reach) -> None:
        """Enter the module that a call imports, or those that it may: in a loop, or for classes in a configuration."""
        perhaps = min(level, Reach.PERHAPS)
        name = self.values.of(call.args[0], module)
        if isinstance(name, str):
            names = {name: level}
            used = module.parents.get(call)
            self.waiting += self.callees.by_name(f"{name}.{getattr(used, 'attr', '')}", level)
        elif any(isinstance(above, _LOOPS) for above in module.above(call)) and (
            several := self.program.imported_by_text.get(module.name, ())
        ):
            names = dict.fromkeys(several, perhaps)
        else:
            classes = self.registered.named_classes
            self.waiting += [callee for one in classes for callee in self.callees.by_name(one, perhaps)]
            names = dict.fromkeys((one.rpartition(".")[0] for one in classes), perhaps)
        for imported, how in names.items():
            if imported in self.program.modules:
                self._module(self.program.modules[imported], how)

    def _make_named_classes(self, level: Reach) -> None:
        """Enter the classes that configurations name, with their modules: LightningCLI makes an object of each."""
        for name in self.registered.named_classes:
            if (home := self.program.modules.get(name.rpartition(".")[0])) is not None:
                self._module(home, level)
            self.waiting += self.callees.by_name(name, level)

    def _called_by_text(self, call: ast.Call, module: Module, level: Reach) -> list[Callee]:
        """Return what is called by a name that the arguments give: `nets.__dict__[args.net]()`, `create_model(…)`."""
        name = name_looked_up(self.values, call.func, module)
        if found := self.callees.by_name(name, level) if name else []:
            return found
        if isinstance(call.func, ast.Call) and spelled(call.func.func) == "getattr" and call.func.args[1:]:
            return self._methods_by_text(call.func.args[1], module, min(level, Reach.PERHAPS))
        is_of_timm = spelled(call.func).rpartition(".")[2] == "create_model"
        model = self.values.of(argument(call, "model_name", 0), module) if is_of_timm else None
        if not isinstance(model, str):
            return []
        homes = [home for home in self.program.modules.values() if _is_registered(home.definitions.get(model))]
        return [callee for home in homes for callee in self.callees.by_name(f"{home.name}.{model}", level)]

    def _methods_by_text(self, key: ast.expr, module: Module, level: Reach) -> list[Callee]:
        """Return the methods that `getattr(hook, name)()` may call: those that calls of this function name."""
        function = module.function_of(key)
        if function is None or not isinstance(key, ast.Name) or key.id not in parameters(function):
            return []
        given = (given_for(call, function, key.id) for _, call in self.program.calls_to(function, module))
        names = sorted({one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)})
        return [Callee(one[2], one[0], level) for name in names for one in self.program.methods.get(name, ())]

    def _branches(self, node: ast.IfExp | ast.BoolOp, module: Module, level: Reach) -> None:
        perhaps = min(level, Reach.PERHAPS)
        if isinstance(node, ast.BoolOp):
            decides = isinstance(node.op, ast.Or)  # what follows a value of this truth is not looked at
            for value in node.values:
                self._expression(value, module, level)
                truth = self.values.truth(value, module)
                if truth is decides:
                    return
                level = perhaps if truth is None else level
            return
        self._expression(node.test, module, level)
        truth = self.values.truth(node.test, module)
        for is_taken, branch in ((True, node.body), (False, node.orelse)):
            if truth in (None, is_taken):
                self._expression(branch, module, perhaps if truth is None else level)


def _command_of_default(call: ast.Call, module: Module) -> str:
    """Return the command whose parser gets a default: `parser = commands.add_parser("train")`; empty if it is unclear.

    A command with other names has none of its own here.
    """
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "set_defaults":
        return ""
    parser, scope = call.func.value, module.scope_of(call)
    stores = module.own_stores.get((scope, parser.id), ()) if isinstance(parser, ast.Name) else ()
    made = [assigned_to(one, module) for one in stores if position(one) < position(call)][-1:]
    match made:
        case [ast.Call(func=ast.Attribute(attr="add_parser"), args=[ast.Constant(value=str(name)), *_], keywords=more)]:
            return "" if any(one.arg in ("aliases", None) for one in more) else name
    return ""


def _is_gone_through(node: ast.expr, module: Module) -> bool:
    """Return whether an expression computes all of its items at once, as a loop does, and leaves none out."""
    generators: list[ast.comprehension] = getattr(node, "generators", [])
    is_given = isinstance(call := module.parents.get(node), ast.Call) and spelled(call.func).endswith(_CONSUME)
    is_lazy = isinstance(node, ast.GeneratorExp) and not is_given
    return bool(generators) and not is_lazy and not any(one.ifs for one in generators)


def _is_registered(node: ast.AST | None) -> bool:
    decorators = getattr(node, "decorator_list", ())
    return any(unparsed(one).rpartition(".")[2].startswith("register_model") for one in decorators)


def _asks_whether_done(node: ast.If) -> bool:
    """Return whether a branch returns where there is a process group, or a logger, already: the first call goes on."""
    returns = len(node.body) == 1 and isinstance(node.body[0], ast.Return) and not node.orelse
    is_plain = returns and not isinstance(node.test, ast.UnaryOp)
    return is_plain and unparsed(node.test).endswith(("is_initialized()", ".handlers", ".hasHandlers()"))


def _makes_group_once(node: ast.If) -> bool:
    """Return whether a branch makes the process group where there is none: `if not dist.is_initialized():`."""
    is_question = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
    asks = is_question and unparsed(node.test).endswith(".is_initialized()")
    return asks and not node.orelse and any(_MAKES_GROUP.search(unparsed(one)) for one in node.body)


def _is_end(name: str) -> bool:
    return name in EXITS or name.startswith(("os.exec", "os.abort"))


def _passes_on(handler: ast.ExceptHandler, module: Module) -> bool:
    """Return whether an error that is caught ends the program all the same."""
    if handler.type is not None and unparsed(handler.type) in ("KeyboardInterrupt", "SystemExit"):
        return True
    last = handler.body[-1]
    return isinstance(last, ast.Raise) or last in module.exiting
