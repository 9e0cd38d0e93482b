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
    """A known text: its pattern, meaning and hint; `{0}`, `{1}` … in the meaning are the pattern's groups."""

    pattern: str
    meaning: str
    hint: str


# The first that fits counts: what breaks a job stands before what a job that is broken already says.
# The texts are those of torch 2.1 to 2.15 and of argparse.
TABLE = (
    _Row(
        r"code could not be fetched: .*(?:is not the file that was|Compressed file|[Tt]he archive|manifest in the store"
        r"|than .*promised|Not a gzipped|CRC check failed|[Ee]rror -3 while|invalid header"
        r"|start script in the store differs)",
        "the stored files differ from the upload",
        "submit the job with `jobsubmit create`, which uploads every file again (rerun does not); if code_dir is in a "
        "bucket, upload it again: jobsubmit upload DIR URI --recheck",
    ),
    _Row(
        r"code could not be fetched: .*CERTIFICATE_VERIFY_FAILED",
        "the node does not trust the store's certificate",
        "set store.ca_bundle (--ca-bundle for `upload`) to the certificate file of the authority that signed it",
    ),
    _Row(
        r"Timed out after \d+ seconds waiting for clients\. (\d+)/(\d+) clients joined",
        "only {0} of {1} processes joined",
        "compare resources.nodes with what started: a node or a process is missing, or the job expects too many",
    ),
    _Row(
        r"wait timeout.*keys: /default_pg/\d+//\w+//\d+/(\d+)",
        "rank {0} never joined the process group",
        "check the log of that rank; if there is none, two processes may have the same rank",
    ),
    _Row(
        r"Expected: \d+, Got: 1347703880",
        "an HTTP server answered on the port of the first node",
        "submit the job again: on the local backend and on Slurm it then uses another port; if that does not help, "
        "find the program that uses this port on the first node, or the proxy between the nodes",
    ),
    _Row(
        r"EADDRINUSE|[Aa]ddress already in use|failed to listen on any local network address",
        "a port is already in use",
        "if it is the port of the rendezvous, another job uses it, or two processes both run as rank 0; else find the "
        "program that uses it: ss -ltnp",
    ),
    _Row(
        r"network addresses of \(([^,]+), \d+\) cannot be retrieved|gaierror|Name or service not known",
        "a host name cannot be resolved",
        "see its last lines for the name: if it is a node, check /etc/hosts and DNS there (getent hosts NAME); if it "
        "is a server, check whether the nodes have access to the internet",
    ),
    _Row(
        r"client socket has timed out .*connect to \(([^,]+), (\d+)\)",
        "no connection to rank 0 at {0}, port {1}",
        "check the log of node 0: rank 0 did not start, or cannot be reached",
    ),
    _Row(
        r"connectFullMesh failed.*remote=\[127\.",
        "a node's own name resolves to a loopback address, so the other nodes cannot reach it",
        "correct /etc/hosts on that node, or set GLOO_SOCKET_IFNAME to the interface between the nodes",
    ),
    _Row(
        r"have NCCL built in|not compiled with CUDA enabled",
        "the torch of the nodes is built for CPUs only",
        "install the build of torch for CUDA on the nodes, or use the gloo backend and the CPU where "
        "torch.cuda.is_available() is false",
    ),
    _Row(
        r"ProcessGroupNCCL is only supported with GPUs|requires at least one CUDA device"
        r"|Found no NVIDIA driver|No CUDA GPUs",
        "the code needs a GPU, and this node has none",
        "request GPUs (Slurm: backend.gpus_per_node; Volcano: nvidia.com/gpu in backend.resources; ModelArts: "
        "resources.flavor), or use the gloo backend and the CPU where torch.cuda.is_available() is false",
    ),
    _Row(
        r"Duplicate GPU detected",
        "two processes of a node use the same GPU",
        'select the GPU before the first collective: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); and start '
        "no more processes on a node than it has GPUs (resources.nproc_per_node)",
    ),
    _Row(
        r"Bootstrap : no socket interface found",
        "NCCL found no network interface that it may use",
        "correct NCCL_SOCKET_IFNAME, or remove it; this shows the interfaces of the node: ip address",
    ),
    _Row(
        r"No backend type associated with device type (\w+)",
        "a collective got a tensor on the device {0}, which the backend of the process group does not serve",
        "move the tensor first: NCCL takes tensors on GPUs, and Gloo those on the CPU; for both kinds, use "
        'init_process_group("cpu:gloo,cuda:nccl")',
    ),
    _Row(
        r"invalid device ordinal",
        "the code selected a GPU that this node does not have",
        "select the GPU by LOCAL_RANK, not by RANK, and start no more processes on a node than it has GPUs "
        "(resources.nproc_per_node)",
    ),
    _Row(
        r"device-side assert triggered",
        "a check in a GPU kernel failed: mostly an index, a label or a token that is out of range",
        "see the lines with `Assertion` in the log of that rank. The stack can be wrong; it is right with "
        'env: {CUDA_LAUNCH_BLOCKING: "1"}',
    ),
    _Row(
        r"CUDA error: an illegal memory access",
        "a GPU kernel used memory that it must not use",
        'the stack can be wrong; it is right with env: {CUDA_LAUNCH_BLOCKING: "1"}. Custom kernels and packages built '
        "for another CUDA version are common causes",
    ),
    _Row(
        r"uncorrectable ECC error|fallen off the bus",
        "a GPU of the node is faulty",
        "submit the job again without this node, and tell whoever runs the machines",
    ),
    _Row(
        r"Cannot re-initialize CUDA in forked subprocess",
        "a forked process used the GPU",
        'do not use the GPU in a Dataset or a collate function, or pass multiprocessing_context="spawn" to DataLoader; '
        'start processes of your own with multiprocessing.get_context("spawn")',
    ),
    _Row(
        r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",
        "the boot file reads {0}, which only a launcher sets",
        "use mode: torchrun (or launch) with boot_file, and without `command`, which replaces the launcher; or have "
        "the boot file call mp.spawn and pass init_method, world_size and rank",
    ),
    _Row(
        r"unrecognized arguments: .*--local[-_]rank",
        "the boot file does not accept --local-rank, which its launcher passes",
        "declare both --local-rank and --local_rank; or read LOCAL_RANK from the environment and keep the launcher "
        "from passing the argument: remove `local_rank: argument` from the job file, or use torchrun (in `command`: "
        "add --use_env)",
    ),
    _Row(
        r"the following arguments are required: .*?--(world_size|rank|init_method)",
        "the boot file requires --{0}, which was not passed",
        "read it from the environment, which a launcher sets; only mode: spawn passes world_size, rank and init_method",
    ),
    _Row(
        r"ambiguous option: (\S+) could match .*--(?:log-dir|log_dir|nnodes|run-path|run_path|rdzv|master|node)",
        "the launcher read {0}, an argument of the boot file, as one of its own",
        "write -- before the boot file in `command`: torchrun … -- train.py",
    ),
    _Row(
        r"unrecognized arguments: (.+)",
        "the boot file does not accept the arguments {0}",
        "declare them in the boot file, or remove them from the job file (hyperparameters, args; inputs and outputs: "
        "as: env). Mode spawn itself adds --world_size, --rank and --init_method: declare these, or use mode: torchrun",
    ),
    _Row(
        r"finished its bootstrapping phase|freeze_support\(\)",
        "the boot file starts processes as soon as it is imported",
        'move the code that starts them below: if __name__ == "__main__":',
    ),
    _Row(
        r"CUDA out of memory|OutOfMemoryError",
        "a GPU ran out of memory",
        "reduce the batch size, or use GPUs with more memory",
    ),
    _Row(
        r"/dev/shm/.*No space left on device|No space left on device.*/dev/shm/|out of shared memory"  # noqa: S108
        r"|insufficient shared memory|unable to write to file </torch_",
        "the shared memory (/dev/shm) of the node is full",
        "use fewer data workers, or make it larger (Volcano: backend.shm_size)",
    ),
    _Row(r"No space left on device", "a disk of the node is full", "write less to it, or choose a larger disk"),
    _Row(
        r"jobsubmit: the setup ended with exit code (\d+)",
        "the job's `setup` failed with exit code {0}, before the training started",
        "see its output above; to try it, run in the code directory: bash -e -o pipefail -c 'LINES'",
    ),
    _Row(
        r"jobsubmit: the packages could not be installed",
        "a package of the job's `requirements` could not be installed on the node",
        "see the output of pip for which one; correct its name or version, or check that the node reaches the package "
        "index",
    ),
    _Row(
        r"No module named '([^']+)'",
        "the module {0} was not found on the node",
        "add it to the file that `requirements` names, or install it for the Python of the nodes; a module of your own "
        "must be in code_dir: `jobsubmit bundle --list` shows what is uploaded",
    ),
    _Row(
        r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'",
        "the module {1} has no {0}",
        "correct the name, or install a version of the module that has it; if the module is your own, check for a "
        "circular import",
    ),
    _Row(
        r"Weights only load failed",
        "torch.load refuses a checkpoint that contains more than tensors: weights_only is the default since torch 2.6",
        "pass weights_only=False if you trust the file, or save only the state dict",
    ),
    _Row(
        r"Error\(s\) in loading state_dict for (\w+)",
        "the checkpoint does not match the model: its keys or shapes differ from those of {0}",
        "build the model as it was when the checkpoint was saved; if the keys begin with `module.`, they come from "
        "DistributedDataParallel: save and load model.module",
    ),
    _Row(
        r"KeyError: '([\w.]*state_dict|(?:module|model|optimizer|state)[\w.]*)'",
        "the checkpoint has no entry {0}",
        "print its keys: torch.load(path, map_location='cpu').keys(); another version of the code may have written it",
    ),
    _Row(
        r"(?m)^(?:\[rank\d+\]: )?(?:numpy\S*\.)?_?(?:Array)?MemoryError",
        "the process asked for more memory than its machine or container has",
        "reduce the batch size, use fewer data workers, or read the data in chunks",
    ),
    _Row(
        r"FileNotFoundError: [^\n]*?['\"]([^'\"\n]+)['\"]",
        "the file {0}, or its folder, is not on the node",
        "if the code writes the file, create its folder first: os.makedirs(FOLDER, exist_ok=True); if it reads the "
        "file, put it into the code directory, where relative paths start, or name its folder in `inputs`",
    ),
    _Row(
        r"op\.preamble\.length <= op\.nbytes",
        "the ranks do not call the same collectives, or exchange tensors of different sizes",
        "call the same ones on every rank, in the same order and with the same shapes: look for a call inside a "
        "condition, in a loop of a different length, or on a last, smaller batch",
    ),
    _Row(
        r"params\[\d+\] in this process .*appears not to match",
        "the ranks have different models",
        "build the same model on every rank, from the same configuration",
    ),
    _Row(
        r"Expected to have finished reduction in the prior iteration",
        "some parameters were not used to compute the loss",
        "remove them, or pass find_unused_parameters=True to DistributedDataParallel",
    ),
    _Row(
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)",
        "torch gave up on collective {0} ({1}): another rank did not call it, called a different one, or hangs",
        "call the same collectives on every rank, in the same order and with the same shapes. With `hang_after`, "
        "jobsubmit ends such a job and shows where each rank is",
    ),
    _Row(
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        "a rank waited for another one that never answered: it skipped a collective call, or hangs",
        "call the same collectives on every rank; torch.distributed.monitored_barrier reports the missing ranks",
    ),
    _Row(
        r"Connection closed by peer|Connection reset by peer|[Bb]roken pipe"
        r"|ncclRemoteError|NCCL communicator was aborted",
        "this process lost a connection: usually to another process of the job, which ended",
        "find the process that ended first: `jobsubmit events JOB` shows when each one ended; if it was a download, "
        "try again",
    ),
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
        "if one rank is named, check what it waits for; if the ranks wait in different collectives, make every rank "
        "call the same ones, in the same order; if NCCL is connecting the ranks, check that the nodes reach each other "
        "(NCCL_SOCKET_IFNAME, firewalls). `jobsubmit report JOB --html FILE` shows the stacks of all ranks (not "
        "on ModelArts)",
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
            return Diagnosis(row.meaning.format(*groups), row.hint)
    return SIGNALS.get(signal) if signal is not None else None
