"""What of a program is executed: surely, perhaps, or never in this job."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from jobsubmit.check.program.modules import Function, Module, Program, origin
from jobsubmit.check.program.values import Values

_ENDS = ("sys.exit", "exit", "quit", "os._exit")
_DEEPEST_CLASS = 20
_CALLS_WHAT_IT_GETS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")


class Reach(IntEnum):
    """Say how sure it is that something is executed."""

    NEVER = 0
    PERHAPS = 1
    SURELY = 2


class _Flow(IntEnum):
    """Say how a block of statements ends."""

    ON = 0
    PERHAPS_OUT = 1
    OUT = 2


@dataclass(frozen=True)
class Reached:
    """Tell what is executed; `names` are those of functions that were given as arguments and called."""

    program: Program
    marks: Mapping[ast.AST, Reach]
    names: Mapping[ast.Call, str]

    def of(self, node: ast.AST, module: Module) -> Reach:
        """Return how sure it is that a node is executed."""
        for inner in (node, *module.above(node)):
            if inner in self.marks:
                return self.marks[inner]
            if isinstance(inner, (ast.stmt, ast.Call)):
                return Reach.NEVER
        return Reach.NEVER

    def calls(self, least: Reach = Reach.PERHAPS) -> Iterator[tuple[Module, ast.Call, str]]:
        """Yield the calls that are reached, with their whole names."""
        for module, call, name in self.program.calls:
            if self.of(call, module) >= least:
                yield module, call, name


def explore(program: Program, values: Values) -> Reached:
    """Follow a program from its first line, through the functions that it calls."""
    walk = _Walk(program, values)
    walk.module(program.boot, Reach.SURELY)
    return Reached(program, walk.marks, walk.names)


@dataclass
class _Walk:
    program: Program
    values: Values
    marks: dict[ast.AST, Reach] = field(default_factory=dict)
    entered: dict[ast.AST, Reach] = field(default_factory=dict)
    owners: dict[ast.AST, tuple[Module, ast.ClassDef]] = field(default_factory=dict)
    given: dict[tuple[ast.AST, str], str] = field(default_factory=dict)
    names: dict[ast.Call, str] = field(default_factory=dict)

    def module(self, module: Module, level: Reach) -> None:
        if self._is_new(module.tree, level):
            self._block(module.tree.body, module, level)

    def _is_new(self, node: ast.AST, level: Reach) -> bool:
        if self.entered.get(node, Reach.NEVER) >= level:
            return False
        self.entered[node] = level
        return True

    def _mark(self, node: ast.AST, level: Reach) -> None:
        self.marks[node] = max(level, self.marks.get(node, Reach.NEVER))

    def _function(self, function: Function, module: Module, level: Reach) -> None:
        if level and self._is_new(function, level):
            self._block(function.body, module, level)

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
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    self._expression(decorator, module, level)
                self.marks[node] = Reach.NEVER
                return _Flow.ON
            case ast.ClassDef():
                self.marks[node] = Reach.NEVER
                return _Flow.ON
            case ast.If():
                return self._if(node, module, level)
            case ast.For() | ast.AsyncFor():
                self._expression(node.iter, module, level)
                self._block(node.body, module, level)
                self._block(node.orelse, module, level)
                return _Flow.PERHAPS_OUT if _returns(node) else _Flow.ON
            case ast.While():
                self._expression(node.test, module, level)
                self._block(node.body, module, level)
                return _Flow.PERHAPS_OUT if _returns(node) else _Flow.ON
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr, module, level)
                hides = any("suppress" in ast.unparse(item.context_expr) for item in node.items)
                return self._block(node.body, module, min(level, Reach.PERHAPS) if hides else level)
            case ast.Try():
                return self._try(node, module, level)
            case ast.Match():
                for case in node.cases:
                    self._block(case.body, module, min(level, Reach.PERHAPS))
                return _Flow.PERHAPS_OUT if _returns(node) else _Flow.ON
            case ast.Import() | ast.ImportFrom():
                self._import(node, module, level)
                return _Flow.ON
        for child in ast.iter_child_nodes(node):
            self._expression(child, module, level)
        if isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
            return _Flow.OUT
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and self._ends(node.value, module):
            return _Flow.OUT
        return _Flow.ON

    def _ends(self, call: ast.Call, module: Module) -> bool:
        """Tell whether a call does not return: an exit, or a function that surely comes to one."""
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
        if truth is not None:
            return self._block(node.body if truth else node.orelse, module, level)
        flows = [self._block(body, module, min(level, Reach.PERHAPS)) for body in (node.body, node.orelse)]
        if min(flows) is _Flow.OUT:
            return _Flow.OUT
        # A check that raises is taken to pass; one that returns is a way of its own.
        leaves = any(_returns(statement) or _exits(statement) for statement in (*node.body, *node.orelse))
        return _Flow.PERHAPS_OUT if leaves else _Flow.ON

    def _try(self, node: ast.Try, module: Module, level: Reach) -> _Flow:
        is_caught = any(not _passes_on(handler) for handler in node.handlers)
        flow = self._block(node.body, module, min(level, Reach.PERHAPS) if is_caught else level)
        for handler in node.handlers:
            self._block(handler.body, module, min(level, Reach.PERHAPS))
        if flow is not _Flow.OUT:
            flow = max(flow, self._block(node.orelse, module, level))
        after = self._block(node.finalbody, module, level)
        if flow is _Flow.OUT and node.handlers and not all(isinstance(n, ast.Return) for n in node.body[-1:]):
            flow = _Flow.PERHAPS_OUT
        return max(flow, after)

    def _import(self, node: ast.Import | ast.ImportFrom, module: Module, level: Reach) -> None:
        bases = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = origin(node, module)
            bases = [base, *(f"{base}.{name}" for name in bases)]
        for base in bases:
            parts = base.split(".")
            for end in range(len(parts)):
                imported = self.program.modules.get(".".join(parts[: end + 1]))
                if imported is not None:
                    self.module(imported, level)

    def _expression(self, node: ast.AST, module: Module, level: Reach) -> None:
        if isinstance(node, (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)):
            level = min(level, Reach.PERHAPS)
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            self._branches(node, module, level)
            return
        if isinstance(node, ast.Call):
            self._mark(node, level)
            self._enter(node, module, level)
        for child in ast.iter_child_nodes(node):
            self._expression(child, module, level)

    def _branches(self, node: ast.IfExp | ast.BoolOp, module: Module, level: Reach) -> None:
        perhaps = min(level, Reach.PERHAPS)
        if isinstance(node, ast.BoolOp):
            first, *others = node.values
            self._expression(first, module, level)
            for other in others:
                self._expression(other, module, perhaps)
            return
        self._expression(node.test, module, level)
        truth = self.values.truth(node.test, module)
        for is_taken, branch in ((True, node.body), (False, node.orelse)):
            if truth in (None, is_taken):
                self._expression(branch, module, perhaps if truth is None else level)

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _enter(self, call: ast.Call, module: Module, level: Reach) -> None:
        name = self._name(call.func, call, module)
        self._remember_functions(name, call, module)
        self._call_by_name(name, level)
        if isinstance(call.func, ast.Attribute):
            self._call_method(call.func, module, level)
        elif isinstance(call.func, ast.Name):
            self._call_inner(call.func.id, call, module, level)
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_sure = name in _CALLS_WHAT_IT_GETS or name.endswith(".Process")
        for item in given:
            if isinstance(item, (ast.Name, ast.Attribute)):
                passed = level if is_sure else min(level, Reach.PERHAPS)
                self._call_by_name(self._name(item, call, module), passed)
                if isinstance(item, ast.Name):
                    self._call_inner(item.id, call, module, passed)
                else:
                    self._call_method(item, module, passed)

    def _name(self, node: ast.AST, call: ast.Call, module: Module) -> str:
        """Return the whole name of what is called; of a parameter, that of the function it was given."""
        if isinstance(node, ast.Name):
            for scope in module.above(call):
                if (scope, node.id) in self.given:
                    self.names[call] = self.given[scope, node.id]
                    return self.names[call]
        return self.program.name_of(node, module)

    def _remember_functions(self, name: str, call: ast.Call, module: Module) -> None:
        found = self.program.definition(name)
        if found is None or isinstance(found[1], ast.ClassDef):
            return
        own = [*found[1].args.posonlyargs, *found[1].args.args]
        by_name = dict(zip((arg.arg for arg in own), call.args, strict=False))
        by_name |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        for parameter, node in by_name.items():
            if isinstance(node, ast.Name) and self.program.definition(self._name(node, call, module)):
                self.given[found[1], parameter] = self._name(node, call, module)

    def _call_by_name(self, name: str, level: Reach) -> None:
        found = self.program.definition(name)
        if found is None:
            owner, _, method = name.rpartition(".")
            of_class = self.program.definition(owner)
            if of_class and isinstance(of_class[1], ast.ClassDef):
                self._method(of_class[0], of_class[1], method, level)
            return
        module, definition = found
        if isinstance(definition, ast.ClassDef):
            for method in ("__init__", "__post_init__", "__call__", "forward"):
                self._method(module, definition, method, level if method == "__init__" else min(level, Reach.PERHAPS))
        else:
            self._function(definition, module, level)

    def _call_inner(self, name: str, call: ast.Call, module: Module, level: Reach) -> None:
        """Enter a function that is defined inside the one that calls it."""
        for function in module.functions.get(name, ()):
            inside = next((n for n in module.above(function) if not isinstance(n, (ast.If, ast.With, ast.Try))), None)
            if isinstance(inside, (ast.FunctionDef, ast.AsyncFunctionDef)) and inside in set(module.above(call)):
                self._function(function, module, level)

    def _call_method(self, target: ast.Attribute, module: Module, level: Reach) -> None:
        if isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"):
            home, owner = self._owner(target, module)
            if owner is not None and self._method(home, owner, target.attr, level):
                return
        if isinstance(target.value, ast.Call) and isinstance(target.value.func, ast.Name):
            if target.value.func.id == "super" and (above := self._owner(target, module))[1] is not None:
                if self._inherited(*above, target.attr, level, module, target):
                    return
        owner_name = self._class_of(target.value, module)
        found = self.program.definition(owner_name) if owner_name else None
        if found and isinstance(found[1], ast.ClassDef) and self._method(found[0], found[1], target.attr, level):
            return
        for home, owner, method in self.program.methods.get(target.attr, ()):
            self.owners.setdefault(method, (home, owner))
            self._function(method, home, min(level, Reach.PERHAPS))

    def _owner(self, node: ast.AST, module: Module) -> tuple[Module, ast.ClassDef | None]:
        """Return the class that `self` is of: the one whose object is at work, not the one that is read."""
        for above in module.above(node):
            if above in self.owners:
                return self.owners[above]
            if isinstance(above, ast.ClassDef):
                return module, above
        return module, None

    def _inherited(
        self, home: Module, owner: ast.ClassDef | None, name: str, level: Reach, module: Module, node: ast.AST
    ) -> bool:
        lexical = next((n for n in module.above(node) if isinstance(n, ast.ClassDef)), owner)
        for base in lexical.bases if lexical else ():
            found = self.program.definition(self.program.name_of(base, module))
            if found and isinstance(found[1], ast.ClassDef) and owner is not None:
                if self._method(found[0], found[1], name, level, of=(home, owner)):
                    return True
        return False

    def _class_of(self, node: ast.AST, module: Module) -> str:
        """Return the name of the class that a variable holds an object of."""
        if isinstance(node, ast.Call):
            return self.program.name_of(node.func, module)
        made = module.assigned_calls.get(node.id, ()) if isinstance(node, ast.Name) else ()
        return self.program.name_of(made[0].func, module) if len(made) == 1 else ""

    def _method(
        self,
        module: Module,
        owner: ast.ClassDef,
        name: str,
        level: Reach,
        depth: int = 0,
        of: tuple[Module, ast.ClassDef] | None = None,
    ) -> bool:
        for node in owner.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                self.owners.setdefault(node, of or (module, owner))
                self._function(node, module, level)
                return True
        for base in owner.bases:
            found = self.program.definition(self.program.name_of(base, module))
            if found and isinstance(found[1], ast.ClassDef) and depth < _DEEPEST_CLASS:
                if self._method(found[0], found[1], name, level, depth + 1, of or (module, owner)):
                    return True
        return False


def _is_end(name: str) -> bool:
    return name in _ENDS or name.startswith(("os.exec", "os.abort"))


def _passes_on(handler: ast.ExceptHandler) -> bool:
    """Tell whether an error that is caught ends the program all the same."""
    if handler.type is not None and ast.unparse(handler.type) in ("KeyboardInterrupt", "SystemExit"):
        return True
    last = handler.body[-1]
    return isinstance(last, ast.Raise) or _exits(last)


def _returns(node: ast.AST) -> bool:
    """Tell whether a statement may leave its function."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return False
    return isinstance(node, ast.Return) or any(_returns(child) for child in ast.iter_child_nodes(node))


def _exits(node: ast.AST) -> bool:
    """Tell whether a statement may end the program."""
    return any(
        isinstance(inner, ast.Call) and ast.unparse(inner.func) in _ENDS and isinstance(node, ast.stmt)
        for inner in ast.walk(node)
    )
