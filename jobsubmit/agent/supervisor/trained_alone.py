"""What a job that succeeded did not do: train at all, or train as one."""

from __future__ import annotations

from ..node_contract import NPROC_PER_NODE

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from ..recovery.first_failure import RankTable
    from .job import Job

_NO_RANKS = (
    "the boot file started no training process that jobsubmit noticed. If it should start some: one process per GPU is "
    "none on a machine without GPUs; start %s processes instead" % NPROC_PER_NODE
)
_NOT_JOINED = (
    "no process joined a process group: they exchanged nothing, and each one trained on its own, or not at all. "
    "If the code calls torch.distributed.init_process_group, or a library that does, it ended before that: see its "
    "last lines; else it must call it"
)
_NOTHING_EXCHANGED = (
    "the processes joined a process group, but no process used it: each one trained on its own. "
    "Check that the code wraps the model, for example in DistributedDataParallel, and that its library uses the group: "
    "Accelerate and Trainer do so on CPUs only with ACCELERATE_USE_CPU=true"
)


def find_note(job: Job, table: RankTable | None) -> str | None:
    """Return what to say of a job that succeeded, if no process trained, or if several trained without each other."""
    ranks = table.unfailed() if table else []
    joined = [rank for rank in ranks if rank.has_joined]
    if job.request["mode"] == "spawn" and not job.node_of_rank:
        return _NO_RANKS
    if table is None or table.others_have_joined:
        return None
    if not joined:
        return _NOT_JOINED if len(ranks) > 1 and job.request["mode"] != "spawn" else None
    whole = len(joined) if job.scope.is_elastic else len(joined) * job.request["nodes"] // len(job.nodes)
    largest = max(rank.group_size for rank in joined)
    if 0 < largest < whole:
        return (
            "the %d processes of the job did not join one process group: the largest group holds %d. Each group "
            "trained on its own. The code must call torch.distributed.init_process_group with the world size of the "
            "whole job" % (whole, largest)
        )
    if whole > 1 and all(rank.has_exchanged is False for rank in joined):
        return _NOTHING_EXCHANGED
    return None
