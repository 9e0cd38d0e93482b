"""plan.json in a job's directory: the decisions about a job, for people and for later commands."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsubmit.agent.atomic_write import read_file
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.json_form import read_fields
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import BackendError
from jobsubmit.plan.mounts import Mount

if TYPE_CHECKING:
    from jobsubmit.plan.launch_plan import LaunchPlan


class KeptPlan(NamedTuple):
    """The part of a plan that is read back: its store, and the fields of the same names."""

    backend: dict[str, Any]
    store: StoreAddress
    profile: str | None
    metrics: dict[str, str]
    mounts: list[Mount]
    checkpoints_of: str
    env: list[tuple[str, str]]


def plan_text(plan: LaunchPlan) -> str:
    """Return the content of the file."""
    mounts = [mount._asdict() for mount in plan.mounts]
    values = {**asdict(plan), "store": plan.store._asdict(), "mounts": mounts, "metrics": dict(plan.metrics)}
    return json.dumps(values, default=_jsonable, ensure_ascii=False, indent=1) + "\n"


def read_plan(job_dir: Path) -> KeptPlan | None:
    """Return the plan of a job, or None if it was not submitted from this machine.

    Raises BackendError if the file cannot be read. Earlier versions wrote store and mounts as lists; then the mounts
    are not read back.
    """
    path = JobDirectory(job_dir).plan
    try:
        values = read_fields(read_file(path), {"backend": dict, "store": (list, dict)})
        store = values["store"]
        address = StoreAddress(**store) if isinstance(store, dict) else StoreAddress(*store)
        metrics, checkpoints_of = values.get("metrics") or {}, values.get("checkpoints_of") or ""
        mounts = [Mount(**mount) for mount in values.get("mounts", ()) if isinstance(mount, dict)]
        env = [(str(name), str(value)) for name, value in values.get("env") or ()]
        return KeptPlan(values["backend"], address, values.get("profile"), metrics, mounts, checkpoints_of, env)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise BackendError(
            f"{path} cannot be read: {error}", "check whether the job exists on its platform before you submit it again"
        ) from None


def _jsonable(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # of a Pydantic model
    return dump() if dump else str(value)
