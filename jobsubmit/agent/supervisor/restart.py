"""A restart: what it keeps, what it notes, and the pause before it.

All attempts of a job share its directory and so its code, installed packages, inputs, outputs, checkpoints, logs and
events; port and addresses stay the same. An attempt begins without ranks, phases and step numbers of its own, and
JOBSUBMIT_RESTART_COUNT tells its processes which it is.
"""

from __future__ import annotations

import time

from ..recovery import restart_policy

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from ..protocol import Restart
    from ..recovery.outcome import Outcome
    from ..recovery.step_parser import StepParser
    from .attempt import Attempt
    from .data_staging import Outputs
    from .job import Job


def wants_restart(job: Job, outcome: Outcome, restarts: int) -> bool:
    """Return whether the supervisor starts the job again after so many restarts; else the engine may."""
    return restart_policy.wants_restart(job.scope.restarts, outcome, restarts)


def prepare_restart(
    job: Job, ended: Attempt, outcome: Outcome, detected_at: float, outputs: Outputs, progress: StepParser
) -> int:
    """Note a restart, upload what there is, pause, and return the number of the next attempt; raises Outcome."""
    progress.look(job.node_of_rank)  # what was written while the nodes were stopping
    policy, number = job.scope.restarts, ended.number + 1
    assert policy
    pause = restart_policy.pause_before_restart(policy, number)
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
    outputs.flush()
    until = time.monotonic() + pause
    while time.monotonic() < until:
        job.pause()
    progress.begin_attempt()
    job.begin_attempt(number)
    return number
