"""What the processes of a job get from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from jobsubmit.check.installed.libraries import Libraries
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.spec.modes import Start

_OF_NODE = ("/tmp", "/dev/shm", "/scratch", "/local", "/raid", "/mnt/local")  # noqa: S108 - folders of users
SYSTEM = {"sys.platform": "linux", "os.name": "posix"}  # of the nodes
COUNT_GPUS = ("torch.cuda.device_count", "torch.accelerator.device_count")
ONLY_ON_MACS = ("torch.backends.mps.is_available", "torch.backends.mps.is_built", "torch.mps.is_available")
ASK_FOR_GPUS = (*COUNT_GPUS, "torch.cuda.is_available", "torch.accelerator.is_available")


def named_as_in_torch(name: str) -> str:
    """Return the name of a function of DeepSpeed's communication as torch.distributed has it; others as they are."""
    return name.replace("deepspeed.comm.", "torch.distributed.")


@dataclass(frozen=True)
class Facts:
    """What the processes of a job get from it.

    `environment` maps a variable to its value, to UNKNOWN where that is not known, to Several where it differs, and to
    None where it is not set; `argv` are the words after the boot file. `gpus` is per node, None if it is not known.
    `why_no_gpus` says why that is 0 where the nodes have GPUs that the job does not get.
    `rank` is that of a process among all; `options_of_node` are options that a command gives the number of the node,
    times these numbers.
    `torch_version` is that of the job file; `libraries` are those that are installed on the nodes, if that is known.
    A start command starts so many `copies` of the program on each node.
    `shared_folders` are the only ones that all nodes share, None where others may be shared as well.
    `may_be_set` are the variables that a node may have, of its shell or of the job; None where any other may be set.
    """

    mode: Start
    nodes: int
    nproc: int | None
    gpus: int | None
    environment: Mapping[str, Any]
    argv: tuple[str, ...]
    rank: Any = UNKNOWN
    options_of_node: Mapping[str, int] = field(default_factory=dict)
    why_no_gpus: str = ""
    torch_version: str | None = None
    libraries: Libraries = field(default_factory=Libraries)
    may_be_set: frozenset[str] | None = None
    copies: int = 1
    shared_folders: tuple[str, ...] | None = None

    def is_on_node(self, path: object) -> bool:
        """Return whether each node has an absolute path on a disk of its own, which the other nodes do not see."""
        text = str(path)
        if not isinstance(path, (str, PurePosixPath)) or not text.startswith("/"):
            return False
        shared = self.shared_folders
        is_apart = shared is not None and not any(f"{text}/".startswith(f"{one.rstrip('/')}/") for one in shared)
        return is_apart or text.startswith(_OF_NODE)

    @property
    def options_given(self) -> frozenset[str]:
        """Return the names of the options among the words after the boot file."""
        return frozenset(word.partition("=")[0] for word in self.argv if word.startswith("-"))

    @property
    def gpus_seen(self) -> Any:
        """Return how many GPUs a process sees, UNKNOWN if that is not known."""
        # Without a launcher, the program starts its processes itself, one for each GPU.
        started = UNKNOWN if self.has_launcher or not self.nproc else self.nproc
        return started if self.gpus is None else self.gpus

    @property
    def has_nccl(self) -> Any:
        """Return whether the installed torch is a build for CUDA, which has NCCL; UNKNOWN if that is not known."""
        folder = self.libraries.find("torch")
        builds = ("libtorch_cuda.so", "libtorch_hip.so")
        return UNKNOWN if folder is None else any((folder / "lib" / build).exists() for build in builds)

    @property
    def world_size(self) -> Any:
        """Return how many processes a launcher starts on all nodes, UNKNOWN if it does not or that is not known."""
        return UNKNOWN if self.nproc is None or not self.has_launcher else self.nodes * self.nproc

    @property
    def no_gpus(self) -> str:
        """Return what a message says where the nodes have no GPUs."""
        return f"the nodes get none: {self.why_no_gpus}" if self.why_no_gpus else "these nodes have none"

    @property
    def is_this_machine(self) -> bool:
        """Return whether the nodes are processes of this machine, with its files and variables."""
        return self.may_be_set is not None

    @property
    def has_launcher(self) -> bool:
        """Return whether one of torch's launchers starts the processes, and gives each its ranks."""
        return self.mode in ("launch", "torchrun")
