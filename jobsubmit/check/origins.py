"""What an expression is made of: the words of all that its variables may be set to."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeVar

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.functions import given_by_spawn
from jobsubmit.check.program.module import (
    FUNCTIONS,
    Module,
    class_around,
    is_property,
    returned_values,
    spelled,
    unparsed,
)
from jobsubmit.check.program.objects import given_to_fields
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters, values_of_field

_Node = TypeVar("_Node", bound=ast.AST)

_DEEPEST = 8
_KEEP_BEGINNING = ("os.path.join", "pathlib.Path", "str", "os.path.abspath")
_DRAWS = re.compile(r"\brandom\.(?:randint|randrange|getrandbits)\(|\btime\.time(?:_ns)?\(\)|\burandom\(")
_PROSE = re.compile(r"'[^'\n]* [^'\n]*'|\"[^\"\n]* [^\"\n]*\"")  # a text of several words
_SEEDS_OF_DRAWS = ("random.seed", "numpy.random.seed")
# Functions that may give all ranks the same value.
_MAKE_EQUAL = re.compile(r"broadcast|bcast|scatter_object|all_?gather|all_?reduce|sync|share", re.IGNORECASE)
_BLOCKS = ("body", "orelse", "finalbody")


def words_of(code: Code, node: ast.AST, module: Module) -> str:
    """Return an expression and those that it is computed from, as one text in which to look for words."""
    return "\n".join(unparsed(part) for _, part in origins(code, node, module))


def parts_returned(code: Code, target: ast.expr, module: Module) -> list[tuple[Module, ast.expr]]:
    """Return what a function of the program returns for one of several variables, where it returns as many values."""
    several = module.parents.get(target)
    statement = module.parents.get(several) if isinstance(several, ast.Tuple) else None
    call = statement.value if isinstance(statement, ast.Assign) else None
    found = code.program.called(call, module) if isinstance(call, ast.Call) else None
    if found is None or not isinstance(found[1], FUNCTIONS) or not isinstance(several, ast.Tuple):
        return []
    values = returned_values(found[1])
    if not all(isinstance(one, ast.Tuple) and len(one.elts) == len(several.elts) for one in values):
        return []
    place = several.elts.index(target)
    return [(found[0], one.elts[place]) for one in values if isinstance(one, ast.Tuple)]


def keywords_of(code: Code, call: ast.Call, module: Module) -> dict[str, tuple[Module, ast.expr]]:
    """Return what a call gives by name, itself or in a mapping that is written down (`**settings`), and where."""
    found: dict[str, tuple[Module, ast.expr]] = {}
    for keyword in call.keywords:
        if keyword.arg is not None:
            found[keyword.arg] = module, keyword.value
            continue
        for home, part in origins(code, keyword.value, module):
            for key, value in zip(part.keys, part.values, strict=True) if isinstance(part, ast.Dict) else ():
                if isinstance(key, ast.Constant):
                    found.setdefault(str(key.value), (home, value))
            for one in part.keywords if isinstance(part, ast.Call) and spelled(part.func) == "dict" else ():
                if one.arg is not None:
                    found.setdefault(one.arg, (home, one.value))
    return found


def is_seed_of_rank(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a seed is another number on each rank: `args.seed + rank`, or one that each rank draws."""
    words = _PROSE.sub("", words_of(code, node, module))
    names_rank = "rank" in words.lower() or "process_index" in words.lower()
    if _is_broadcast(code, node, module):
        return False
    if names_rank and " - " not in words:
        return True
    draws = [(home, part) for home, part in origins(code, node, module) if _DRAWS.search(unparsed(part))]
    is_sure = bool(draws) and all(code.reached.is_sure(part, home) for home, part in draws)
    return (
        is_sure
        and not is_sent(code, node, module)
        and code.values.of(node, module) is UNKNOWN
        and not _seeds_draws(code)
    )


