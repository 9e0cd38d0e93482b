"""Job files, values, logs and manifests may hold anything: no traceback follows, and what is passed on stays the same.

`make fuzz` is the long form. A failure prints the smallest input that shows it.
"""

from __future__ import annotations

import json
import os
import shutil
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings, strategies as some

from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.logs.reading import LineReader
from jobsubmit.agent.logs.writing import IndexWriter
from jobsubmit.common.resources import starter_job
from jobsubmit.config import load_settings
from jobsubmit.errors import JobSubmitError, StoreError
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.plan.script import render
from jobsubmit.spec.loader import load, load_mapping
from jobsubmit.transfer.lease import read_lease
from jobsubmit.transfer.manifest import read_manifest

SHORT, LONG = 150, 10_000  # inputs of each test
MODES = ("spawn", "launch", "torchrun")
STARTERS = [starter_job(mode).read_text() for mode in MODES]

fuzzed = settings(
    max_examples=LONG if os.environ.get("JOBSUBMIT_FUZZ") == "long" else SHORT,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder for one input: pytest's own lasts for all of a test's."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        yield Path(folder)


# ── job files ───────────────────────────────────────────────────────────────────────────────────────────────────────

YAML_SIGNS = "\n\t :-[]{}#&*!|>'\"%@`,?~=\\0123456789.eE+_abcnul" + "日é\x00\x7f\ufeff\u2028"


@some.composite
def edited(draw: some.DrawFn) -> str:
    """Draw a starter's text with some pieces taken out, put in or doubled."""
    text = draw(some.sampled_from(STARTERS))
    for _ in range(draw(some.integers(1, 6))):
        start = draw(some.integers(0, len(text)))
        end = draw(some.integers(start, min(len(text), start + 30)))
        piece = draw(some.one_of(some.text(YAML_SIGNS, max_size=12), some.just(text[start:end] * 2)))
        text = text[:start] + piece + text[end:]
    return text


@pytest.mark.timeout(3600)
@fuzzed
@given(some.one_of(edited().map(str.encode), some.binary(max_size=200)))
def test_a_job_file_is_read_or_refused(data: bytes) -> None:
    with scratch() as folder:
        (folder / "job.yaml").write_bytes(data)
        try:
            loaded = load(folder / "job.yaml")
        except JobSubmitError as error:
            assert error.message
            return
        build_plan(loaded.spec, load_settings())


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────

WORDS = some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
RECORDER = "#!{python} -IS\nimport json, os, sys\njson.dump(sys.argv[1:], open(os.environ['RECORD'], 'w'))\n"


@pytest.mark.timeout(3600)
@fuzzed
@given(some.sampled_from(MODES[1:]), some.lists(WORDS, max_size=5), WORDS)
def test_words_arrive_as_they_are(mode: str, args: list[str], value: str) -> None:
    fields = {"name": "j", "mode": mode, "code_dir": ".", "boot_file": "train.py", "args": args}
    spec = load_mapping({**fields, "hyperparameters": {"value": value}}).spec
    with scratch() as folder:
        (folder / "code").mkdir()
        (folder / "code/train.py").touch()
        (folder / "python").write_text(RECORDER.format(python=sys.executable))
        (folder / "python").chmod(0o755)
        environment = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "RECORD": str(folder / "record.json"),
            "VC_WORKER_HOSTS": "w-0",
            "VC_TASK_INDEX": "0",
            "MA_NUM_HOSTS": "1",
            "MA_NUM_GPUS": "1",
            "MA_JOB_DIR": str(folder),
        }
        script = render(build_plan(spec, load_settings())).data
        done = subprocess.run(["bash", "-s"], input=script, env=environment, capture_output=True, cwd=folder)
        assert done.returncode == 0, done.stderr
        words = json.loads((folder / "record.json").read_text())
    assert words[-len(args) - 1 :] == [f"--value={value}", *args]


# ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Source: TypeAlias = tuple[int, int | None, str]
Line: TypeAlias = tuple[float, Source, bytes]

SOURCES: list[Source] = [(0, None, "stdout"), (0, 0, "stdout"), (1, 1, "stderr")]
PIECES = some.lists(
    some.tuples(
        some.integers(0, len(SOURCES) - 1), some.binary(max_size=12) | some.sampled_from([b"\n", b"\r", b"a\n"])
    ),
    max_size=30,
)


@pytest.mark.timeout(3600)
@fuzzed
@given(PIECES, some.integers(1, 5))
def test_following_shows_what_reading_at_the_end_does(pieces: list[tuple[int, bytes]], every: int) -> None:
    with scratch() as folder:
        (folder / "logs").mkdir()
        index, following = IndexWriter(str(folder), 1 << 30), LineReader(str(folder))
        followed: list[Line] = []
        for number, (source, data) in enumerate(pieces):
            with Path(JobDirectory(str(folder)).log_of(*SOURCES[source])).open("ab") as log:
                log.write(data)
            index.note(SOURCES)
            if number % every == 0:
                followed += following.new()
        followed += following.rest()
        following.close()
        reader = LineReader(str(folder))
        at_once = list(reader.rest())
        reader.close()
    assert texts(followed) == texts(at_once)
    letters = set(string.printable.encode()) - set(b"\r\n\t\x0b\x0c ")
    for owner, found in texts(at_once).items():
        written = b"".join(data for number, data in pieces if SOURCES[number] == owner)
        if set(written) <= letters | {ord("\n")}:
            lines = written.split(b"\n")
            assert found == (lines if lines[-1] else lines[:-1])


def texts(lines: list[Line]) -> dict[Source, list[bytes]]:
    """Return the lines of each source."""
    found: dict[Source, list[bytes]] = {}
    for _, source, text in lines:
        found.setdefault(source, []).append(text)
    return found


# ── stores ──────────────────────────────────────────────────────────────────────────────────────────────────────────

JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8),
    lambda inner: (
        some.lists(inner, max_size=4)
        | some.dictionaries(
            some.sampled_from(["format", "files", "digest", "layout", "directories", "claim", "path", "owner", "pid"])
            | some.text(max_size=4),
            inner,
            max_size=8,
        )
    ),
    max_leaves=25,
)


@pytest.mark.timeout(3600)
@fuzzed
@given(some.one_of(JSON.map(lambda value: json.dumps(value).encode()), some.binary(max_size=100)))
def test_what_lies_in_a_manifests_place_is_one_or_nothing(data: bytes) -> None:
    try:
        manifest = read_manifest(data, "s3://b/code")
    except StoreError as newer:
        assert "newer version" in newer.message
        return
    assert manifest is None or isinstance(manifest.digest, str)
    claim = read_lease(data)
    assert claim is None or isinstance(claim.owner, str)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_recorder_is_what_the_script_starts() -> None:
    """Where it was not, the test of words would show nothing."""
    test_words_arrive_as_they_are.hypothesis.inner_test("torchrun", ["a b"], "$(id)")
