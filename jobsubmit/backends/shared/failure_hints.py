"""What torch's and the launchers' messages mean, and what to do about them: one table, easy to extend."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Diagnosis(NamedTuple):
    """What a failure's text means, and what to do next."""

    meaning: str
    hint: str


class _Row(NamedTuple):
    """Know a text by its pattern; `{0}`, `{1}` … in meaning and hint are the pattern's groups."""

    pattern: str
    meaning: str
    hint: str


# The first that fits counts: what breaks a job stands before what a job that is broken already says.
# The texts are those of torch 2.1 to 2.15 and of argparse.
TABLE = (
    _Row(
        r"code could not be fetched: .*(?:is not the file that was|Compressed file|[Tt]he archive|manifest in the store"
        r"|than .*promised|Not a gzipped|CRC check failed|[Ee]rror -3 while|invalid header)",
        "what lies in the store is not what was uploaded",
        "submit it again: all of it is sent again then",
    ),
    _Row(
        r"code could not be fetched: .*CERTIFICATE_VERIFY_FAILED",
        "the node knows nobody who has signed the store's certificate",
        "name the file of the authority: store.ca_bundle (--ca-bundle for `upload`)",
    ),
    _Row(
        r"Timed out after \d+ seconds waiting for clients\. (\d+)/(\d+) clients joined",
        "only {0} of {1} processes came together",
        "a node or a process is missing, or the job expects too many: compare resources.nodes with what was started",
    ),
    _Row(
        r"wait timeout.*keys: /default_pg/\d+//\w+//\d+/(\d+)",
        "rank {0} never came to the others",
        "see its log; if it is missing everywhere, two processes may have the same rank",
    ),
    _Row(
        r"Expected: \d+, Got: 1347703880",
        "an HTTP server answered where the first node should listen",
        "the port is another program's, or a proxy stands between the nodes: choose another port",
    ),
    _Row(
        r"EADDRINUSE|[Aa]ddress already in use|failed to listen on any local network address",
        "the port that the nodes meet on is taken",
        "another job has it, or two processes both believe to be rank 0",
    ),
    _Row(
        r"network addresses of \(([^,]+), \d+\) cannot be retrieved|gaierror|Name or service not known",
        "the name of a node cannot be resolved",
        "check that the nodes can resolve each other's names (getent hosts NAME)",
    ),
    _Row(
        r"client socket has timed out .*connect to \(([^,]+), (\d+)\)",
        "nothing answers at {0}, port {1}, where rank 0 should be",
        "rank 0 did not start or cannot be reached; see the log of node 0",
    ),
    _Row(
        r"connectFullMesh failed.*remote=\[127\.",
        "a node's own name leads to a loopback address, so the others cannot reach it",
        "correct /etc/hosts there, or set GLOO_SOCKET_IFNAME to the interface between the nodes",
    ),
    _Row(
        r"ProcessGroupNCCL is only supported with GPUs|requires at least one CUDA device|have NCCL built in"
        r"|Found no NVIDIA driver|No CUDA GPUs",
        "the code wants a GPU, and this node has none",
        "use the gloo backend and the CPU where torch.cuda.is_available() is false, or choose a flavor with GPUs",
    ),
    _Row(
        r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",
        "the boot file reads {0}, which only a launcher sets",
        "use mode: torchrun (or launch), or have the boot file call mp.spawn and pass init_method, world_size and rank",
    ),
    _Row(
        r"unrecognized arguments: .*--local[-_]rank",
        "the boot file does not know --local-rank, which its launcher passes",
        "read LOCAL_RANK from the environment, or declare --local-rank and --local_rank both",
    ),
    _Row(
        r"the following arguments are required: .*?--(world_size|rank|init_method)",
        "the boot file requires --{0}, which was not passed",
        "only mode: spawn passes world_size, rank and init_method; under a launcher read the environment",
    ),
    _Row(
        r"unrecognized arguments: (.+)",
        "the boot file does not know the arguments {0}",
        "declare them there, or take them out of hyperparameters",
    ),
    _Row(
        r"finished its bootstrapping phase|freeze_support\(\)",
        "the boot file starts processes as soon as it is imported",
        'put what starts them below: if __name__ == "__main__":',
    ),
    _Row(
        r"CUDA out of memory|OutOfMemoryError",
        "a GPU's memory is full",
        "make the batch smaller, or choose a flavor with more memory",
    ),
    _Row(r"No space left on device", "a disk of the node is full", "write less there, or choose a larger disk"),
    _Row(
        r"jobsubmit: the setup ended with exit code (\d+)",
        "the job's `setup` failed with exit code {0}, before the training was started",
        "the lines above are its own; try it in the code directory: bash -e -o pipefail -c 'LINES'",
    ),
    _Row(
        r"jobsubmit: the packages could not be installed",
        "a package of the job's `requirements` could not be installed on the node",
        "pip's own lines say which; correct its name or version, or see whether the node reaches the package index",
    ),
    _Row(
        r"No module named '([^']+)'",
        "the module {0} is not there",
        "name it in a file of packages that `requirements` names, or install it for the Python of the nodes; a module "
        "of your own must be in code_dir: `jobsubmit bundle --list` shows what is uploaded",
    ),
    _Row(
        r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'",
        "{1} has no {0}",
        "correct the name, or install the version of {1} that has it; if {1} is a file of yours that imports the one "
        "that imports it, part them",
    ),
    _Row(
        r"Weights only load failed",
        "torch.load refuses a checkpoint that holds more than tensors: weights_only is on since torch 2.6",
        "pass weights_only=False if you trust the file, or save the state dict alone",
    ),
    _Row(
        r"Error\(s\) in loading state_dict for (\w+)",
        "the checkpoint is not of this model: its keys or shapes differ from those of {0}",
        "keys that begin with `module.` were saved from DistributedDataParallel: save and load model.module; otherwise "
        "build the model as it was when it was saved",
    ),
    _Row(
        r"KeyError: '([\w.]*state_dict|(?:module|model|optimizer|state)[\w.]*)'",
        "the checkpoint has no entry {0}",
        "print its keys: torch.load(path, map_location='cpu').keys(); it may be of another version of the code",
    ),
    _Row(
        r"(?m)^(?:\[rank\d+\]: )?(?:numpy\S*\.)?_?(?:Array)?MemoryError",
        "the process asked for more memory than its machine or container has",
        "make the batch smaller, use fewer data workers, or read the data piece by piece",
    ),
    _Row(
        r"FileNotFoundError: [^\n]*?['\"]([^'\"\n]+)['\"]",
        "the file {0} is not on the node",
        "a relative path starts in the code directory: put the file there, or name its folder in `inputs`",
    ),
    _Row(
        r"op\.preamble\.length <= op\.nbytes",
        "the ranks do not call the same collectives, or exchange tensors of different sizes",
        "every rank must call the same ones, in the same order and with the same shapes: look for one that stands in a "
        "condition, in a loop of another length, or gets the last, smaller batch",
    ),
    _Row(
        r"params\[\d+\] in this process .*appears not to match",
        "the ranks have different models",
        "build the same model on every rank, from the same configuration",
    ),
    _Row(
        r"Expected to have finished reduction in the prior iteration",
        "some parameters took no part in the loss",
        "remove them, or pass find_unused_parameters=True to DistributedDataParallel",
    ),
    _Row(
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        "a rank waited for another, which never came: it skipped a collective call, or hangs",
        "call the same collectives on every rank; torch.distributed.monitored_barrier names who is missing",
    ),
    _Row(
        r"Connection closed by peer|Connection reset by peer|[Bb]roken pipe",
        "another process of the job ended, and took this one with it",
        "look for the one that ended first: jobsubmit events shows when each did",
    ),
)

