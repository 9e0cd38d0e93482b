"""Prepare the nodes, before their start scripts run: fetch and verify the code, fetch the data."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress

from .. import fetch
from ..recovery.first_failure import ProcessFailure
from ..recovery.outcome import FETCH_FAILED, Outcome
from ..recovery.rank_failure import report_failure
from . import data_staging
from .forked import ForkedProcess
from .job import Job

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from ..protocol import FetchOrder

_SETUP_COMPLETE = "setup-complete"  # written by the start script


def fetch_code(job: Job) -> None:
    """Fetch and verify code and start script on all nodes in parallel."""
    order = job.assignment["order"]
    if order is None:  # somebody has done so before we came
        return
    job.phases.start("fetch")
    running = {node: _start_fetch(job, order, node) for node in job.nodes}
    while running:
        for node in [node for node, fetcher in running.items() if fetcher.poll() is not None]:
            _require_fetched(job, node, running.pop(node))
        if running:
            job.pause(next(iter(running.values())))
    job.phases.end("fetch")


def renew_code(job: Job) -> None:
    """Replace the code that an attempt left with the submitted code, as on new nodes.

    A checkpoint that the code wrote into its own folder is gone then, as on a platform. Raises Outcome if a start
    script was changed.
    """
    if job.assignment["order"] is None:
        return
    for node in job.nodes:
        prove_script(job, node)
        with suppress(FileNotFoundError):
            os.remove(os.path.join(job.scope.job_folder(job.files, node), _SETUP_COMPLETE))
    fetch_code(job)


def _start_fetch(job: Job, order: FetchOrder, node: int) -> ForkedProcess:
    folder = job.scope.job_folder(job.files, node)
    os.makedirs(folder, exist_ok=True)
    return job.fork(lambda: int(fetch.try_fetch(order, folder) is None), node)


def _require_fetched(job: Job, node: int, fetcher: ForkedProcess) -> None:
    if fetcher.returncode:
        failure = report_failure(job, ProcessFailure(node, None, fetcher.returncode, time.time()))
        raise Outcome("FAILED", FETCH_FAILED, "node %d could not fetch the code" % node, failure)


def prove_script(job: Job, node: int) -> str:
    """Return the path of a node's start script; raise Outcome unless it is still the one that was submitted."""
    path = job.scope.script(job.files, node)
    try:
        with open(path, "rb") as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
    except OSError as error:
        raise Outcome("FAILED", "START_FAILED", "%s cannot be read: %s" % (path, error.strerror)) from error
    if digest != job.request["script"]["sha256"]:
        text = "%s differs from the start script that was submitted: it was changed on the node" % path
        raise Outcome("FAILED", "START_FAILED", text)
    return path


def bring_data(job: Job) -> None:
    """Create the directory of every input, output and checkpoint; download the inputs."""
    for mount in job.request["mounts"]:
        path = job.environments.mount_path(mount)
        try:
            os.makedirs(path if mount["kind"] != "input" else os.path.dirname(path), exist_ok=True)
        except OSError as error:
            problem = "%s cannot be created: %s" % (path, error.strerror)
            raise Outcome("FAILED", "START_FAILED", problem) from error
    if not job.scope.prepares_data:
        return  # only folders that the nodes see
    resumes = job.request["checkpoints_of"] != job.request["job_id"] or job.scope.attempt > 0
    if not any(m["kind"] == "input" or (m["kind"] == "checkpoint" and resumes) for m in job.request["mounts"]):
        return
    job.phases.start("inputs")
    bringer = data_staging.start_carrier(job, "inputs")
    while bringer.poll() is None:
        job.pause(bringer)
    if bringer.returncode != 0:
        failure = report_failure(job, ProcessFailure(job.nodes[0], None, bringer.returncode, time.time()))
        raise Outcome("FAILED", "INPUTS_FAILED", "the inputs could not be fetched", failure)
    data_staging.hold_inputs(job)
    job.phases.end("inputs")
