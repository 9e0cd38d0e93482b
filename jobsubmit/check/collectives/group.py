"""When the process group is made: only once, and before it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from jobsubmit.check.code import INIT, Code, is_ddp
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.modules import FUNCTIONS, Function, Module
from jobsubmit.common.finding import Finding

_NEEDS = tuple(
    f"torch.distributed.{name}"
    for name in ("get_rank", "get_world_size", "barrier", "all_reduce", "broadcast", "all_gather", "new_group")
)
_ASKS = ("is_initialized", "is_torchelastic_launched")
_MESHES = ("torch.distributed.device_mesh.init_device_mesh", "torch.distributed.init_device_mesh")  # they make it, too
_DESTROYS = "destroy_process_group"
_DEEPEST = 3


class _Place(NamedTuple):
    """Where a scope comes to something: `call` is in the scope, `inner` is what it leads to."""

    call: ast.Call
    inner: ast.Call
    home: Module


def _position(place: _Place) -> tuple[int, int]:
    """Return where a call ends: what stands in its arguments is called before it."""
    return place.call.end_lineno or 0, place.call.end_col_offset or 0


def check_group(code: Code) -> Iterator[Finding]:
    """Yield an error where a process group is used before it is made, or made again; a hint if none destroys it."""
    yield from _destroy(code)
    inits = {call for _, call in code.calls(INIT)} or {call for _, call in code.calls(*_MESHES)}
    if code.has_framework or not inits or set(_ASKS) & code.names:
        return
    needing = {call for _, call, name in code.reached.calls if _needs_group(call, name)}
    scopes: dict[ast.AST, list[tuple[Module, ast.Call]]] = {}
    for module, call, _ in code.reached.calls:
        if code.reached.is_sure(call, module):
            scopes.setdefault(module.scope_of(call), []).append((module, call))
    for calls in scopes.values():
        made = _leading_to(code, calls, inits)
        if made:
            yield from _used_before(made[0], _leading_to(code, calls, needing))
            yield from _made_again(calls[0][0], made)


def _leading_to(code: Code, calls: list[tuple[Module, ast.Call]], wanted: set[ast.Call]) -> list[_Place]:
    """Return the calls of a scope that surely lead to one of some calls, in their order."""
    found = ((call, next(_reach(code, call, module, wanted, 0), None)) for module, call in calls)
    return sorted((_Place(call, *inner) for call, inner in found if inner), key=_position)


def _reach(
    code: Code, call: ast.Call, module: Module, wanted: set[ast.Call], depth: int
) -> Iterator[tuple[ast.Call, Module]]:
    if call in wanted:
        yield call, module
    found = _function_of(code, call, module) if depth < _DEEPEST else None
    if found is None:
        return
    home, function = found
    for inner in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        if home.function_of(inner) is function and code.reached.is_sure(inner, home):
            yield from _reach(code, inner, home, wanted, depth + 1)


def _function_of(code: Code, call: ast.Call, module: Module) -> tuple[Module, Function] | None:
    """Return the function that a call surely enters: of a class, what makes its objects; of an object, its method."""
    found = code.program.definition(code.program.name_of(call.func, module))
    if found is not None and not isinstance(found[1], ast.ClassDef):
        return found[0], found[1]
    if found is not None:
        return _method(found[0], found[1], "__init__")  # type: ignore[arg-type] # it is a class
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return None
    owner: tuple[Module, ast.AST] | None = None
    if call.func.value.id == "self":
        owner = next(((module, above) for above in module.above(call) if isinstance(above, ast.ClassDef)), None)
    elif len(made := module.assigned_calls.get(call.func.value.id, ())) == 1:
        owner = code.program.definition(code.program.name_of(made[0].func, module))
    is_class = owner is not None and isinstance(owner[1], ast.ClassDef)
    return _method(*owner, call.func.attr) if owner is not None and is_class else None  # type: ignore[arg-type]


def _method(module: Module, owner: ast.ClassDef, name: str) -> tuple[Module, Function] | None:
    own = (node for node in owner.body if isinstance(node, FUNCTIONS) and node.name == name)
    return next(((module, node) for node in own), None)


def _used_before(made: _Place, users: list[_Place]) -> Iterator[Finding]:
    """Yield an error for what needs the group in a scope that makes it only later."""
    for place in users[:1]:
        if _position(place) < _position(made):
            yield Finding(
                "error",
                "no-init",
                place.home.where(place.inner),
                f"{ast.unparse(place.inner.func)}() comes before {ast.unparse(made.inner.func)} "
                f"({made.home.where(made.inner)}), and needs the process group",
                "make the process group first",
            )


def _needs_group(call: ast.Call, name: str) -> bool:
    if name.startswith("torch.") and name.endswith(".DistributedSampler"):
        return argument(call, "rank", 2) is None and not hides_arguments(call)
    return name in _NEEDS or is_ddp(name)


def _made_again(module: Module, made: list[_Place]) -> Iterator[Finding]:
    """Yield an error for a second group in the same scope, unless the first one may have been destroyed."""
    for first, second in pairwise(made):
        if first.inner is second.inner or _may_destroy(module, first.call.lineno, second.call.lineno):
            continue
        yield Finding(
            "error",
            "second-init",
            second.home.where(second.inner),
            f"init_process_group was called before ({first.home.where(first.inner)}): torch refuses a second call",
            "remove one of the two calls",
        )
        return


def _may_destroy(module: Module, first: int, last: int) -> bool:
    return any(node.attr == _DESTROYS and first < node.lineno < last for node in module.of(ast.Attribute))


def _destroy(code: Code) -> Iterator[Finding]:
    if _DESTROYS in code.names:
        return
    for module, call in code.calls(INIT):
        yield Finding(
            "hint",
            "destroy",
            module.where(call),
            "the process group is never destroyed: some versions of torch warn or hang at exit",
            "call torch.distributed.destroy_process_group() at the end",
        )
        return
