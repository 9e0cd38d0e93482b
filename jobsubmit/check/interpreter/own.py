"""Values that each process has for itself, since they come from its own part of the data, and what depends on them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobsubmit.check.interpreter.memory import MANAGER, ClassValue, Container, External, Own, Record
from jobsubmit.check.interpreter.scaling import carrier_in, power_of
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.operations import UNKNOWN

_PART = "[part]"  # a field of a loader that divides the data: what one pass of a loop over it gets
_SAMPLER = "DistributedSampler"
_PARTITIONS = ("partition_dataset", "partition_dataset_classes")  # functions of MONAI: a list of the parts of the data
# What is the same on all processes although their data is not: samplers give each as many batches of the same size.
_SAME = frozenset(
    [
        *("shape", "size", "dim", "ndim", "dtype", "device", "is_cuda", "requires_grad", "grad_fn", "dataset", "keys"),
        *("sampler", "batch_size", "batch_sampler", "num_workers", "numel", "nelement", "element_size", "is_leaf"),
        *("len", "isinstance", "hasattr", "type", "id", "callable", "print", "is_tensor", "get_device", "stride"),
    ]
)
_COMBINES = re.compile(r"reduce|gather|sync|broadcast|all_|scatter|average|across|consensus|agree")
_NO_OTHERS = ("numpy.", "functools.", "statistics.", "scipy.", "itertools.")  # libraries that know no other process
_COMPUTE = ("torch.gather", "torch.scatter", "torch.index_reduce")
_AT_INDEX = re.compile(r"(?:gather|scatter|index_reduce)(?:_add|_reduce)?_?$")  # by an index, within one tensor
_FILLS_FIRST = frozenset(["all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all"])
_KEEPS_FORM = frozenset(
    [
        *("flatten", "cat", "_flatten_dense_tensors", "_unflatten_dense_tensors"),
        *("view", "view_as", "reshape", "clone"),
        *("to", "float", "half", "contiguous", "detach", "list", "tuple", "zip", "stack", "parameters_to_vector"),
        *("div", "div_", "mul", "mul_", "add_", "copy_", "values", "append", "split", "ravel", "concatenate"),
    ]
)
_OF_SOURCES = 99  # no power
_DATA = ("Tensor", "Variable")  # classes whose objects are data
_OF_DATA = "torch.utils.data."
_OF_LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
_WRAPS = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "Accelerator")


class Decision(NamedTuple):
    """A condition that each process decides by what only it knows, and what then happens `how`.

    `only`: in one of its branches; `skip`: not in the rest of the pass or the function; `leave`: not in the rest of the
    loop; `save`: the best state is saved; `step`: a scheduler is given the value. `waits` are the calls that wait for
    all processes, or change the weights, by the last parts of their names.
    """

    node: ast.expr
    module: Module
    how: str
    waits: tuple[str, ...]


@dataclass
class Waits:
    """The calls that wait for all processes or change weights, in the order in which they happen, and who leaves when.

    `leaving` has for each function or pass of a loop that is followed the decisions to leave it: with the number of
    calls before what is left.
    """

    names: list[str] = field(default_factory=list)
    leaving: list[list[tuple[ast.expr, Module, str, int]]] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)  # how many calls there were before each loop around
    decisions: dict[ast.expr, Decision] = field(default_factory=dict)

    def since(self, start: int) -> tuple[str, ...]:
        return tuple(self.names[start:])

    def decide(self, node: ast.expr, module: Module, how: str, waits: Iterable[str]) -> None:
        """Remember a decision, if anything depends on it."""
        found = tuple(waits)
        if found:
            self.decisions.setdefault(node, Decision(node, module, how, found))

    def leave(self, decisions: list[tuple[ast.expr, Module, str, int]]) -> None:
        """Remember what those miss that left a function or a pass of a loop, which now ends."""
        for node, module, how, start in decisions:
            self.decide(node, module, how, (name for name in self.since(start) if name != "save"))


def own_in(value: Any) -> Own | None:
    """Return the value of one process that a value is, or may hold; None if it holds none."""
    if isinstance(value, Own):
        return _own(value)
    if isinstance(value, Container):
        return own_in(value.own) or next(filter(None, map(_own, value.held)), None)
    return next(filter(None, map(_own, value)), None) if type(value) is tuple else None


def _own(value: Any) -> Own | None:
    return value if isinstance(value, Own) and not value.is_common else None


def derived(
    value: Any, *sources: Any, is_judged: bool = False, is_gradient: bool = True, power: int | None = _OF_SOURCES
) -> Any:
    """Return a value that was computed from others: if it is not known, one of this process if one of those is.

    It may be a gradient if one of those is; its `power` is theirs, unless another one is given.
    """
    if value is not UNKNOWN:
        return value
    found = [own for own in map(carrier_in, sources) if own is not None]
    own = next(filter(None, map(own_in, sources)), None)
    is_gradient = is_gradient and any(one.is_gradient for one in found)
    power = power_of(sources) if power == _OF_SOURCES else power
    if own is None and not is_gradient and power == 0:
        return value
    is_judged = is_judged or (own is not None and own.is_judged)
    return Own(is_judged=is_judged, is_common=own is None, is_gradient=is_gradient, power=power)


def derived_attribute(value: Any, owner: Any, name: str) -> Any:
    """Return what an attribute is; gradients are nobody's own: most often, they are exchanged."""
    if value is not UNKNOWN or name in _SAME:
        return value
    if name == "grad":
        return Own(is_common=True, is_gradient=True)
    made = derived(value, owner)
    if isinstance(made, Own):
        made.base = carrier_in(owner)
    return made


