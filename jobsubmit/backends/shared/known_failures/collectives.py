"""Failures of collectives: ranks that do not agree, or lost each other."""

from __future__ import annotations

from jobsubmit.backends.shared.known_failures.known_failure import KnownFailure

ROWS = (
    KnownFailure(
        r"Ranks? ([\d, ]+) failed to pass monitoredBarrier",
        "rank {0} did not come to monitored_barrier in time",
        "see what that rank did then: `jobsubmit logs JOB --rank RANK`",
    ),
    KnownFailure(
        r"Global rank (\d+) is not part of group",
        "a collective names rank {0}, which is not in its group",
        "src and dst are ranks of the whole job: name one of the group, such as dist.get_global_rank(group, 0), or "
        "pass group_src=0",
    ),
    KnownFailure(
        r"op\.preamble\.length <= op\.nbytes|Detected mismatch between collectives on ranks",
        "the ranks do not call the same collectives, or exchange tensors of different sizes",
        "call the same ones on every rank, in the same order and with the same shapes: look for a call inside a "
        "condition, in a loop of a different length, or on a last, smaller batch",
    ),
    KnownFailure(
        r"params\[\d+\] in this process .*appears not to match|DDP expects same model across all ranks",
        "the ranks have different models",
        "build the same model on every rank, from the same configuration",
    ),
    KnownFailure(
        r"Expected to have finished reduction in the prior iteration",
        "some parameters were not used to compute the loss",
        "remove them, or pass find_unused_parameters=True to DistributedDataParallel",
    ),
    KnownFailure(
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)",
        "torch gave up on collective {0} ({1}): another rank did not call it, called a different one, or hangs",
        "call the same collectives on every rank, in the same order and with the same shapes. With `hang_after`, "
        "jobsubmit ends such a job and shows where each rank is",
    ),
    KnownFailure(
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        "a rank waited for another one that never answered: it skipped a collective call, or hangs",
        "call the same collectives on every rank; torch.distributed.monitored_barrier reports the missing ranks",
    ),
    KnownFailure(
        r"(nccl(?:UnhandledCudaError|SystemError|InternalError|InvalidUsage|InvalidArgument))",
        "NCCL failed: {0}",
        "see the lines with `NCCL WARN` in the logs of the job; with NCCL_DEBUG=INFO in `env` there are more",
    ),
    KnownFailure(
        r"Connection closed by peer|Connection reset by peer|[Bb]roken pipe"
        r"|ncclRemoteError|NCCL communicator was aborted",
        "this process lost a connection: usually to another process of the job, which ended",
        "find the process that ended first: `jobsubmit events JOB` shows when each one ended; if it was a download, "
        "try again",
    ),
)
