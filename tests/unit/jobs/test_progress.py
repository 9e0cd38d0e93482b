"""What is remembered of trainings that have ended, so that their logs are read once."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from jobsubmit.backends.models import State
from jobsubmit.config import BUILT_IN, Settings
from jobsubmit.jobs import progress
from jobsubmit.jobs.progress import NOTHING_SHOWN, TrainingState, training_of
from jobsubmit.jobs.records import JobRecord

RECORD = JobRecord(
    id="shown-1",
    name="shown",
    mode="torchrun",
    backend="local",
    nodes=1,
    created=1.0,
    code="code",
    digest=None,
    script_sha256="",
)
AT_9 = TrainingState(step=9, steps=10, loss=0.5, loss_name="loss", done=0.9, end=7.5)


@pytest.mark.parametrize(
    ("state", "shown", "reads"),
    [
        (State.SUCCEEDED, AT_9, 1),
        (State.FAILED, NOTHING_SHOWN, 1),
        (State.FAILED, replace(AT_9, loss=math.nan), 2),
        (State.RUNNING, AT_9, 2),
    ],
)
def test_the_logs_of_a_job_that_has_ended_are_read_once(
    state: State, shown: TrainingState, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def read_training(record: JobRecord, _: Settings) -> TrainingState:
        read.append(record.id)
        return shown

    monkeypatch.setattr(progress, "read_training", read_training)
    settings = BUILT_IN._replace(state_dir=tmp_path)
    first, second = (training_of(RECORD, state, settings) for _ in range(2))
    assert str(first) == str(second) == str(shown)
    assert len(read) == reads


def test_another_job_may_get_the_id_of_one_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "read_training", lambda record, _: replace(AT_9, step=int(record.created)))
    settings = BUILT_IN._replace(state_dir=tmp_path)
    later = replace(RECORD, created=2.0)
    assert [training_of(one, State.SUCCEEDED, settings).step for one in (RECORD, later)] == [1, 2]
