"""The stacks of a job that hung, from the folders of its nodes."""

from __future__ import annotations

from pathlib import Path

from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.backends.shared.shared_folder import SharedFolder


def hung(folder: Path, attempt: int, node: int, rank: int, text: str) -> None:
    file = Path(JobDirectory(folder).node_of(attempt, node).stacks_of(rank))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_stacks_of_all_nodes_are_those_of_the_last_attempt_that_hung(tmp_path: Path) -> None:
    for rank in range(4):
        hung(tmp_path, 0, rank // 2, rank, f"first {rank}")
        hung(tmp_path, 1, rank // 2, rank, f"second {rank}")
        hung(tmp_path, 2, rank // 2, rank, "")  # each rank opens its file when it starts
    hung(tmp_path, 2, 1, 3, "third 3")
    (tmp_path / "run-2/node-1/stacks/other").touch()
    assert SharedFolder(tmp_path).stacks() == {0: b"second 0", 1: b"second 1", 2: b"second 2", 3: b"third 3"}


def test_a_job_that_did_not_hang_has_none(tmp_path: Path) -> None:
    hung(tmp_path, 0, 0, 0, "")
    assert SharedFolder(tmp_path).stacks() == {}
