"""Slurm's words as ours: states, and why a job waits."""

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
    "TIMEOUT": "Slurm ended it at its time limit",
    "NODE_FAILED": "a node of it failed",
    "OOM": "Slurm ended it for using more memory than it asked for",
    "PREEMPTED": "Slurm ended it for a job of higher priority",
    "SUSPENDED": "Slurm has suspended it",
    "HELD": "Slurm holds it back: scontrol release lets it go",
}

# Why a job waits, by the pattern of Slurm's reason (man squeue, JOB REASON CODES); the first that fits counts.
_WAITS = (
    (r"None|Resources|Cleaning", "waiting for free nodes"),
    (r"Priority", "other jobs come first"),
    (r"BeginTime", "its time to begin has not come; after a restart Slurm waits a while"),
    (r"Dependency", "it waits for another job"),
    (r"DependencyNeverSatisfied", "the job it waits for failed: cancel it"),
    (r"JobHeldUser", "you hold it back: scontrol release lets it go"),
    (r"JobHeldAdmin|job_requeued_in_held_state", "an administrator holds it back: ask one"),
    (
        r"launch_failed_requeued_held",
        "it could not be launched, and is held back: scontrol release lets it try again",
    ),
    (r"PartitionNodeLimit", "it wants more nodes than the partition gives: fewer nodes, or another partition"),
    (r"PartitionTimeLimit", "it wants more time than the partition gives: a shorter backend.time"),
    (r"PartitionDown|PartitionInactive", "the partition takes no jobs now: choose another"),
    (r"PartitionConfig|BadConstraints", "no nodes of the partition fit what it asks for: it will never start"),
    (r"ReqNodeNotAvail.*", "the nodes it needs are down, drained or reserved"),
    (r"NodeDown", "a node it needs is down"),
    (r"Licenses", "it waits for a license"),
    (r"Reservation.*", "it waits for its reservation"),
    (r"InvalidAccount|AssocNotFound|InvalidQOS", "its account or QOS is not valid here: it will never start"),
    (r"(QOS|Assoc)\w*(PerUser|PerAccount|Limit|Grp|Max)\w*", "a limit of your account or QOS is reached ({0})"),
)


def explain_wait(reason: str) -> str:
    """Return what Slurm's reason for a pending job means, with Slurm's word for it."""
    for pattern, text in _WAITS:
        if re.fullmatch(pattern, reason.split(",", maxsplit=1)[0]):
            return f"{text.format(reason)} (Slurm: {reason})" if "{0}" not in text else text.format(reason)
    return f"Slurm's reason: {reason}"
