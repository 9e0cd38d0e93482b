"""Run one node of a job to its end, and report the outcome; standard library only (see entrypoints/main.py)."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

from . import fetch as fetching, node_contract as contract, processes, sigv4
from .job_directory import JobDirectory
from .protocol import ORDER, AgentRequest, DataAccess, FetchOrder, NodeStatus, Place
from .recovery.outcome import Outcome, find_outcome, shell_code
from .recovery.restart_policy import wants_restart
from .status_file import NO_STATUS, cancel_grace, read_status, write_status
from .supervisor.supervisor import Supervisor

RESTART = 75  # EX_TEMPFAIL


def place_from_environment() -> Place:
    """Return which node this is, and how the nodes find each other, from the node contract."""
    hosts = os.environ.get(contract.HOSTS, "")
    if contract.HOSTS_FILE in os.environ:
        with open(os.environ[contract.HOSTS_FILE], encoding="utf-8") as stream:
            hosts = stream.read().strip()
    return {
        "node": int(os.environ[contract.NODE_INDEX]),
        "addresses": hosts.split(","),
        "port": int(os.environ[contract.PORT]),
        "attempt": _attempt(),
    }


def _attempt() -> int:
    return int(os.environ.get(contract.RESTART_COUNT) or 0)


def own_directory(folder: str) -> JobDirectory:
    """Return the directory of this node, in this attempt."""
    place = place_from_environment()
    return JobDirectory(folder).node_of(place["attempt"], place["node"])


def run_node(
    folder: str,
    request: AgentRequest,
    order: FetchOrder | None,
    place: Place | None = None,
    data: DataAccess | None = None,
    cache: str = "",
) -> Outcome:
    """Run this node to its end; its status, logs and events are in its directory.

    `place` says where the platform has put code and start script, if it delivers them. `data` says how the node copies
    the job's data from and to buckets, and `cache` is where inputs stay.
    """
    job_dir = own_directory(folder).path
    os.makedirs(job_dir, exist_ok=True)
    umask = os.umask(0o077)
    processes.adopt_orphans()
    try:
        supervisor = Supervisor(
            job_dir,
            {
                "request": request,
                "order": order,
                "secrets": {name: os.environ[name] for name in request["secrets"] if name in os.environ},
                "client_folder": folder,
                "python_folder": "",
                "shared_dir": folder,
                "umask": umask,
                "place": place or place_from_environment(),
                "data": data,
                "cache": cache,
            },
        )
        supervisor.job.prepare()
        supervisor.run()
    except BaseException as error:
        traceback.print_exc()
        processes.kill_all()
        message = "the agent of the node failed: %s" % error
        failed: NodeStatus = {"state": "FAILED", "reason": "AGENT_FAILED", "message": message, "ended": time.time()}
        write_status(job_dir, {**(read_status(job_dir) or NO_STATUS), **failed})
    return find_outcome([read_status(job_dir) or NO_STATUS], 1) or Outcome("CANCELLED")


def _outcome_of_all(folder: str, request: AgentRequest, attempt: int) -> Outcome | None:
    """Return the outcome of an attempt on all nodes, or None if their statuses do not determine it."""
    nodes = range(request["nodes"])
    statuses = [read_status(JobDirectory(folder).node_of(attempt, node).path) for node in nodes]
    return find_outcome([status for status in statuses if status], request["nodes"])


def report_outcome(folder: str, request: AgentRequest) -> int:
    """Return the exit code of the last attempt, or RESTART."""
    outcome = _outcome_of_all(folder, request, _attempt())
    if outcome is None:
        return 1
    if cancel_grace(folder, 0) is not None:
        return shell_code(outcome)
    return final_code(outcome, request, _attempt())


def allow_restart(folder: str, request: AgentRequest) -> int:
    """Return 0 if the job's policy allows this attempt, which the platform has begun on its own."""
    outcome = _outcome_of_all(folder, request, _attempt() - 1)
    if outcome is None:
        outcome = Outcome("FAILED", "NODE_FAILED", "a node was lost, or removed by the platform")
    if wants_restart(request["restarts"], outcome, _attempt() - 1):
        return 0
    sys.stderr.write("jobsubmit: not restarted: %s\n" % outcome.message)
    return shell_code(outcome) or 1


def final_code(outcome: Outcome, request: AgentRequest, attempt: int) -> int:
    """Return the exit code that reports an outcome to the platform: RESTART if the policy allows another attempt."""
    policy = request["restarts"]
    if policy and wants_restart(policy, outcome, attempt):
        sys.stderr.write("jobsubmit: restart %d of %d: %s\n" % (attempt + 1, policy["max"], outcome.message))
        return RESTART
    code = shell_code(outcome)
    return code if code != RESTART else 1


def fetch(folder: str, job: str) -> int:
    """Fetch the code of this node; return the exit code."""
    target = os.path.join(own_directory(folder).nodes, str(place_from_environment()["node"]))
    with open(os.path.join(job, ORDER), encoding="utf-8") as stream:
        order: FetchOrder = json.load(stream)
    try:
        expires = order.get("expires")
        if expires and time.time() > expires:
            raise fetching.FetchError("the addresses of the code have expired; submit the job again")
        fetching.fetch(_signed(order) if "region" in order else order, target)
    except fetching.fetch_errors() as error:
        sys.stderr.write("jobsubmit: the code could not be fetched: %s\n" % (str(error) or type(error).__name__))
        return 1
    return 0


def _signed(order: FetchOrder) -> FetchOrder:
    """Return a fetch order with every address signed."""
    region, code = order["region"], order["code"]

    def sign(url: str) -> str:
        return sigv4.sign_url(url, "GET", region) if url.startswith(("http://", "https://")) else url

    signed = code.copy()
    if "manifest" in code:
        signed["manifest"] = sign(code["manifest"])
    if "archive" in code:
        signed["archive"] = sign(code["archive"])
    if "files" in code:
        signed["files"] = {path: sign(url) for path, url in code["files"].items()}
    return {**order, "code": signed, "script": {**order["script"], "url": sign(order["script"]["url"])}}
