"""When the process group is made: only once, and before it is used."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from itertools import pairwise

from jobsubmit.check.code import ACCELERATOR, INIT, MESHES, Code, is_ddp
from jobsubmit.check.order import Place, by_scope, leading_to, position
from jobsubmit.check.program.calls import Reach, argument, hides_arguments
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_NEEDS = tuple(
    f"torch.distributed.{name}"
    for name in ("get_rank", "get_world_size", "barrier", "all_reduce", "broadcast", "all_gather", "new_group")
)
_ASKS = ("is_initialized", "is_torchelastic_launched")
_MAKERS = {"deepspeed": ("deepspeed.init_distributed",), "accelerate": (ACCELERATOR, "accelerate.PartialState")}
_DESTROYS = "destroy_process_group"


def check_group(code: Code) -> Iterator[Finding]:
    """Yield an error where a process group is used before it is made, or made again; a hint if none destroys it."""
    yield from _destroy(code)
    inits = {call for _, call in code.calls(INIT)} or {call for _, call in code.calls(*MESHES)}
    makers = {
        call
        for framework, names in _MAKERS.items()
        for _, call in (code.calls(*names) if code.has_only_framework(framework) else ())
    }
    is_made_otherwise = code.has_framework and not makers and not any(code.calls(INIT, least=Reach.SURELY))
    inits |= makers
    if not inits or is_made_otherwise:
        return  # a framework may make it
    needing = {call for _, call, name in code.reached.calls if _needs_group(call, name)}
    sure = [(module, call) for module, call, _ in code.reached.calls if code.reached.is_sure(call, module)]
    for calls in by_scope(sure):
        made = leading_to(code, calls, inits)
        if made:
            users = leading_to(code, calls, needing, of_some_rank=True)
            yield from _used_before(
                made[0], [one for one in users if not _is_asked(code, one) and not _has_group(code, one, inits)]
            )
            yield from _made_again(code, calls[0][0], made, asking=makers)


def _used_before(made: Place, users: list[Place]) -> Iterator[Finding]:
    """Yield an error for what needs the group in a scope that makes it only later."""
    for place in users[:1]:
        if position(place) < position(made):
            yield Finding(
                "error",
                "no-init",
                place.home.where(place.inner),
                f"{unparsed(place.inner.func)}() comes before {unparsed(made.inner.func)} "
                f"({made.home.where(made.inner)}), and needs the process group",
                "make the process group first",
            )


def _has_group(code: Code, place: Place, inits: Container[ast.AST]) -> bool:
    """Return whether the processes that come to a use, of those that were followed, have made their group before."""
    coming = [one.values for one in code.followed if place.inner in one.values]
    first = (next(node for node in values if node in inits or node is place.inner) for values in coming)
    return bool(coming) and all(node is not place.inner for node in first)


def _is_asked(code: Code, place: Place) -> bool:
    """Return whether the function of a use asks first whether there is a process group, by another one or itself."""
    scope = place.home.scope_of(place.inner)
    own = [node for node in walk(scope) if place.home.scope_of(node) is scope]
    tests = [node.test for node in own if isinstance(node, (ast.If, ast.IfExp))]
    calls = (node for test in tests for node in walk(test) if isinstance(node, ast.Call))
    called = (found[1] for call in calls if (found := code.program.called(call, place.home)) is not None)
    return any(map(_asks, own)) or any(_asks(node) for function in called for node in walk(function))


def _asks(node: ast.AST) -> bool:
    name = str(getattr(node, "attr", getattr(node, "id", "")))
    return name in _ASKS or name.endswith("_initialized")


def _needs_group(call: ast.Call, name: str) -> bool:
    if name.startswith(("torch.", "monai.")) and name.endswith(".DistributedSampler"):
        return argument(call, "rank", 2) is None and not hides_arguments(call)
    return name in _NEEDS or is_ddp(name)


def _made_again(code: Code, module: Module, made: list[Place], asking: Container[ast.AST]) -> Iterator[Finding]:
    """Yield an error for a second group in the same scope, unless the first one may have been destroyed.

    Those that are `asking`, of frameworks, make none where there is one.
    """
    for first, second in pairwise(made):
        if (
            first.inner is second.inner
            or second.inner in asking
            or _may_destroy(module, first.call.lineno, second.call.lineno)
        ):
            continue
        conditions = (node for one in _conditions(module, second.call) for node in walk(one.test))
        if _is_asked(code, first) or _is_asked(code, second) or any(map(_asks, conditions)):
            continue
        yield Finding(
            "error",
            "second-init",
            second.home.where(second.inner),
            f"init_process_group was called before ({first.home.where(first.inner)}): torch refuses a second call",
            "remove one of the two calls",
        )
        return


def _conditions(module: Module, call: ast.Call) -> list[ast.If]:
    return [one for one in module.above(call) if isinstance(one, ast.If)]


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
