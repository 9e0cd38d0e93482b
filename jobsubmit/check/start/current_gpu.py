"""What a process puts on its current GPU although it never selects one: it is number 0 for each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice

from jobsubmit.check.code import INIT, Code, is_ddp
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.start.device_of_call import device_of
from jobsubmit.common.finding import Finding

_SELECTS = re.compile(r"^set_device|^set_default_|^init_device_mesh$|^DeviceMesh$|^local_rank_device$|VISIBLE_DEVICES")
_SETS_UP = re.compile(
    r"(?:init|set_?up)\w*(?:dist|ddp)|(?:dist|ddp)\w*(?:init|set_?up)|(?:select|get)_device", re.IGNORECASE
)
_CONTEXTS = ("torch.cuda.device", "torch.cuda.device_of")
_CURRENT = "torch.cuda.current_device"
# torch puts what they send on the current GPU: see the documentation of torch.distributed.
_SENDS_OBJECTS = frozenset(
    f"torch.distributed.{name}"
    for name in ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")
)
_MAKES_TENSOR = re.compile(
    r"torch\.(?:(?:zeros|ones|empty|full|rand|randn|randint)(?:_like)?|tensor|as_tensor|arange|eye|linspace)"
)
_FREE_OF_TENSORS = re.compile(r"crit|loss|metric|scaler", re.IGNORECASE)


def on_current_gpu(code: Code) -> Iterator[Finding]:
    """Yield a warning for the first call that all processes make with their current GPU, which none of them selects.

    Other calls may well name a GPU by its number: that does not select it.
    """
    is_known = bool(code.followed) and not (code.program.broken or code.program.unread)
    joins = any(name == INIT or is_ddp(name) for _, _, name in code.reached.calls)
    if (code.processes or 0) <= 1 or code.has_framework or not is_known or not joins or _selects(code):
        return
    for module, call, name in code.reached.calls:
        if _is_on_current(code, call, name, module) and all(call in one.values for one in code.followed):
            yield Finding(
                "warning",
                "fixed-device",
                module.where(call),
                f"{unparsed(call.func)}() uses the current GPU of its process, and no process selects one: it is "
                f"cuda:0 for all {code.processes} processes of a node",
                'select it by the local rank: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            )
            return


def _selects(code: Code) -> bool:
    """Return whether anything in the program may select the current GPU, also as a library does."""
    given = (keyword for _, keyword in code.program.of(ast.keyword) if keyword.arg == "device_id")
    called = {name for _, _, name in code.program.calls}
    of_libraries = (name for name in called if not name.startswith("torch.") and code.program.definition(name) is None)
    return (
        any(map(_SELECTS.search, code.names))
        or not called.isdisjoint(_CONTEXTS)
        or any(map(_SETS_UP.search, of_libraries))
        or any(_CURRENT.rpartition(".")[2] not in unparsed(keyword.value) for keyword in given)
    )


def _is_on_current(code: Code, call: ast.Call, name: str, module: Module) -> bool:
    if name in _SENDS_OBJECTS:
        return code.is_on_nccl_only
    if name == _CURRENT:
        return not any(isinstance(above, (ast.JoinedStr, ast.Expr)) for above in islice(module.above(call), 3))
    is_bare = isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and not (call.args or call.keywords)
    if is_bare and not name.startswith("torch."):
        made = module.assigned_calls.get(spelled(call.func.value), ())  # type: ignore[attr-defined] # it is an attribute
        is_loss = any(_FREE_OF_TENSORS.search(unparsed(one.func)) for one in made)
        return not is_loss and _FREE_OF_TENSORS.search(unparsed(call.func)) is None
    chosen = device_of(call, name) if name != "torch.device" else None
    chosen = argument(call, "device") if chosen is None and _MAKES_TENSOR.fullmatch(name) else chosen
    return isinstance(chosen, ast.Constant) and code.values.of(chosen, module) == "cuda"
