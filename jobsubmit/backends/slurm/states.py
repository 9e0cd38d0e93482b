"""Slurm's states and wait reasons → states and messages of jobsubmit."""

from __future__ import annotations

import re

from jobsubmit.backends.models import State

# State and reason, by what Slurm says (man squeue, JOB STATE CODES). The nodes' own report, where there is one, is
# more exact than FAILED and COMPLETED.
STATES: dict[str, tuple[State, str]] = {
    "PENDING": (State.QUEUED, ""),
    "CONFIGURING": (State.STARTING, ""),
    "RUNNING": (State.RUNNING, ""),
    "COMPLETING": (State.RUNNING, ""),
    "STAGE_OUT": (State.RUNNING, ""),
    "SIGNALING": (State.RUNNING, ""),
    "RESIZING": (State.RUNNING, ""),
    "SUSPENDED": (State.QUEUED, "SUSPENDED"),
    "STOPPED": (State.QUEUED, "SUSPENDED"),
    "REQUEUED": (State.RECOVERING, ""),
    "REQUEUE_FED": (State.RECOVERING, ""),
    "REQUEUE_HOLD": (State.QUEUED, "HELD"),
    "RESV_DEL_HOLD": (State.QUEUED, "HELD"),
    "SPECIAL_EXIT": (State.QUEUED, "HELD"),
    "COMPLETED": (State.SUCCEEDED, ""),
    "FAILED": (State.FAILED, "EXIT_CODE"),
    "CANCELLED": (State.CANCELLED, ""),
    "TIMEOUT": (State.FAILED, "TIMEOUT"),
    "DEADLINE": (State.FAILED, "TIMEOUT"),
    "NODE_FAIL": (State.FAILED, "NODE_FAILED"),
    "BOOT_FAIL": (State.FAILED, "NODE_FAILED"),
    "OUT_OF_MEMORY": (State.FAILED, "OOM"),
    "PREEMPTED": (State.FAILED, "PREEMPTED"),
    "REVOKED": (State.LOST, "REVOKED"),
}

MESSAGES = {
    "TIMEOUT": "Slurm ended the job at its time limit",
    "NODE_FAILED": "a node of the job failed",
    "OOM": "Slurm ended the job because it used more memory than it requested",
    "PREEMPTED": "Slurm preempted the job for one of higher priority",
    "SUSPENDED": "Slurm has suspended the job",
    "HELD": "Slurm holds the job: release it with `scontrol release {1}`",
}

# Why a job waits, by the pattern of Slurm's reason (man squeue, JOB REASON CODES); the first that fits counts.
_WAITS = (
    (r"None|Resources|Cleaning", "waiting for free nodes"),
    (r"Priority", "other jobs have higher priority"),
    (r"BeginTime", "its begin time is in the future; after a restart Slurm waits a while"),
    (r"Dependency", "waiting for another job"),
    (r"DependencyNeverSatisfied", "the job that it depends on failed: cancel this job"),
    (r"JobHeldUser", "you hold the job: release it with `scontrol release {1}`"),
    (r"JobHeldAdmin|job_requeued_in_held_state", "an administrator holds the job: ask them to release it"),
    (
        r"launch_failed_requeued_held",
        "the launch failed, and the job is held: try again with `scontrol release {1}`",
    ),
    (r"PartitionNodeLimit", "it requests more nodes than the partition allows: use fewer nodes, or another partition"),
    (r"PartitionTimeLimit", "it requests more time than the partition allows: set a shorter backend.time"),
    (r"PartitionDown|PartitionInactive", "the partition does not run jobs now: choose another"),
    (r"PartitionConfig|BadConstraints", "no nodes of the partition meet its request: it will never start"),
    (r"ReqNodeNotAvail.*", "the nodes it needs are down, drained or reserved"),
    (r"NodeDown", "a node it needs is down"),
    (r"Licenses", "waiting for a license"),
    (r"Reservation.*", "waiting for its reservation"),
    (r"InvalidAccount|AssocNotFound|InvalidQOS", "its account or QOS is not valid here: it will never start"),
    (r"(QOS|Assoc)\w*(PerUser|PerAccount|Limit|Grp|Max)\w*", "a limit of your account or QOS is reached ({0})"),
)


def explain_wait(reason: str, number: str) -> str:
    """Return the meaning of Slurm's reason for which the job with a number is pending, with Slurm's own word."""
    for pattern, text in _WAITS:
        if re.fullmatch(pattern, reason.split(",", maxsplit=1)[0]):
            meaning = text.format(reason, number)
            return meaning if "{0}" in text else f"{meaning} (Slurm: {reason})"
    return f"Slurm's reason: {reason}"