def _is_broadcast(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a number comes from a function that hands on the one of rank 0: `seed = sync_seed(args.seed)`."""
    makers = {home.function_of(part) for home, part in origins(code, node, module)} - {module.function_of(node), None}
    inner = (one for maker in makers if maker is not None for one in walk(maker))
    return any(isinstance(one, ast.Call) and "broadcast" in spelled(one.func) for one in inner)


def is_sent(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a rank may send the others its value: a collective gets a variable that the value comes from."""
    parts = [
        (getattr(part, "attr", getattr(part, "id", "")), home)
        for home, one in origins(code, node, module)
        for part in walk(one)
    ]
    return makes_equal(code, {name for name, home in parts if name and name not in home.aliases})


def makes_equal(code: Code, names: Container[str]) -> bool:
    """Return whether a function that may give all ranks the same gets, or makes, something of one of some names."""
    return any(
        getattr(part, "attr", getattr(part, "id", "")) in names
        for module, call, _ in code.reached.calls
        if _MAKE_EQUAL.search(spelled(call.func))
        for around in (call, *_targets(call, module))
        for part in walk(around)
        if part is not call.func
    )


def _targets(call: ast.Call, module: Module) -> Sequence[ast.expr]:
    statement = module.parents.get(call)
    return statement.targets if isinstance(statement, ast.Assign) else ()


def _seeds_draws(code: Code) -> bool:
    """Return whether random numbers may be the same on all ranks: what they are seeded with is not drawn itself."""
    calls = ((home, call) for home, call in code.calls(*_SEEDS_OF_DRAWS) if not _is_of_worker(call, home))
    seeds = (words_of(code, call.args[0], home) for home, call in calls if call.args)
    return any(_DRAWS.search(words) is None for words in seeds)


def _is_of_worker(call: ast.Call, module: Module) -> bool:
    """Return whether a call is in a function for the worker processes of a loader."""
    function = module.function_of(call)
    return function is not None and any("worker" in name for name in parameters(function))


def origins(
    code: Code, node: ast.AST, module: Module, but: re.Pattern[str] | None = None
) -> list[tuple[Module, ast.AST]]:
    """Return an expression, and all that its variables, attributes and parameters may be set to.

    Of variables whose names match `but`, only the names.
    """
    found: dict[ast.AST, Module] = {}
    _follow(code, node, module, found, but, 0)
    return [(home, part) for part, home in found.items()]


def beginning_of(code: Code, node: ast.AST | None, module: Module) -> str:
    """Return a text or a path, or as much of its beginning as is written down; empty if that is not known."""
    value = code.values.of(node, module) if node is not None else None
    if isinstance(value, (str, PurePosixPath)):
        return str(value)
    source: ast.AST | None = None
    end = ""
    match node:
        case ast.BinOp(op=ast.Div(), left=left, right=right) if beginning_of(code, left, module) == ".":
            source = right  # which may be a whole path
        case ast.BinOp():
            source, end = node.left, "%"
        case ast.JoinedStr(values=[first, *_]):
            source = first
        case ast.Call(func=ast.Attribute(attr="format", value=text)):
            source, end = text, "{"
        case ast.Call(args=[first, *_]) if code.program.name_of(node.func, module) in _KEEP_BEGINNING:
            source = first
        case ast.Name() if module.name not in code.program.dynamic or module.function_of(node) is not None:
            source = code.values.assigned(node, module) or _first_looped(code, node, module)
    found = beginning_of(code, source, module) if source is not None else ""
    return found.partition(end)[0] if end else found


def _first_looped(code: Code, name: ast.Name, module: Module) -> ast.expr | None:
    """Return the first entry of the list that a loop goes through with a variable, if the list is written down."""
    loops = (above for above in module.above(name) if isinstance(above, ast.For))
    loop = next((one for one in loops if isinstance(one.target, ast.Name) and one.target.id == name.id), None)
    looped = loop.iter if loop is not None else None
    looped = code.values.assigned(looped, module) if isinstance(looped, ast.Name) else looped
    return looped.elts[0] if isinstance(looped, (ast.List, ast.Tuple)) and looped.elts else None


def last_value(name: ast.Name, module: Module) -> ast.expr | None:
    """Return what a variable was surely set to last before it is used here, in the same function; None if unclear."""
    inner: ast.AST = name
    for above in module.above(name):
        for block in (getattr(above, field, None) for field in _BLOCKS):
            for statement in reversed(
                block[: block.index(inner)] if isinstance(block, list) and inner in block else []
            ):
                if isinstance(statement, (ast.Assign, ast.AnnAssign)) and (
                    found := _set_by(statement, name.id, module)
                ):
                    return found
                if name.id in _names_set(statement):
                    return None
        if isinstance(above, (*FUNCTIONS, ast.Lambda)):
            return None
        inner = above
    return None


def seen_through(node: _Node | None, module: Module) -> _Node | ast.expr | None:
    """Return what a variable was surely set to last, or None if unclear; any other expression is itself."""
    return last_value(node, module) if isinstance(node, ast.Name) else node


def _set_by(statement: ast.Assign | ast.AnnAssign, name: str, module: Module) -> ast.expr | None:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = (item for target in targets for item in walk(target) if isinstance(item, ast.Name) and item.id == name)
    return next((assigned_to(item, module) for item in names if isinstance(item.ctx, ast.Store)), None)


@lru_cache(maxsize=10_000)
def _names_set(statement: ast.AST) -> frozenset[str]:
    """Return the variables that a statement may set anew; what is added to one counts as the same."""
    inside = list(walk(statement))
    added = {inner.target for inner in inside if isinstance(inner, ast.AugAssign)}
    names = (inner for inner in inside if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load))
    return frozenset(inner.id for inner in names if inner not in added)


