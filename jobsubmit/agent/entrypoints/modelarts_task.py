"""A node that is a task of a training job on ModelArts: its lines go to the task's log, and finally its status.

The platform delivers the code, and sets the whole node contract itself. JOBSUBMIT_REQUEST contains the agent request.
"""

from __future__ import annotations

import json
import os
import tempfile

from .. import node_contract as contract, run as agent
from ..log_forwarder import LogForwarder, shorten_status
from ..protocol import AgentRequest, Place
from ..recovery.outcome import shell_code
from ..status_file import NO_STATUS, read_status


def run(script: str) -> int:
    """Run this node of the job, and report its outcome; return the exit code for the platform."""
    request = _request()
    os.environ.setdefault(contract.PORT, str(contract.DEFAULT_PORT))
    with tempfile.TemporaryDirectory(prefix="jobsubmit-task-") as folder:
        job_dir = agent.own_directory(folder).path
        os.makedirs(job_dir)
        forwarder = LogForwarder(job_dir)
        forwarder.start()
        place: Place = {
            **agent.place_from_environment(),
            "job_folder": os.environ[contract.JOB_FOLDER],
            "script": script,
        }
        outcome = agent.run_node(folder, request, None, place)
        forwarder.finish()
        forwarder.report_end(place["node"], shorten_status(read_status(job_dir) or NO_STATUS))
        return shell_code(outcome)


def _request() -> AgentRequest:
    """Return the agent request; variables of the job that would be removed as reserved are in our environment."""
    request: AgentRequest = json.loads(os.environ.pop(contract.AGENT_REQUEST))
    return {**request, "env": {name: os.environ[name] for name in request["env"] if name in os.environ}}
