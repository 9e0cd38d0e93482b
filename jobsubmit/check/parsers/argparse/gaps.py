"""What cannot be determined about the parsers of a program, and why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from jobsubmit.check.parsers.accepted import Gap
from jobsubmit.check.parsers.argparse.search import ADDS, GROUPS, LENIENT, STRICT, Search
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.known_parsers import ADDERS
from jobsubmit.check.program.module import Module, own_method
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.tree import children, walk
from jobsubmit.check.program.variables import parameters

_HARMLESS = ("print", "isinstance", "vars", "len", "str", "repr", "type", "id", "hasattr", "getattr")
_CHANGES_OF_LIST = ("append", "insert", "extend", "remove", "pop", "clear")
_DEEPEST = 5  # classes above each other
_PARSER_NAMES = ("parser", "argparser", "arg_parser", "_parser")


def gaps(search: Search) -> Iterator[Gap]:
    """Yield the places where the accepted arguments cannot be determined, each with the reason."""
    if not search.creations:
        module, call, _ = search.parses[0]
        yield Gap(module.where(call), "the parser is created by code that is not checked")
    yield from _of_argv(search)
    for module, call in search.adds:
        if not search.has_plain_name(call, module) and search.loops(call, module) is None:
            yield Gap(module.where(call), "the name of an option is computed here")
    for module, call, name in search.calls:
        if name not in ADDERS and _is_given_away(search, call, name, module):
            yield Gap(module.where(call), f"{name or 'a function'} may add options", is_given_away=True)
    for module, call, _ in search.parses:
        if why := _foreign(search, call, module):
            yield Gap(module.where(call), why)
    for module, call in search.creations:
        yield from _of_parser(search, module, call)
        settings = {keyword.arg for keyword in call.keywords}
        if _reads_words_from_files(search, call, module):
            yield Gap(module.where(call), "it reads arguments from files")
        if "prefix_chars" in settings and len(search.creations) > 1:
            yield Gap(module.where(call), "one of its parsers sets prefix_chars")


def _reads_words_from_files(search: Search, call: ast.Call, module: Module) -> bool:
    """Return whether one of the given words may be the name of a file with more words."""
    given = argument(call, "fromfile_prefix_chars")
    signs = search.values.of(given, module) if given is not None else ""
    return not isinstance(signs, str) or any(word.startswith(tuple(signs)) for word in search.values.facts.argv)


def _of_argv(search: Search) -> Iterator[Gap]:
    yield from _settings_of_argv(search.program)
    for module, call, _ in search.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in _CHANGES_OF_LIST:
            if search.program.name_of(call.func.value, module) == "sys.argv":
                yield Gap(module.where(call), "sys.argv is changed")


@lru_cache(maxsize=100)
def _settings_of_argv(program: Program) -> tuple[Gap, ...]:
    """Return where the arguments, or some of them, are set."""
    nodes = program.of(ast.Subscript, ast.Attribute, ast.Name)
    stores = ((module, node) for module, node in nodes if not isinstance(node.ctx, ast.Load))
    places = ((module, node, node.value if isinstance(node, ast.Subscript) else node) for module, node in stores)
    return tuple(
        Gap(module.where(node), "sys.argv is changed")
        for module, node, place in places
        if program.name_of(place, module) == "sys.argv"
    )


def _is_given_away(search: Search, call: ast.Call, name: str, module: Module) -> bool:
    """Return whether a parser is handed to code that is not here."""
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg != "parents")]
    names = search.parser_names(module)
    if name in _HARMLESS or not any(
        _is_parser(search, inner, module, names) for item in given for inner in _parts(item)
    ):
        return False
    is_ours = (
        _is_own_method(search, name) or search.program.definition(search.reached.names.get(call, name)) is not None
    )
    if is_ours or _is_inner(call, module):
        return False
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in search.program.methods
    return not is_method or _imports_by_name(search)


def _is_own_method(search: Search, name: str, depth: int = 0) -> bool:
    """Return whether `Class.method` is a method that a class of the program, or one above it, defines."""
    owner, _, method = name.rpartition(".")
    found = search.program.definition(owner)
    if found is None or not isinstance(found[1], ast.ClassDef) or depth > _DEEPEST:
        return False
    bases = (search.program.name_of(base, found[0]) for base in found[1].bases)
    is_own = own_method(found[1], method) is not None
    return is_own or any(_is_own_method(search, f"{base}.{method}", depth + 1) for base in bases)


def _imports_by_name(search: Search) -> bool:
    """Return whether modules are imported that no look at the imports shows: any may have a method of this name."""
    return any(name.endswith(("import_module", "__import__")) for _, _, name in search.calls)


def _is_parser(search: Search, node: ast.AST, module: Module, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in GROUPS
    if isinstance(node, ast.Name):
        return (node.id in names or node.id in _PARSER_NAMES) and not _is_something_else(search, node, module)
    return isinstance(node, ast.Attribute) and node.attr in _PARSER_NAMES


def _is_something_else(search: Search, node: ast.Name, module: Module) -> bool:
    """Return whether a variable holds objects of another library in its function, whatever it holds elsewhere."""
    loops = (above for above in module.above(node) if isinstance(above, ast.For))
    if any(isinstance(one, ast.Name) and one.id == node.id for loop in loops for one in walk(loop.target)):
        return True
    function = module.function_of(node)
    if function is not None and function.args.vararg is not None and function.args.vararg.arg == node.id:
        return True
    inside = module.stores.get((function or module.tree, node.id), ())
    stores = [store for store in inside if module.function_of(store) is function and store.lineno <= node.lineno]
    made = [_made_by(module.parents.get(store)) for store in stores]
    names = [search.program.name_of(value.func, module) for value in made if isinstance(value, ast.Call)]
    return bool(stores) and len(names) == len(stores) and all(_is_of_library(search, name) for name in names)


def _made_by(statement: ast.AST | None) -> ast.AST | None:
    """Return what a variable is set to by a statement: of a loop, what it loops over."""
    if isinstance(statement, (ast.For, ast.comprehension)):
        return statement.iter
    return statement.value if isinstance(statement, ast.Assign) else None


def _is_of_library(search: Search, name: str) -> bool:
    owner = name.rpartition(".")[0]
    return "." in name and owner != "argparse" and owner not in search.program.modules and not search.makes_parser(name)


def _is_inner(call: ast.Call, module: Module) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in module.functions


def _foreign(search: Search, call: ast.Call, module: Module) -> str:
    """Return why a parser that parses is not known whole, or nothing."""
    assert isinstance(call.func, ast.Attribute)
    made_by: list[ast.AST] = [call.func.value]
    if isinstance(call.func.value, ast.Name):
        places = [
            node
            for node in module.of(ast.Assign)
            if any(isinstance(t, ast.Name) and t.id == call.func.value.id for t in node.targets)
        ]
        own = [node for node in places if module.scope_of(node) is module.scope_of(call)]
        made_by = [node.value for node in own or places]
    for node in made_by:
        if isinstance(node, ast.Call):
            name = search.reached.names.get(node, search.program.name_of(node.func, module))
            is_ours = search.program.called(node, module) is not None or _is_inner(node, module)
            is_method = isinstance(node.func, ast.Attribute) and not _is_package(node.func, module)
            if not is_ours and not is_method and not search.makes_parser(name) and name not in ADDERS:
                return f"{name or 'an unknown function'} creates the parser"
    return ""


def _is_package(target: ast.Attribute, module: Module) -> bool:
    root: ast.AST = target
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in module.aliases


def _of_parser(search: Search, module: Module, call: ast.Call) -> Iterator[Gap]:
    found = search.program.definition(search.program.name_of(call.func, module))
    if found and isinstance(found[1], ast.ClassDef):
        own = [item.name for item in found[1].body if isinstance(item, ast.FunctionDef) and item.name != "__init__"]
        changed = [name for name in own if name in (*STRICT, *LENIENT, *ADDS, "_get_option_tuples", "error")]
        if changed:
            yield Gap(module.where(call), f"its class overrides {changed[0]}")
    for keyword in call.keywords:
        if keyword.arg == "parents":
            yield from _of_parents(search, keyword.value, module)
        if keyword.arg is None:
            yield Gap(module.where(call), "the parser's settings are computed")


def _of_parents(search: Search, node: ast.AST, module: Module) -> Iterator[Gap]:
    items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    for item in items:
        if isinstance(item, ast.Call):
            name = search.program.name_of(item.func, module)
            if search.program.definition(name) is None and not search.makes_parser(name):
                yield Gap(module.where(item), f"{name or 'an unknown function'} creates a parent parser")
        elif not isinstance(item, ast.Name) or not _holds_parser(search, item, module):
            yield Gap(module.where(item), "a parent parser is created by code that is not checked")


def _holds_parser(search: Search, name: ast.Name, module: Module, depth: int = 0) -> bool:
    """Return whether a variable holds a parser of the program, or is a parameter that each call gives one."""
    if name.id in search.parser_names(module):
        return True
    function = module.function_of(name)
    if function is None or name.id not in parameters(function) or depth > _DEEPEST:
        return False
    calls = [one for one in search.program.calls_to(function, module) if search.reached.of(one[1], one[0])]
    given = [(home, given_for(call, function, name.id)) for home, call in calls]
    return bool(given) and all(
        isinstance(one, ast.Name) and _holds_parser(search, one, home, depth + 1) for home, one in given
    )


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield an argument and what is in it, if it is a plain container."""
    yield node
    if isinstance(node, (ast.List, ast.Tuple, ast.Dict, ast.Starred)):
        for item in children(node):
            yield from _parts(item)
