"""Before its options are parsed, `create` connects to the hosts of a job file, if that is certain to be right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobsubmit.backends.ssh import connecting
from jobsubmit.cli.early_connection import connect_to_machines

JOB = "name: a\nbackend: {kind: ssh, hosts: [gpu1, gpu2], python: /opt/python}\n"
ASKED = (["gpu1", "gpu2"], "~/.jobsubmit", "facts", {"python": "/opt/python", "interface": None})


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Return what is asked ahead; the current folder has a job.yaml."""
    found: list[tuple[object, ...]] = []
    monkeypatch.setattr(connecting, "ask_ahead", lambda *question: found.append(question))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "other.yaml").write_text("name: b\nbackend: {kind: ssh, hosts: [gpu9]}\n")
    return found


@pytest.mark.parametrize("words", [[], ["job.yaml"], ["--follow"], ["job.yaml", "--job-id", "j", "-o", "json"]])
def test_the_hosts_are_asked_for_their_facts(words: list[str], asked: list[tuple[object, ...]]) -> None:
    connect_to_machines(words)
    assert asked == [ASKED]


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run"],
        ["--help"],
        ["--set", "backend.hosts=[gpu3]"],
        ["--set=backend.python=/x"],
        ["--backend", "local"],
        ["-eA=b"],
        ["job.yaml", "other.yaml"],
    ],
)
def test_where_the_file_may_not_be_what_counts_nobody_is_asked(
    words: list[str], asked: list[tuple[object, ...]]
) -> None:
    connect_to_machines(words)
    assert asked == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh: [",
        "backend: ssh",
        "backend: {kind: local, hosts: [ssh]}",
        "backend: {kind: ssh, hosts: gpu1}",
        "backend: {kind: ssh, hosts: [1, 2]}",
        "backend: {kind: ssh, hosts: [gpu1], workdir: 3}",
    ],
)
def test_a_file_that_is_wrong_is_left_to_whoever_reads_it(
    text: str, asked: list[tuple[object, ...]], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    connect_to_machines([])
    assert asked == []


def test_no_host_is_an_option_of_ssh(asked: list[tuple[object, ...]], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("backend: {kind: ssh, hosts: [-oProxyCommand=x, gpu1, gpu1]}\n")
    connect_to_machines([])
    assert [hosts for hosts, *_ in asked] == [["gpu1"]]


def test_a_pipe_is_left_to_whoever_can_read_it_only_once(asked: list[tuple[object, ...]], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").unlink()
    os.mkfifo(tmp_path / "job.yaml")
    connect_to_machines(["job.yaml"])
    assert asked == []


def test_words_that_cannot_be_names_of_files_are_no_error(asked: list[tuple[object, ...]]) -> None:
    connect_to_machines(["--expect", "a" * 5000])
    assert asked == []


def test_only_the_beginning_of_a_large_file_is_read(asked: list[tuple[object, ...]], tmp_path: Path) -> None:
    with (tmp_path / "weights.bin").open("wb") as stream:
        stream.truncate(1 << 40)  # more than the memory of any machine
    connect_to_machines(["weights.bin"])
    assert asked == []
