"""How the nodes of a torchrun job find each other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobsubmit.spec.job_spec import JobSpec, RdzvBackendName, TorchrunSpec

_TORCH_21 = re.compile(r"2\.1(\D|$)")


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous backend of torchrun, and the reason for it."""

    backend: RdzvBackendName
    reason: str


def choose_rendezvous(spec: JobSpec) -> Rendezvous | None:
    """Choose how torchrun's nodes find each other; None in the other modes."""
    if not isinstance(spec, TorchrunSpec):
        return None
    if spec.rdzv_backend is not None:
        return Rendezvous(spec.rdzv_backend, "chosen by rdzv_backend in the job file")
    if spec.resources.fewest < spec.resources.most:
        return Rendezvous("c10d", "the number of nodes may change, which static does not support")
    if spec.torch_version is None:
        return Rendezvous("static", "torch_version is not set, and static works with every version")
    if _is_torch_21(spec.torch_version):
        return Rendezvous("static", "PyTorch 2.1 needs static (platform documentation)")
    return Rendezvous("c10d", f"documented by the platform for torch {spec.torch_version}")


def rendezvous_notes(spec: JobSpec) -> tuple[str, ...]:
    """Return notes on settings that are allowed but known to fail."""
    if isinstance(spec, TorchrunSpec) and spec.rdzv_backend == "c10d" and _is_torch_21(spec.torch_version or ""):
        return ("rdzv_backend: the platform's documentation says that PyTorch 2.1 needs static, not c10d",)
    return ()


def _is_torch_21(version: str) -> bool:
    return _TORCH_21.match(version) is not None
