"""The directories of a job: inputs, outputs, checkpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from jobsubmit.agent import node_contract as contract
from jobsubmit.common.store_address import REMOTE_SCHEMES

if TYPE_CHECKING:
    from jobsubmit.spec.job_spec import JobSpec, PassedAs

_CHECKPOINT_SECONDS = 60


class Mount(NamedTuple):
    """A local directory of the nodes; a variable of the node contract holds its path.

    The start script passes the path on, as a hyperparameter or as a variable of the user's choice. The content is
    uploaded `every` so many seconds, or never (0).
    """

    kind: Literal["input", "output", "checkpoint"]
    name: str
    uri: str
    variable: str
    passed_as: PassedAs | None
    every: int = 0

    @property
    def field(self) -> str:
        """Return the field of the job file that it comes from."""
        return {"input": "inputs", "output": "outputs", "checkpoint": "checkpoint_dir"}[self.kind]

    @property
    def declaration(self) -> str:
        """Return a pattern for its declaration as an argument, if the boot file decides; else nothing."""
        name = re.sub("[-_]", "[-_]", self.name.replace(".", "[.]"))
        return f"[\"']--{name}[\"']" if self.passed_as is None else ""


def find_mounts(spec: JobSpec) -> tuple[Mount, ...]:
    """Return the directories of a job: inputs, outputs and the one of its checkpoints."""
    inputs, outputs = contract.INPUT_PREFIX, contract.OUTPUT_PREFIX
    found = [Mount("input", d.name, d.uri, _variable(inputs, d.name), d.passed_as) for d in spec.inputs]
    found += [Mount("output", d.name, d.uri, _variable(outputs, d.name), d.passed_as, d.every) for d in spec.outputs]
    if spec.checkpoint_dir:
        own = spec.checkpoint_dir
        every = _CHECKPOINT_SECONDS if own.uri.startswith(REMOTE_SCHEMES) else 0
        found.append(Mount("checkpoint", own.name, own.uri, str(contract.CHECKPOINTS), own.passed_as, every))
    return tuple(found)


def _variable(prefix: str, name: str) -> str:
    return prefix + name.replace("-", "_")