_CRASHED = Diagnosis(
    "the process crashed in compiled code",
    "the stack under `Fatal Python error` in its log says where; often a package was built for another torch or CUDA",
)
_SIGNALS: Mapping[int, Diagnosis] = {
    signals.SIGKILL: Diagnosis(
        "the process was killed from outside; often that is the kernel, because memory was full",
        "watch its memory (dmesg, the platform's monitor), make the batch smaller, or use fewer data workers",
    ),
    **dict.fromkeys((signals.SIGSEGV, signals.SIGBUS, signals.SIGFPE, signals.SIGILL), _CRASHED),
}


# What the state of a job itself says, whatever its processes said last.
_REASONS = {
    "OOM": Diagnosis(
        "the kernel killed the process: the memory of its machine or container was full",
        "make the batch smaller, use fewer data workers, or choose a flavor with more memory",
    ),
    "ENDED_EARLY": Diagnosis(
        "that rank came to its end while others still trained with it",
        "every rank must take the same number of steps: compare how much data each has (drop_last=True, "
        "DistributedSampler), and look for a return, break or exit that only some of them reach",
    ),
    "HANG": Diagnosis(
        "no process wrote anything or used its CPU any more",
        "see what that rank waits for; if all wait in a collective, they call different ones: every rank must call the "
        "same, in the same order. The stacks of all ranks are in stacks/ of the job's folder",
    ),
}


def diagnose(lines: Iterable[str], *, signal: int | None = None, reason: str = "") -> Diagnosis | None:
    """Return what a failure means, or None where nobody knows.

    It is told by the job's reason, by a process's last words, or by the signal that ended it.
    """
    if reason in _REASONS:
        return _REASONS[reason]
    text = "\n".join(lines)
    for row in TABLE:
        if found := re.search(row.pattern, text):
            groups = [group or "?" for group in found.groups()]
            return Diagnosis(row.meaning.format(*groups), row.hint)
    return _SIGNALS.get(signal) if signal is not None else None
