"""The variables in which a program keeps what it has parsed."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from jobsubmit.check.parsers.argparse.loops import passes
from jobsubmit.check.parsers.argparse.search import Search
from jobsubmit.check.program.calls import SPAWNS, argument, given_for
from jobsubmit.check.program.module import Function, Module, returned_values, spelled
from jobsubmit.check.program.variables import assigned_to, parameters

_LONGEST_WAY = 3  # from the function that parses to one that is given the arguments


def namespaces(search: Search, kept: frozenset[str]) -> frozenset[str]:
    """Return the supposed namespaces, or none if something that is executed changes them indirectly."""
    return frozenset() if any(_holds(node, kept, search, module) for module, node in _changed(search)) else kept


def supposed_namespaces(search: Search) -> frozenset[str]:
    """Return the variables that hold the parsed arguments, unless the program changes them indirectly."""
    if any(_sets_defaults(node, module) for module, node in search.program.of(ast.Attribute)):
        return frozenset()
    returning = {
        module.called_as(scope)
        for module, call, _ in search.parses
        for scope in module.above(call)
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _returns_settings(scope, search, module)
    }
    parsed = _parsed(search, returning)
    if getters := set(_getters(search, parsed)):
        parsed = _parsed(search, returning | getters)
    kept, others = set[str](), set[str]()
    places = {(home.scope_of(call), spelled(call.func).partition(".")[0]): call for home, call, _ in search.parses}
    for home, node in search.program.of(ast.Assign):
        if not isinstance(node.value, ast.Call) or not search.reached.of(node, home):
            continue
        for target in node.targets:
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            if isinstance(first, ast.Name) and not _is_of_resumed(node, first.id, search, home):
                later = places.get((home.scope_of(node), first.id))  # args = parser(); args = args.parse_args()
                is_parser = later is not None and node.lineno < later.lineno
                if node.value in parsed:
                    kept.add(first.id)
                elif not is_parser and _has_fields(first.id, home.scope_of(node)):
                    others.add(first.id)
    for _ in range(_LONGEST_WAY):
        kept |= {*_parameters(search, parsed, kept), *_of_spawned(search, kept)}
    fields = {
        f"self.{name}"
        for name, stores in search.program.attribute_stores.items()
        if all(_is_one_of(assigned_to(store, module), kept - others) for module, store in stores)
    }
    return frozenset(kept - others | fields)


def _parsed(search: Search, returning: Collection[str]) -> set[ast.Call]:
    """Return the calls that parse arguments, themselves or in the functions and methods that return them."""
    parsing = {id(call) for _, call, _ in search.parses if not any(k.arg == "namespace" for k in call.keywords)}
    methods = set(_methods(search))
    return {
        call
        for _, call, name in search.program.calls
        if id(call) in parsing or name in returning or (not name and _last_name(call) in methods)
    }


def _getters(search: Search, parsed: set[ast.Call]) -> Iterator[str]:
    """Yield the functions that return a variable of their module in which another one keeps the parsed arguments.

    As those of Megatron do: `get_args()` returns what `set_args(args)` has kept.
    """
    kept = {
        target.id
        for _, node in search.program.of(ast.Assign)
        for target in node.targets
        if node.value in parsed and isinstance(target, ast.Name)
    }
    for module, declared in search.program.of(ast.Global):
        setter = module.function_of(declared)
        sets = [node for node in ast.walk(setter) if isinstance(node, ast.Assign)] if setter is not None else []
        variables = {
            target.id
            for node in sets
            for target in node.targets
            if isinstance(target, ast.Name) and target.id in declared.names
            if node.value in parsed or _is_one_of(node.value, kept)
        }
        for function in module.definitions.values() if variables else ():
            returned = [] if isinstance(function, ast.ClassDef) else returned_values(function)
            if returned and all(_is_one_of(one, variables) for one in returned):
                yield f"{module.name}.{function.name}"


def _returns_settings(function: Function, search: Search, module: Module) -> bool:
    """Return whether a function that parses returns no arguments, but settings of OmegaConf."""
    values = returned_values(function)
    made = [search.values.assigned(one, module) if isinstance(one, ast.Name) else one for one in values]
    names = [search.program.name_of(one.func, module) for one in made if isinstance(one, ast.Call)]
    return bool(names) and all(name.startswith(("omegaconf.", "OmegaConf.")) for name in names)


def _is_one_of(node: ast.AST | None, names: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _has_fields(variable: str, scope: ast.AST) -> bool:
    """Return whether a function reads a field of a variable, as of parsed arguments."""
    owners = (node.value for node in ast.walk(scope) if isinstance(node, ast.Attribute))
    return any(isinstance(owner, ast.Name) and owner.id == variable for owner in owners)


def _methods(search: Search) -> Iterator[str]:
    """Yield the methods that parse the arguments, each the only one of its name."""
    for module, call, _ in search.parses:
        function = module.function_of(call)
        if function is not None and len(search.program.methods.get(function.name, ())) == 1:
            yield function.name


def _last_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _parameters(search: Search, parsed: set[ast.Call], kept: set[str]) -> Iterator[str]:
    """Yield the parameters of functions that are given parsed arguments in each call."""
    for name, calls in search.program.calls_of.items():
        function = _called(search, name)
        if function is None:
            continue
        for parameter in parameters(function) - kept - {"self"}:
            given = [given_for(call, function, parameter) for _, call in calls]
            if all(value in parsed or (isinstance(value, ast.Name) and value.id in kept) for value in given):
                yield parameter


def _of_spawned(search: Search, kept: set[str]) -> Iterator[str]:
    """Yield the parameters of a function that mp.spawn starts with parsed arguments."""
    for spawn in SPAWNS:
        for module, call in search.program.calls_of.get(spawn, ()):
            started, given = argument(call, "fn", 0), argument(call, "args", 1)
            function = _called(search, search.program.name_of(started, module)) if started is not None else None
            names = [one.arg for one in function.args.args[1:]] if function is not None else []
            for name, value in zip(names, getattr(given, "elts", ()), strict=False):
                if isinstance(value, ast.Name) and value.id in kept:
                    yield name


def _called(search: Search, name: str) -> Function | None:
    """Return the function that a name means: of a class, what makes its objects, without `self`."""
    found = search.program.definition(name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return found[1] if found else None  # type: ignore[return-value] # it is no class
    made = (node for node in found[1].body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return next(made, None)


def _sets_defaults(node: ast.Attribute, module: Module) -> bool:
    """Return whether a method sets defaults of the parser that are not written down."""
    if node.attr != "set_defaults" or (isinstance(node.value, ast.Name) and node.value.id in module.aliases):
        return False
    call = module.parents.get(node)
    return not isinstance(call, ast.Call) or bool(call.args) or any(keyword.arg is None for keyword in call.keywords)


def fields_set_by_name(search: Search, kept: frozenset[str]) -> frozenset[str]:
    """Return the fields of parsed arguments that `setattr` sets, where their names are known."""
    return frozenset(
        name
        for module, call in _set_by_name(search)
        if _holds(call.args[0], kept, search, module)
        for name in _names_set(call, search, module) or ()
    )


def fills_those_not_given(search: Search) -> bool:
    """Return whether the program sets fields of the arguments that are None, by computed names."""
    return any(name == "setattr" and _only_fills(call, module) for module, call, name in search.calls)


def _changed(search: Search) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the objects whose attributes are set by computed names that are not known."""
    for module, node in search.program.of(ast.Attribute):
        is_set = node.attr == "__dict__" and (_is_written(node, search, module) or not isinstance(node.ctx, ast.Load))
        if is_set and search.reached.of(node, module):
            yield module, node.value
    for module, call, name in search.calls:
        if call.args and name == "vars" and _is_written(call, search, module):
            yield module, call.args[0]
    for module, call in _set_by_name(search):
        if _names_set(call, search, module) is None:
            yield module, call.args[0]


