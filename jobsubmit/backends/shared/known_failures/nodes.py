"""Failures of a node itself: disks, shared memory, limits."""

from __future__ import annotations

from jobsubmit.backends.shared.known_failures.known_failure import KnownFailure

ROWS = (
    KnownFailure(
        r"/dev/shm/.*No space left on device|No space left on device.*/dev/shm/|out of shared memory"  # noqa: S108
        r"|insufficient shared memory|unable to write to file </torch_",
        "the shared memory (/dev/shm) of the node is full",
        "use fewer data workers, or make it larger (Volcano: backend.shm_size)",
    ),
    KnownFailure(r"No space left on device", "a disk of the node is full", "write less to it, or choose a larger disk"),
    KnownFailure(
        r"Too many open files|received 0 items of ancdata",
        "a process has too many files open",
        'raise the limit on the nodes (ulimit -n), or call torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    KnownFailure(
        r"can't start new thread|pthread_create failed|fork: Resource temporarily unavailable",
        "the node allows no more threads or processes",
        "use fewer data workers, or raise the limit on the nodes (ulimit -u; in Kubernetes, the limit of "
        "processes of a pod)",
    ),
    KnownFailure(
        r"UnicodeDecodeError: 'ascii'|UnicodeEncodeError: 'ascii'",
        "the node reads and writes text as ASCII",
        'pass encoding="utf-8" to open(), or set env: {PYTHONUTF8: "1"}',
    ),
    KnownFailure(
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly|is killed)",
        "a worker process of a DataLoader was ended from outside",
        "often the memory of the node was full: use fewer workers; with num_workers=0, you see an error in "
        "the Dataset itself",
    ),
)
