"""The commands that show what ModelArts has to offer: flavors, engines."""

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
    """List the machine types that ModelArts has for training jobs.

    Region, project and endpoint are those of the job file's backend, else of your configuration.
    """
    found = _service(job, set_).flavors()
    if out.json:
        out.document(found)
        return
    _show([{"flavor": flavor.get("flavor_id"), **_parts(flavor.get("flavor_info") or {})} for flavor in found])
    out.talk("next: resources: {flavor: …} in the job file")


def engines(job: JobFile = DEFAULT_JOB_FILE, set_: Set = None) -> None:
    """List the preset frameworks that ModelArts has for mode spawn.

    Region, project and endpoint are those of the job file's backend, else of your configuration.
    """
    found = _service(job, set_).engines()
    if out.json:
        out.document(found)
        return
    _show([{"name": engine.get("engine_name"), "version": engine.get("engine_version")} for engine in found])
    out.talk("next: framework: {name: …, version: …} in the job file")


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
        hint = "name a job file whose backend is {kind: modelarts, …}, or make that your configuration's default"
        raise UsageError("no job file and no configuration says which ModelArts is meant", hint)
    return ModelArts(identity(spec))


def _parts(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a machine has, in a line a part."""
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
    """Write rows under their names."""
    if not rows:
        out.talk("there are none")
        return
    out.data(columns([list(rows[0]), *([str(value or "") for value in row.values()] for row in rows)]))
