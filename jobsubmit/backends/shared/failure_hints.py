"""What the last lines of a failed process mean, and what to do about them."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jobsubmit.backends.shared.known_failures import collectives, files, gpus, nodes, packages, starting, training


class Diagnosis(NamedTuple):
    """What a failure's text means, and what to do next."""

    meaning: str
    hint: str


# The first that fits counts: what breaks a job stands before what a job that is broken already says.
# The texts are those of torch 2.1 to 2.15 and of argparse.
TABLE = (
    *starting.ROWS,
    *gpus.ROWS,
    *nodes.ROWS,
    *packages.ROWS,
    *training.ROWS,
    *files.ROWS,
    *collectives.ROWS,
)

_CRASHED = Diagnosis(
    "the process crashed in compiled code",
    "see the stack after `Fatal Python error` in its log; often a package was built for another torch or CUDA version",
)
SIGNALS: Mapping[int, Diagnosis] = {
    signals.SIGKILL: Diagnosis(
        "the process was killed from outside, often by the kernel because memory was full",
        "check its memory use (dmesg, the platform's monitor), reduce the batch size, or use fewer data workers",
    ),
    **dict.fromkeys((signals.SIGSEGV, signals.SIGFPE, signals.SIGILL), _CRASHED),
    signals.SIGABRT: Diagnosis(
        "the process ended itself: a check in compiled code failed",
        "see the lines above its stack: often a failed assertion in C++, or torch's watchdog of collectives",
    ),
    signals.SIGBUS: Diagnosis(
        "the process could not use memory that it had mapped: usually the shared memory (/dev/shm) of the node is full",
        "use fewer data workers, or make it larger (Volcano: backend.shm_size); or a file became shorter while the "
        "process read it with mmap",
    ),
}


# What the state of a job itself says, whatever its processes said last.
REASONS = {
    "OOM": Diagnosis(
        "the kernel killed the process: the memory of its machine or container was full",
        "reduce the batch size, use fewer data workers, or request more memory (Slurm: backend.mem; Volcano: memory in "
        "backend.resources; ModelArts: another resources.flavor)",
    ),
    "ENDED_EARLY": Diagnosis(
        "that rank ended while other ranks were still training with it",
        "run the same number of steps on every rank: compare how much data each rank has (drop_last=True, "
        "DistributedSampler), and look for a return, break or exit that only some ranks reach",
    ),
    "HANG": Diagnosis(
        "no process wrote output or used CPU time, except to wait in NCCL",
        "if all ranks wait in init_process_group, look for code that changes RANK, WORLD_SIZE, MASTER_ADDR or "
        "MASTER_PORT; if one rank is named, check what it waits for; if the ranks wait in different collectives, make "
        "every rank call the same ones, in the same order; if NCCL is connecting the ranks, check that the nodes reach "
        "each other (NCCL_SOCKET_IFNAME, firewalls). `jobsubmit report JOB --html FILE` shows the stacks of all ranks "
        "(not on ModelArts)",
    ),
}


def diagnose(lines: Iterable[str], *, signal: int | None = None, reason: str = "") -> Diagnosis | None:
    """Return what a failure means, or None if it is unknown.

    The job's reason decides first, then the last lines of the process, then the signal that ended it.
    """
    if reason in REASONS:
        return REASONS[reason]
    text = "\n".join(lines)
    for row in TABLE:
        if found := re.search(row.pattern, text):
            groups = [group or "?" for group in found.groups()]
            return Diagnosis(_with_groups(row.meaning, groups), _with_groups(row.hint, groups))
    return SIGNALS.get(signal) if signal is not None else None


def _with_groups(text: str, groups: Sequence[str]) -> str:
    """Return a text with a pattern's groups in place of `{0}`, `{1}` …; other braces stay: `env: {A: "1"}`."""
    return re.sub(r"\{(\d)\}", lambda found: groups[int(found[1])], text)
