"""The variables by which experiment trackers learn which job a run belongs to.

Sources: https://docs.wandb.ai/guides/track/environment-variables, MLflow's SystemEnvironmentContext
(MLFLOW_RUN_CONTEXT becomes tags of each run), https://docs.swanlab.cn/en/api/environment-variable.html.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable


def tracking_variables(trackers: Iterable[str], job_id: str, attempt: int) -> dict[str, str]:
    """Return the variables of some trackers: all runs of a job form a group, each attempt has a name of its own."""
    found = {}
    for tracker in trackers:
        found.update(_variables(tracker, job_id, attempt))
    return found


def _variables(tracker: str, job_id: str, attempt: int) -> dict[str, str]:
    run = "%s-%d" % (job_id, attempt) if attempt else job_id
    if tracker == "wandb":
        return {"WANDB_RUN_GROUP": job_id, "WANDB_NAME": run, "WANDB_TAGS": "attempt-%d" % attempt}
    if tracker == "swanlab":
        return {"SWANLAB_GROUP": job_id, "SWANLAB_EXP_NAME": run, "SWANLAB_TAGS": "attempt-%d" % attempt}
    tags = {"jobsubmit.job": job_id, "jobsubmit.group": job_id, "jobsubmit.attempt": str(attempt)}
    return {"MLFLOW_RUN_CONTEXT": json.dumps(tags)}
