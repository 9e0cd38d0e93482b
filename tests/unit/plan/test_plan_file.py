"""A plan that is read back: what is not known is not taken for an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobsubmit.backends.modelarts.backend import ModelArtsBackend
from jobsubmit.config import load_settings
from jobsubmit.errors import BackendError
from jobsubmit.plan.plan_file import read_plan


def test_a_job_that_was_not_submitted_from_here(tmp_path: Path) -> None:
    assert read_plan(tmp_path) is None


@pytest.mark.parametrize("text", ["", '{"backend": ', '{"backend": {}}', '{"backend": {}, "store": {"no": 1}}'])
def test_a_damaged_plan_does_not_say_that_there_is_no_job(text: str) -> None:
    settings = load_settings()
    file = settings.job_dir("a-1") / "plan.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(BackendError, match=r"plan\.json cannot be read"):
        ModelArtsBackend(settings).find("a-1")
