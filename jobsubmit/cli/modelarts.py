"""The commands that list what ModelArts offers: flavors, engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobsubmit.cli.console import columns, out
from jobsubmit.cli.job_file_options import DEFAULT_JOB_FILE, JobFile, Set
from jobsubmit.config import load_settings
from jobsubmit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from jobsubmit.backends.modelarts.client import ModelArts


def flavors(job: JobFile = DEFAULT_JOB_FILE, set_: Set = None) -> None:
    """List the machine types that ModelArts offers for training jobs.

    Uses the region, project and endpoint of the job file's backend, else of
    your configuration.
    """
    found = _service(job, set_).flavors()
    if out.json:
        out.document(found)
        return
    _show([{"flavor": flavor.get("flavor_id"), **_parts(flavor.get("flavor_info") or {})} for flavor in found])
    out.talk("next: set resources: {flavor: …} in the job file")


def engines(job: JobFile = DEFAULT_JOB_FILE, set_: Set = None) -> None:
    """List the preset frameworks that ModelArts offers for mode spawn.

    Uses the region, project and endpoint of the job file's backend, else of
    your configuration.
    """
    found = _service(job, set_).engines()
    if out.json:
        out.document(found)
        return
    _show([{"name": engine.get("engine_name"), "version": engine.get("engine_version")} for engine in found])
    out.talk("next: set framework: {name: …, version: …} in the job file")


def _service(job: Path, assignments: list[str] | None) -> ModelArts:
    from jobsubmit.backends.modelarts.client import ModelArts
    from jobsubmit.backends.modelarts.credentials import identity
    from jobsubmit.backends.modelarts.spec import ModelArtsBackendSpec
    from jobsubmit.cli.job_file import overrides, read_job

    settings = load_settings()
    spec = settings.default_backend
    if job != DEFAULT_JOB_FILE or job.exists() or assignments:
        spec = settings.backend(read_job(job, None, overrides(assignments=assignments)).spec)
    if not isinstance(spec, ModelArtsBackendSpec):
        hint = "give a job file with backend: {kind: modelarts, …}, or set that backend in your configuration"
        raise UsageError("neither the job file nor the configuration sets a modelarts backend", hint)
    return ModelArts(identity(spec))


def _parts(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CPUs, memory and accelerators of a machine type."""
    cpu, memory = info.get("cpu") or {}, info.get("memory") or {}
    parts: dict[str, Any] = {
        "cpus": cpu.get("core_num"),
        "memory": f"{memory.get('size', '')} {memory.get('unit', '')}".strip(),
    }
    kind = next((kind for kind in ("gpu", "npu") if info.get(kind)), "")
    device = info.get(kind) or {}
    parts["accelerators"] = f"{device.get('unit_num', '')} {device.get('product_name', '')}".strip()
    return parts


def _show(rows: list[dict[str, Any]]) -> None:
    """Write rows as a table."""
    if not rows:
        out.talk("ModelArts lists none")
        return
    out.data(columns([list(rows[0]), *([str(value or "") for value in row.values()] for row in rows)]))