def derived_call(value: Any, callee: Any, name: str, args: list[Any], *, is_judged: bool) -> Any:
    """Return what a call returns that was not followed; what others have as well afterwards is nobody's own."""
    last = name.rpartition(".")[2]
    is_of_tensor = isinstance(callee, Own) or name.startswith(_COMPUTE)
    if _COMBINES.search(last) and not (is_of_tensor and _AT_INDEX.match(last)) and not name.startswith(_NO_OTHERS):
        for one in args[:1] if last in _FILLS_FIRST else args:
            _share(one)
        return value
    is_made = isinstance(value, Record) and value.kind == External(name) and _PART not in value.content
    is_object = is_made and last[:1].isupper() and not last.endswith(_DATA)
    if last in _SAME or is_object:
        return value
    power = callee.power if isinstance(callee, Own) else _OF_SOURCES
    own = derived(UNKNOWN, callee, *args, is_judged=is_judged, is_gradient=last in _KEEPS_FORM, power=power)
    return own if own is not UNKNOWN and (is_made or value is UNKNOWN) else value


def _share(value: Any) -> None:
    """Remember that all processes have a value, or what a container holds, and what it is an attribute of."""
    if isinstance(value, Own):
        for one in value.line():
            one.is_common = True
    if isinstance(value, Container):
        value.own = None
        for held in value.held:
            _share(held)


def item_of(value: Any) -> Any:
    """Return what a pass of a loop gets from what it goes through, if it is one that is not known item by item."""
    if isinstance(value, Record) and value.kind == MANAGER:
        return value.content["entered"]
    if isinstance(value, Record):
        return value.content.get(_PART, UNKNOWN)
    return derived(UNKNOWN, value)


def mark_part(made: Record, sources: list[Any]) -> Record:
    """Mark what goes through one part of the data: a sampler, and what is made of it."""
    name = made.kind.name if isinstance(made.kind, External) else ""
    if name.endswith(_SAMPLER):
        made.content[_PART] = UNKNOWN
    elif name.endswith("DataLoader"):
        if any(map(_is_divided, sources)):
            made.content[_PART] = Own()
    else:
        parts = [one for one in sources if _is_divided(one)]
        if parts:
            made.content[_PART] = item_of(parts[0])
    return made


def parts_of_loader(name: str, args: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a loader of torch, or of a sampler of batches, that hold its samplers."""
    if name.endswith("BatchSampler"):
        return {"sampler": args[0] if args else keywords.get("sampler", UNKNOWN)}
    given = {**dict(zip(_OF_LOADER, args, strict=False)), **keywords}
    if given.get("batch_sampler") is not None:
        return {"batch_sampler": given["batch_sampler"], "sampler": Record(External(f"{_OF_DATA}SequentialSampler"))}
    sampler = given.get("sampler")
    if sampler is None:
        sampler = Record(External(f"{_OF_DATA}RandomSampler"), is_open=True)
    batches = Record(External(f"{_OF_DATA}BatchSampler"), is_open=True)
    batches.content["sampler"] = sampler
    return {"sampler": sampler, "batch_sampler": batches}


def taken_from(owner: Any, key: Any) -> Any:
    """Return the part of the data that a process takes from all parts, or a slice of its own part; else None."""
    if not isinstance(owner, Record) or not isinstance(owner.kind, External):
        return None
    if owner.kind.name.endswith(_PARTITIONS) and not isinstance(key, slice):
        made = Record(External("list"), is_open=True)
        made.content[_PART] = Own()
        return made
    return owner if isinstance(key, slice) and owner.kind == External("list") and _is_divided(owner) else None


def _is_divided(value: Any) -> bool:
    if not isinstance(value, Record):
        return False
    is_sampler = isinstance(value.kind, ClassValue) and any(one.endswith(_SAMPLER) for one in value.kind.libraries)
    return is_sampler or _PART in value.content


def counting(value: Any) -> Any:
    """Return what enumerate() makes of a loader that divides the data."""
    made = Record(External("enumerate"), is_open=True)
    made.content[_PART] = (UNKNOWN, item_of(value))
    return made if _is_divided(value) else UNKNOWN


def zipped(values: list[Any]) -> Any:
    made = Record(External("zip"), is_open=True)
    made.content[_PART] = tuple(map(item_of, values))
    return made if any(map(_is_divided, values)) else UNKNOWN


def prepared(value: Any) -> Any:
    """Return what Accelerate makes of what it prepares: a loader goes through the part of this process."""
    if not isinstance(value, Record) or not isinstance(value.kind, External) or "DataLoader" not in value.kind.name:
        return UNKNOWN
    made = Record(value.kind, is_open=True)
    made.content[_PART] = Own()
    return made


def is_wrapping(name: str) -> bool:
    """Return whether a call makes what averages gradients whenever they are computed."""
    is_of_library = name == "deepspeed.initialize" or name.endswith(("Fabric.setup", "Fabric.setup_module"))
    return is_of_library or name.rpartition(".")[2] in _WRAPS
