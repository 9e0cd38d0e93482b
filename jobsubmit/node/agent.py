"""See one node of a job through, where an engine has started us: `agent COMMAND …`, standard library only.

    node FOLDER      run this node's part of the job, as the node contract in the environment says
    verdict FOLDER   say by its exit code what became of an attempt on nodes that share FOLDER: 75 to start it again

FOLDER holds request.json (what the job is) and, unless the code has been fetched before, what to fetch: order.json, or
JOBSUBMIT_ORDER in the environment. Each attempt's nodes get a directory each, run-ATTEMPT/node-INDEX, in the form of a
local job's.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

from .gang import files, processes, together
from .gang.outcome import Outcome
from .gang.supervisor import Supervisor

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

REQUEST = "request.json"
ORDER = "order.json"
ORDER_VARIABLE = "JOBSUBMIT_ORDER"
RESTART = 75  # EX_TEMPFAIL


def node_dir(folder: str, attempt: int, node: int) -> str:
    """Return the directory of what one node does in one attempt."""
    return os.path.join(folder, "run-%d" % attempt, "node-%d" % node)


def main() -> int:
    """Do what the command line says; return the exit code."""
    command, folder = sys.argv[1:3]
    with open(os.path.join(folder, REQUEST), encoding="utf-8") as stream:
        request = json.load(stream)
    return run_node(folder, request) if command == "node" else verdict(folder, request)


def run_node(folder: str, request: dict[str, Any]) -> int:
    """Run this node's part of the job to its end; return the exit code of its outcome."""
    place = place_from_environment()
    job_dir = node_dir(folder, place["attempt"], place["node"])
    os.makedirs(job_dir, exist_ok=True)
    order = {
        "request": request,
        "order": _fetch_order(folder),
        "secrets": {name: os.environ[name] for name in request["secrets"] if name in os.environ},
        "client_folder": folder,
        "python_folder": "",
        "shared_dir": folder,
        "place": place,
    }
    processes.adopt_orphans()
    try:
        supervisor = Supervisor(job_dir, order)
        supervisor.prepare()
        supervisor.run()
    except BaseException:
        traceback.print_exc()
        processes.kill_all()
        return 70
    status = files.read_status(job_dir)
    return together.exit_code(together.judged([status], 1) or Outcome("CANCELLED"))


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


def _fetch_order(folder: str) -> Any:
    text = os.environ.pop(ORDER_VARIABLE, "")  # its addresses are nothing for the job's own processes
    if text:
        return json.loads(text)
    try:
        with open(os.path.join(folder, ORDER), encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None


def verdict(folder: str, request: dict[str, Any]) -> int:
    """Write down what became of the last attempt; return its exit code, or RESTART."""
    attempt = int(os.environ.get("JOBSUBMIT_RESTART_COUNT") or 0)
    statuses = [files.read_status(node_dir(folder, attempt, node)) for node in range(request["nodes"])]
    outcome = together.judged([status for status in statuses if status], request["nodes"])
    if outcome is None:
        return 1
    restarts = outcome.state == "FAILED" and together.wants_restart(outcome, request["restarts"], attempt)
    if restarts and files.cancel_grace(folder, 0) is None:
        say = "restart %d of %d: %s" % (attempt + 1, request["restarts"]["max"], outcome.message)
        sys.stderr.write("%s jobsubmit: %s\n" % (time.strftime("%H:%M:%S"), say))
        return RESTART
    code = together.exit_code(outcome)
    return code if code != RESTART else 1
