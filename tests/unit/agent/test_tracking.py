"""What experiment trackers learn of a job."""

from __future__ import annotations

import json

from jobsubmit.agent.tracking import tracking_variables


def test_the_attempts_of_a_job_are_one_group() -> None:
    first = tracking_variables(["wandb", "mlflow", "swanlab"], "bert-8k2vqp", 0)
    second = tracking_variables(["wandb", "mlflow", "swanlab"], "bert-8k2vqp", 1)
    assert first["WANDB_RUN_GROUP"] == second["WANDB_RUN_GROUP"] == "bert-8k2vqp"
    assert (first["WANDB_NAME"], second["WANDB_NAME"]) == ("bert-8k2vqp", "bert-8k2vqp-1")
    assert (second["SWANLAB_GROUP"], second["SWANLAB_TAGS"]) == ("bert-8k2vqp", "attempt-1")
    assert json.loads(second["MLFLOW_RUN_CONTEXT"])["jobsubmit.attempt"] == "1"
    assert tracking_variables([], "bert", 0) == {}
