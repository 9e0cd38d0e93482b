"""What functions of torch return and do, as far as a job decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import DEVICE, GROUP, External, Record, plain
from jobsubmit.check.interpreter.process import COLLECTIVES
from jobsubmit.check.program.facts import ASK_FOR_GPUS, ONLY_ON_MACS
from jobsubmit.check.program.operations import UNKNOWN, several

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls


_MOST_ALIKE = 2  # processes that a program starts one by one, and that are followed although none of them is asked for


def value_of_torch(run: Calls, name: str, args: list[Any], keywords: dict[str, Any]) -> tuple[Any] | None:
    facts = run.facts
    if name in ASK_FOR_GPUS:
        gpus = facts.gpus_seen
        return (gpus if gpus is UNKNOWN or name.endswith("count") else gpus > 0,)
    if name == "torch.cuda.set_device" and args:
        run.current_gpu = args[0] if type(args[0]) is int and not run.doubts else UNKNOWN
        return (None,)
    if name == "torch.cuda.current_device":
        return (run.current_gpu,)
    if name == "torch.distributed.is_available":
        return (True,)
    if name in ONLY_ON_MACS:
        return (False,)
    if name == "torch.distributed.is_nccl_available":
        return (facts.has_nccl,)
    if name == "torch.distributed.init_process_group":
        run.has_group = True
        run.joined_as = keywords.get("rank", args[4] if len(args) > 4 else None)  # noqa: PLR2004
        return (None,)
    if name == "torch.distributed.is_initialized":
        return (True if run.has_group else UNKNOWN,)
    if name == "torch.distributed.get_rank" and not args and not keywords:
        return (run.joined_as if type(run.joined_as) is int and run.process is not None else facts.rank,)
    if name == "torch.distributed.get_world_size" and not args and not keywords:
        return (facts.world_size if run.process is None else run.process.world_size,)
    if name in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
        function = args[0] if args else keywords.get("fn")
        given = keywords.get("args", args[1] if len(args) > 1 else ())
        count = keywords.get("nprocs", args[2] if len(args) > 2 else 1)  # noqa: PLR2004
        numbers = several(sorted({0, count // 2, count - 1})) if type(count) is int and count > 0 else UNKNOWN
        if run.process is None and type(count) is int:
            run.started += count
        items = run.items(given)
        if run.process is not None:
            run.started += 1
            numbers = run.process.local_rank
            run.exists = run.exists or count is UNKNOWN or (type(count) is int and count > numbers)
            if type(count) is int and count <= numbers:
                return (None,)
        if count == 0:
            return (None,)
        run.call(function, [numbers, *(items or [])], {}, is_open=items is None)
        return (None,)
    if name == "torch.distributed.new_subgroups" and run.process is not None:
        size, rank = keywords.get("group_size", args[0] if args else None), run.process.rank
        own = Record(External("torch.distributed.ProcessGroup"), is_open=True)
        if type(size) is int and size > 0:
            own.content[GROUP] = list(range(rank // size * size, rank // size * size + size))
        return ((own, UNKNOWN),)
    if name == "torch.distributed.new_group":
        ranks = plain(args[0] if args else keywords.get("ranks"))
        made = Record(External("torch.distributed.ProcessGroup"), is_open=True)
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            made.content[GROUP] = ranks
        return (made,)
    if name.startswith("torch.distributed.") and name.rpartition(".")[2] in COLLECTIVES:
        source = keywords.get("src", args[1] if len(args) > 1 else UNKNOWN)
        is_source = "broadcast" in name and run.process is not None and source == run.process.rank
        if not is_source:
            run.forget(args)  # they are filled with what other ranks have
    if name == "torch.distributed.destroy_process_group":
        run.has_group, run.joined_as = False, None
        return (None,)
    if name == "torch.device":
        return (_device(args, keywords),)
    return None


def _device(args: list[Any], keywords: dict[str, Any]) -> Record:
    """Return a device, with its type and index as far as they are known."""
    kind = args[0] if args else keywords.get("type", UNKNOWN)
    index = args[1] if len(args) > 1 else keywords.get("index")
    made = Record(DEVICE)
    if type(kind) is int:
        kind, index = "cuda", kind
    if isinstance(kind, str):
        kind, _, number = kind.partition(":")
        index = int(number) if number.isdigit() else index
    made.content.update(type=kind if isinstance(kind, str) else UNKNOWN, index=index)
    return made


def start_process(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Record:
    """Follow what another process does; of several on a node, the one that is followed is one of them."""
    target, given = keywords.get("target"), run.items(keywords.get("args", ()))
    run.started += 1
    is_followed = run.started <= _MOST_ALIKE if run.process is None else run.started - 1 == run.process.local_rank
    if is_followed:
        run.exists = True
        run.call(target, given or [], {}, is_open=given is None)
    return Record(External("multiprocessing.Process"), is_open=True)
