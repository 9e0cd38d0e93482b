"""A mode and a spec → the words that start training: what we inject, and how values are spelled."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jobsubmit.common.store_address import REMOTE_SCHEMES
from jobsubmit.spec.constraints import SINGLE_NODE_RANKS
from jobsubmit.spec.hyperparameter import Flag, HyperparameterValue
from jobsubmit.spec.model import JobSpec, PassedAs, RdzvBackendName, SpawnSpec, TorchrunSpec

_CHECKPOINT_SECONDS = 60
_TORCH_21 = re.compile(r"2\.1(\D|$)")


@dataclass(frozen=True)
class Rendezvous:
    """Name torchrun's rendezvous backend and say why it was chosen."""

    backend: RdzvBackendName
    reason: str


class Mount(NamedTuple):
    """Name a local directory of the nodes: a variable of the node contract tells the start script where it is.

    The script passes it on, as a hyperparameter or as a variable of the user's choice. What is in it is uploaded
    `every` so many seconds, or never (0).
    """

    kind: Literal["input", "output", "checkpoint"]
    name: str
    uri: str
    variable: str
    passed_as: PassedAs | None
    every: int = 0

    @property
    def field(self) -> str:
        """Return the field of the job file that it is from."""
        return {"input": "inputs", "output": "outputs", "checkpoint": "checkpoint_dir"}[self.kind]

    @property
    def declaration(self) -> str:
        """Return the pattern of the words that declare it as an argument, where the boot file is to be asked."""
        name = re.sub("[-_]", "[-_]", self.name.replace(".", "[.]"))
        return f"[\"']--{name}[\"']" if self.passed_as is None else ""


def mounts(spec: JobSpec) -> tuple[Mount, ...]:
    """Return the directories of a job: inputs, outputs and the one of its checkpoints."""
    found = [Mount("input", d.name, d.uri, f"JOBSUBMIT_INPUT_{d.name}", d.passed_as) for d in spec.inputs]
    found += [Mount("output", d.name, d.uri, f"JOBSUBMIT_OUTPUT_{d.name}", d.passed_as, d.every) for d in spec.outputs]
    if spec.checkpoint_dir:
        own = spec.checkpoint_dir
        every = _CHECKPOINT_SECONDS if own.uri.startswith(REMOTE_SCHEMES) else 0
        found.append(Mount("checkpoint", own.name, own.uri, "JOBSUBMIT_CHECKPOINT_DIR", own.passed_as, every))
    return tuple(found)


def arguments(spec: JobSpec) -> tuple[str, ...]:
    """Return what follows the boot file on its command line, known before the nodes are."""
    words = hyperparameter_words(spec)
    match spec:
        case SpawnSpec():
            return words
        case _:
            return (*words, *spec.args)


def hyperparameter_words(spec: JobSpec) -> tuple[str, ...]:
    """Return the words that the hyperparameters are."""
    return tuple(word for name, value in hyperparameters(spec).items() for word in _spelled(name, value))


def hyperparameters(spec: JobSpec) -> dict[str, HyperparameterValue]:
    """Return the hyperparameters of the request: the user's, and in preset mode on one node world_size=1 and rank=0.

    The trap: in preset mode `world_size` and `rank` count NODES; the boot file multiplies by the accelerators of its
    node. On one node the platform asks the user for both, on several it appends them itself, per node, and refuses
    them in the request (platform documentation, preset frameworks).
    """
    if isinstance(spec, SpawnSpec) and spec.resources.most == 1:
        return {**spec.hyperparameters, **SINGLE_NODE_RANKS}
    return dict(spec.hyperparameters)


def rendezvous(spec: JobSpec) -> Rendezvous | None:
    """Choose how torchrun's nodes find each other; None in the other modes."""
    if not isinstance(spec, TorchrunSpec):
        return None
    if spec.rdzv_backend is not None:
        return Rendezvous(spec.rdzv_backend, "chosen by rdzv_backend in the job file")
    if spec.resources.fewest < spec.resources.most:
        return Rendezvous("c10d", "the number of nodes may change, which static cannot")
    if spec.torch_version is None:
        return Rendezvous("static", "the job file names no torch_version, and static works with every version")
    if _is_torch_21(spec.torch_version):
        return Rendezvous("static", "PyTorch 2.1 needs static (platform documentation)")
    return Rendezvous("c10d", f"documented by the platform for torch {spec.torch_version}")


def rendezvous_notes(spec: JobSpec) -> tuple[str, ...]:
    """Say what is allowed but known to go wrong."""
    if isinstance(spec, TorchrunSpec) and spec.rdzv_backend == "c10d" and _is_torch_21(spec.torch_version or ""):
        return ("rdzv_backend: the platform's documentation says that PyTorch 2.1 needs static, not c10d",)
    return ()


def _is_torch_21(version: str) -> bool:
    return _TORCH_21.match(version) is not None


def _spelled(name: str, value: HyperparameterValue) -> list[str]:
    match value:
        case None:
            return []
        case Flag(flag=on):
            return [f"--{name}"] if on else []
        case bool():
            return [f"--{name}={str(value).lower()}"]
        case list():
            return [f"--{name}={json.dumps(value, ensure_ascii=False)}"]
        case _:
            return [f"--{name}={value}"]
