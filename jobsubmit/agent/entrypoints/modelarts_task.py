"""A node that is a task of a training job on ModelArts: all its lines go to the task's log, and at last its end.

The platform has brought the code, and gives the whole node contract itself. JOBSUBMIT_REQUEST says what the job is.
"""

from __future__ import annotations

import json
import os
import tempfile

from .. import files
from .. import run as agent
from ..log_forwarder import Teller, shortened
from ..recovery import job_outcome

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

REQUEST_VARIABLE = "JOBSUBMIT_REQUEST"
_PORT = "6060"  # the platform's own (platform documentation)


def run(script: str) -> int:
    """Run this node's part of the job, and tell of it; return the exit code for the platform."""
    request = _request()
    os.environ.setdefault("JOBSUBMIT_MASTER_PORT", _PORT)
    with tempfile.TemporaryDirectory(prefix="jobsubmit-task-") as folder:
        job_dir = agent.own_dir(folder)
        os.makedirs(job_dir)
        teller = Teller(job_dir)
        teller.start()
        agent.run_node(folder, request, None, {"job_folder": os.environ["MA_JOB_DIR"], "script": script})
        teller.finish()
        teller.end(agent.place_from_environment()["node"], shortened(files.read_status(job_dir)))
        return job_outcome.exit_code(agent.outcome_of(folder))


def _request() -> dict[str, Any]:
    """Return what the job is; those of its variables that would be taken for strays are in our environment."""
    request: dict[str, Any] = json.loads(os.environ.pop(REQUEST_VARIABLE))
    return {**request, "env": {name: os.environ[name] for name in request["env"] if name in os.environ}}