def _set_by_name(search: Search) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls of `setattr` that may change a field: not those that only add one that is missing."""
    for module, call, name in search.calls:
        if name == "setattr" and len(call.args) > 1 and not (_only_adds(call, module) or _only_fills(call, module)):
            yield module, call


def _only_adds(call: ast.Call, module: Module) -> bool:
    """Return whether a field is set only where there is none: `if not hasattr(args, key): setattr(args, key, x)`."""
    field = list(map(ast.unparse, call.args[:2]))
    for above in module.above(call):
        match above:
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id="hasattr"), args=asked))):
                return list(map(ast.unparse, asked)) == field
    return False


def _only_fills(call: ast.Call, module: Module) -> bool:
    """Return whether a field is set only where it is None: `if getattr(args, key) is None: setattr(args, key, x)`."""
    field = list(map(ast.unparse, call.args[:2]))
    for above in module.above(call):
        match above:
            case ast.If(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id="getattr"), args=asked),
                    ops=[ast.Is()],
                    comparators=[ast.Constant(value=None)],
                )
            ):
                return list(map(ast.unparse, asked[:2])) == field
    return False


def _names_set(call: ast.Call, search: Search, module: Module) -> set[str] | None:
    """Return the names of the fields that a call of `setattr` sets, in each pass of a loop; None if not known."""
    each = passes(search.values, call, module)
    values = [search.values] if each is None else [one.values for one in each]
    names = [one.of(call.args[1], module) for one in values]
    return set(names) if all(isinstance(name, str) for name in names) else None


def _is_written(node: ast.AST, search: Search, module: Module) -> bool:
    """Return whether something may be put into the dictionary that an expression is: it is not only read."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.Assign):  # another name for it
        return any(spelled(target).rpartition(".")[2] in search.program.changes for target in parent.targets)
    return isinstance(parent, ast.Attribute) and parent.attr in ("update", "setdefault", "pop", "clear")


def _holds(node: ast.expr, kept: Collection[str], search: Search, module: Module) -> bool:
    """Return whether an object may be the parsed arguments: by its variable, or by what calls give for a parameter."""
    if not isinstance(node, ast.Name):
        return isinstance(node, ast.Attribute) and any(name in ast.unparse(node) for name in kept)
    if node.id in kept:
        return True
    function = module.function_of(node)
    if function is None or node.id not in parameters(function):
        return False
    calls = search.program.calls_to(function, module)
    given = [given_for(call, function, node.id) for _, call in calls]
    return any(isinstance(one, ast.Name) and one.id in kept for one in given)


def _is_of_resumed(node: ast.Assign, variable: str, search: Search, module: Module) -> bool:
    """Return whether arguments are set again only if one of them is given, such as --resume, and it is not."""
    inner: ast.AST = node
    for above in module.above(node):
        if isinstance(above, ast.If) and inner in above.body:
            tests = above.test.values if isinstance(above.test, ast.BoolOp) else [above.test]
            test = tests[0] if not isinstance(above.test, ast.BoolOp) or isinstance(above.test.op, ast.And) else None
            if isinstance(test, ast.Attribute) and spelled(test.value) == variable:
                option = f"--{test.attr}"
                return not any(
                    word.replace("_", "-").startswith(option.replace("_", "-")) for word in search.values.facts.argv
                )
        inner = above
    return False
