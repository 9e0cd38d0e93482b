"""See one node of a job through, where an engine has started us; standard library only (see command.py)."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

from . import fetch as fetching
from . import files, processes, sigv4
from .recovery import job_outcome
from .recovery.outcome import Outcome
from .supervisor.supervisor import Supervisor

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

REQUEST = "request.json"
ORDER = "order.json"
RESTART = 75  # EX_TEMPFAIL


def node_dir(folder: str, attempt: int, node: int) -> str:
    """Return the directory of what one node does in one attempt."""
    return os.path.join(folder, "run-%d" % attempt, "node-%d" % node)


def own_dir(folder: str) -> str:
    """Return the directory of this node, in this attempt."""
    place = place_from_environment()
    return node_dir(folder, place["attempt"], place["node"])


def run_node(
    folder: str, request: dict[str, Any], order: dict[str, Any] | None, brought: dict[str, str] | None = None
) -> None:
    """Run this node's part of the job to its end; what became of it is in its directory.

    `brought` says where the engine has laid the code, as "job_folder", and the start script, as "script".
    """
    job_dir = own_dir(folder)
    os.makedirs(job_dir, exist_ok=True)
    everything = {
        "request": request,
        "order": order,
        "secrets": {name: os.environ[name] for name in request["secrets"] if name in os.environ},
        "client_folder": folder,
        "python_folder": "",
        "shared_dir": folder,
        "umask": os.umask(0o077),
        "place": {**place_from_environment(), **(brought or {})},
    }
    processes.adopt_orphans()
    try:
        supervisor = Supervisor(job_dir, everything)
        supervisor.prepare()
        supervisor.run()
    except BaseException as error:
        traceback.print_exc()
        processes.kill_all()
        message = "the program that watched the node failed: %s" % error
        status = {**files.read_status(job_dir), "state": "FAILED", "reason": "AGENT_FAILED", "message": message}
        files.write_status(job_dir, {"failure": None, **status, "ended": time.time()})


def outcome_of(folder: str) -> Outcome:
    """Return what became of this node's part."""
    return job_outcome.judged([files.read_status(own_dir(folder))], 1) or Outcome("CANCELLED")


def place_from_environment() -> dict[str, Any]:
    """Return which node this is, and how all find each other, by the node contract."""
    hosts = os.environ.get("VC_WORKER_HOSTS", "")
    if "JOBSUBMIT_HOSTS_FILE" in os.environ:
        with open(os.environ["JOBSUBMIT_HOSTS_FILE"], encoding="utf-8") as stream:
            hosts = stream.read().strip()
    return {
        "node": int(os.environ["VC_TASK_INDEX"]),
        "addresses": hosts.split(","),
        "port": int(os.environ["JOBSUBMIT_MASTER_PORT"]),
        "attempt": int(os.environ.get("JOBSUBMIT_RESTART_COUNT") or 0),
    }


def _outcome_of_all(folder: str, request: dict[str, Any], attempt: int) -> Outcome | None:
    """Return what became of an attempt on all nodes, or None where they cannot tell."""
    statuses = [files.read_status(node_dir(folder, attempt, node)) for node in range(request["nodes"])]
    return job_outcome.judged([status for status in statuses if status], request["nodes"])


def verdict(folder: str, request: dict[str, Any]) -> int:
    """Return the exit code of the last attempt, or RESTART."""
    attempt = int(os.environ.get("JOBSUBMIT_RESTART_COUNT") or 0)
    outcome = _outcome_of_all(folder, request, attempt)
    if outcome is None:
        return 1
    if files.cancel_grace(folder, 0) is not None:
        return job_outcome.exit_code(outcome)
    return final_code(outcome, request, attempt)


def again(folder: str, request: dict[str, Any]) -> int:
    """Return 0 if the job's policy wants an attempt after the one before, which nobody may have asked for."""
    attempt = int(os.environ["JOBSUBMIT_RESTART_COUNT"])
    outcome = _outcome_of_all(folder, request, attempt - 1)
    if outcome is None:
        outcome = Outcome("FAILED", "NODE_FAILED", "a node was lost, or taken away")
    if job_outcome.wants_restart(outcome, request["restarts"], attempt - 1):
        return 0
    sys.stderr.write("jobsubmit: not started again: %s\n" % outcome.message)
    return job_outcome.exit_code(outcome) or 1


def final_code(outcome: Outcome, request: dict[str, Any], attempt: int) -> int:
    """Return the code that tells the engine of an outcome, RESTART where the job's policy wants another attempt."""
    if job_outcome.wants_restart(outcome, request["restarts"], attempt):
        text = "restart %d of %d: %s" % (attempt + 1, request["restarts"]["max"], outcome.message)
        sys.stderr.write("jobsubmit: %s\n" % text)
        return RESTART
    code = job_outcome.exit_code(outcome)
    return code if code != RESTART else 1


def _signed(value: Any, region: str = "") -> Any:
    """Return an order with every address signed."""
    if isinstance(value, dict):
        region = region or value["region"]
        return {name: _signed(inner, region) for name, inner in value.items()}
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return sigv4.signed(value, "GET", region)
    return value


def fetch(folder: str, job: str) -> int:
    """Fetch the code of this node; return the exit code."""
    target = os.path.join(own_dir(folder), "nodes", str(place_from_environment()["node"]))
    with open(os.path.join(job, ORDER), encoding="utf-8") as stream:
        order = json.load(stream)
    try:
        expires = order.get("expires")
        if expires and time.time() > expires:
            raise fetching.FetchError("the addresses of the code have expired; submit the job again")
        fetching.fetch(_signed(order) if "region" in order else order, target)
    except fetching.errors() as error:
        text = "the code could not be fetched: %s" % (str(error) or type(error).__name__)
        sys.stderr.write("jobsubmit: %s\n" % text)
        return 1
    return 0
