"""A restart: what it keeps, what it records, and the pause before it.

All attempts of a job share its directory, and so its installed packages, inputs, outputs, checkpoints, logs and events;
port and addresses stay the same. The code is fetched again, as on a new node. An attempt begins without ranks, phases
and step numbers, and JOBSUBMIT_RESTART_COUNT contains its number.
"""

from __future__ import annotations

import time

from ..protocol import Restart
from ..recovery.outcome import Outcome
from ..retry import pause_before
from .attempt import Attempt


def prepare_restart(ended: Attempt, outcome: Outcome, detected_at: float) -> int:
    """Record a restart, upload the outputs, pause, and return the number of the next attempt; raises Outcome."""
    job, progress = ended.job, ended.progress
    progress.look(job.sources())  # what was written while the nodes were stopping
    policy, number = job.scope.restarts, ended.number + 1
    assert policy
    pause = pause_before(number, policy["backoff"])
    entry: Restart = {
        "attempt": number,
        "failed_at": ended.failed_at or time.time(),
        "detected_at": detected_at,
        "reason": outcome.reason,
        "message": outcome.message,
        "fault": ended.struck[-1] if ended.struck else None,
        "back_at": None,
        "last_step": progress.last,
        "steps_lost": None,
    }
    text = "restart %d of %d in %d s: %s" % (number, policy["max"], pause, outcome.message)
    job.write_status(state="RECOVERING", message=text, restarts=[*job.status["restarts"], entry])
    for node in job.nodes:
        job.say(node, text)
    ended.outputs.flush()
    until = time.monotonic() + pause
    while time.monotonic() < until:
        job.pause()
    progress.begin_attempt()
    job.begin_attempt(number)
    return number