def _follow(
    code: Code, node: ast.AST, module: Module, found: dict[ast.AST, Module], but: re.Pattern[str] | None, depth: int
) -> None:
    if node in found or depth > _DEEPEST:
        return
    found[node] = module
    bases: set[ast.AST] = set()  # of attributes that are known by their own names
    for inner in walk(node):
        is_named_only = but is not None and isinstance(inner, ast.Name) and but.fullmatch(inner.id)
        sources = [] if inner in bases or is_named_only else list(_sources(code, inner, module))
        if sources and isinstance(inner, ast.Attribute):
            bases.update(walk(inner.value))
        for home, source in sources:
            _follow(code, source, home, found, but, depth + 1)


def _sources(code: Code, node: ast.AST, module: Module) -> Iterator[tuple[Module, ast.AST]]:
    if isinstance(node, ast.Call):
        found = code.program.called(node, module)
        if found is not None and isinstance(found[1], FUNCTIONS):
            yield from ((found[0], value) for value in returned_values(found[1]))
    elif isinstance(node, ast.Attribute):
        for home, target in _stores_of(code, node, module):
            if (value := _assigned_to(target, home)) is not None:
                yield home, value
        yield from code.program.named_values.get(node.attr, ())
        yield from given_to_fields(code.program).get(node.attr, ())
        for home, _, method in code.program.methods.get(node.attr, ()):
            if is_property(method):
                yield from ((home, value) for value in returned_values(method))
    elif isinstance(node, ast.Name):
        yield from _sources_of_variable(code, node, module)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant):
        if code.program.name_of(node.value, module) == "os.environ":
            yield from _set_in_environment(code.program).get(node.slice.value, ())


@lru_cache(maxsize=10)
def _set_in_environment(program: Program) -> Mapping[object, Sequence[tuple[Module, ast.expr]]]:
    """Return what the program sets each variable of the environment to: `os.environ["MODEL_DIR"] = path`."""
    found: dict[object, list[tuple[Module, ast.expr]]] = {}
    for module, node in program.of(ast.Assign):
        target = node.targets[0]
        is_variable = isinstance(target, ast.Subscript) and program.name_of(target.value, module) == "os.environ"
        if is_variable and isinstance(target.slice, ast.Constant):
            found.setdefault(target.slice.value, []).append((module, node.value))
    return found


def _stores_of(code: Code, node: ast.Attribute, module: Module) -> Iterable[tuple[Module, ast.expr]]:
    """Return where an attribute may be set: of `self` only in its class, if that sets it."""
    stores = code.program.attribute_stores.get(node.attr, ())
    if node.attr in code.fields_given:
        stores = [(home, store) for home, store in stores if not _is_for_none_given(store, home)]
    owner = class_around(node, module) if spelled(node.value) == "self" else None
    own = [
        (home, store)
        for home, store in stores
        if owner is not None and class_around(store, home) is owner and spelled(store.value) == "self"
    ]
    found = own or stores
    return [(home, store) for home, store in found if not code.passes_by(store, home)] or found


