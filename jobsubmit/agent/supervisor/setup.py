"""Prepare the nodes, before their start scripts run: fetch and verify the code, fetch the data."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from contextlib import suppress

from ..isolated_python import agent_command
from ..recovery.first_failure import ProcessFailure
from ..recovery.outcome import FETCH_FAILED, Outcome
from ..recovery.rank_failure import report_failure
from . import data_staging
from .job import Job

_SETUP_COMPLETE = "setup-complete"  # written by the start script


def fetch_code(job: Job) -> dict[int, str]:
    """Fetch code and start script on all nodes in parallel; return the digest of each node's script."""
    if job.assignment["order"] is None:  # somebody has done so before we came
        return dict.fromkeys(job.nodes, job.request["script"]["sha256"])
    job.phases.start("fetch")
    fetchers = {node: _start_fetch(job, node) for node in job.nodes}
    scripts: dict[int, str] = {}
    while len(scripts) < len(fetchers):
        for node, fetcher in fetchers.items():
            if node not in scripts and fetcher.poll() is not None:
                scripts[node] = _fetched(job, node, fetcher)
        if len(scripts) < len(fetchers):
            job.pause()
    job.phases.end("fetch")
    return scripts


def renew_code(job: Job) -> dict[int, str]:
    """Replace the code that an attempt left with the submitted code, as on new nodes.

    A checkpoint that the code wrote into its own folder is gone then, as on a platform. Raises Outcome if a start
    script was changed.
    """
    if job.assignment["order"] is None:
        return job.scripts
    for node in job.nodes:
        prove_script(job, node)
        with suppress(FileNotFoundError):
            os.remove(os.path.join(job.scope.job_folder(job.files, node), _SETUP_COMPLETE))
    return fetch_code(job)


def _start_fetch(job: Job, node: int) -> subprocess.Popen[bytes]:
    folder = job.scope.job_folder(job.files, node)
    os.makedirs(folder, exist_ok=True)
    fetcher = job.start(
        agent_command("fetch", folder), node, is_ours=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert fetcher.stdin
    with suppress(BrokenPipeError):  # its own message and exit code say why
        fetcher.stdin.write(json.dumps(job.assignment["order"]).encode())
        fetcher.stdin.close()
    return fetcher


def _fetched(job: Job, node: int, fetcher: subprocess.Popen[bytes]) -> str:
    if fetcher.returncode != 0:
        failure = report_failure(job, ProcessFailure(node, None, fetcher.returncode, time.time()))
        raise Outcome("FAILED", FETCH_FAILED, "node %d could not fetch the code" % node, failure)
    assert fetcher.stdout
    with fetcher.stdout as pipe:
        return str(json.load(pipe)["script"])


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
        job.pause()
    if bringer.returncode != 0:
        failure = report_failure(job, ProcessFailure(job.nodes[0], None, bringer.returncode, time.time()))
        raise Outcome("FAILED", "INPUTS_FAILED", "the inputs could not be fetched", failure)
    data_staging.hold_inputs(job)
    job.phases.end("inputs")
