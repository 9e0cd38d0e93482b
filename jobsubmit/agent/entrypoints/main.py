"""Run one node of a job that a platform has started: `agent COMMAND FOLDER [JOB]`, standard library only.

    node FOLDER         run this node of the job, as the node contract in the environment says
    outcome FOLDER      exit with the code of the attempt on nodes that share FOLDER, or with 75 to ask for a restart
    may-restart FOLDER  exit with 0 if another attempt is allowed after the previous one
    fetch FOLDER JOB    only fetch the code of this node, as JOB/order.json says
    pod FOLDER JOB      like `node`, in a pod: see pod.py
    task SCRIPT         like `node`, as a task of ModelArts, which delivers code and script: see modelarts_task.py

JOB (default: FOLDER) contains request.json, which describes the job. Unless the code was fetched before,
JOBSUBMIT_ORDER in the environment says what to fetch. In FOLDER each node gets a job directory per attempt,
run-ATTEMPT/node-INDEX.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from .. import run
from ..node_contract import FETCH_ORDER
from ..protocol import REQUEST
from ..recovery.outcome import STOPPED, shell_code
from . import modelarts_task, pod


def main() -> int:
    """Run the command of the command line; return the exit code."""
    command, folder, *place = sys.argv[1:]
    # The first process of a container has no default.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(STOPPED))
    job = place[0] if place else folder
    if command == "task":
        return modelarts_task.run(folder)
    if command == "fetch":
        return run.fetch(folder, job)
    with open(os.path.join(job, REQUEST), encoding="utf-8") as stream:
        request = json.load(stream)
    if command == "outcome":
        return run.report_outcome(folder, request)
    if command == "may-restart":
        return run.allow_restart(folder, request)
    if command == "pod":
        return pod.run(folder, job, request)
    text = os.environ.pop(FETCH_ORDER, "")  # the job's own processes must not see its addresses
    return shell_code(run.run_node(folder, request, json.loads(text) if text else None))