def _is_for_none_given(store: ast.Attribute, module: Module) -> bool:
    """Return whether a field of the arguments is set only if none is given: `if args.name is None: args.name = …`."""
    tests = (unparsed(above.test) for above in module.above(store) if isinstance(above, ast.If))
    field = spelled(store)
    return any(test in (f"{field} is None", f"not {field}", f"{field} == ''") for test in tests)


def set_to(code: Code, node: ast.AST, module: Module) -> list[tuple[Module, ast.expr | None]]:
    """Return what a variable is set to where it is used, or a field anywhere; nothing for other expressions."""
    if isinstance(node, ast.Name):
        assigned = code.values.assigned(node, module)
        scope = module.scope_of(node)
        is_of_module = scope is module.tree or (scope, node.id) not in module.own_stores
        stores = module.own_stores.get((module.tree, node.id), ()) if assigned is None and is_of_module else ()
        return [(module, assigned_to(store, module)) for store in stores] or [(module, assigned)]
    if not isinstance(node, ast.Attribute):
        return []
    owner, _, name = code.program.name_of(node, module).rpartition(".")
    if (home := code.program.modules.get(owner)) is not None:  # a variable of another module
        return [(home, assigned_to(store, home)) for store in home.own_stores.get((home.tree, name), ())]
    return values_of_field(code.program, node.attr)


def _sources_of_variable(code: Code, node: ast.Name, module: Module) -> Iterator[tuple[Module, ast.AST]]:
    for scope in (*(above for above in module.above(node) if isinstance(above, FUNCTIONS)), module.tree):
        if isinstance(scope, FUNCTIONS) and node.id in parameters(scope):
            is_for_any = "broadcast" in scope.name  # it hands on whatever each of its calls gives
            for home, call in () if is_for_any else code.program.calls_to(scope, module):
                if (given := given_for(call, scope, node.id)) is not None:
                    yield home, given
            home_and_value = given_by_spawn(code.values, node.id, scope, module)
            if home_and_value is not None and home_and_value[1] is not None:
                yield home_and_value[0], home_and_value[1]
        stores = module.stores.get((scope, node.id), ())
        for store in stores:
            if (value := _assigned_to(store, module)) is not None:
                yield module, value
                yield from _appended(code, node.id, value, store, module)
        if stores or (isinstance(scope, FUNCTIONS) and node.id in parameters(scope)):
            return
    yield from _imported_value(code, node, module)


def _appended(
    code: Code, name: str, value: ast.AST, store: ast.expr, module: Module
) -> Iterator[tuple[Module, ast.AST]]:
    """Yield what the function of a list that is empty at first appends to it."""
    changes = code.program.changes.get(name, ()) if isinstance(value, ast.List) and not value.elts else ()
    for home, change in changes:
        is_append = isinstance(change, ast.Call) and spelled(change.func) == f"{name}.append"
        if is_append and home is module and module.scope_of(change) is module.scope_of(store):
            yield from ((module, one) for one in change.args)  # type: ignore[attr-defined] # it is a call


def _imported_value(code: Code, node: ast.Name, module: Module) -> Iterator[tuple[Module, ast.AST]]:
    """Yield what another module of the program sets a variable to that is imported from it."""
    owner, _, name = code.program.name_of(node, module).rpartition(".")
    home = code.program.modules.get(owner) if node.id in module.aliases else None
    for store in home.own_stores.get((home.tree, name), ()) if home is not None else ():
        if home is not None and (value := _assigned_to(store, home)) is not None:
            yield home, value


def _assigned_to(target: ast.expr, module: Module) -> ast.AST | None:
    """Return what a variable is set to here; of one of several, what all of them are set to, if it is not clear."""
    if (value := assigned_to(target, module)) is not None:
        return value
    parent = module.parents.get(target)
    while isinstance(parent, (ast.Tuple, ast.List, ast.Starred)):
        parent = module.parents.get(parent)
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        return parent.value
    if isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)):
        return parent.iter
    return parent.context_expr if isinstance(parent, ast.withitem) else None
