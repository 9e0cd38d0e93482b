"""Real DDP training in every mode on every backend; the script that ran is the script that was shown.

`make test` runs few trainings: every possible pair of (mode, backend, nodes, processes, store, layout) is in one of
them, and each mode trains on each backend on 2 nodes with 2 processes each. `make test-all` adds
every mode and shape of up to 2 nodes on each backend, and of 3 nodes on `local`.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pairwise
import pytest
from bucket import Bucket
from command import Command, events, handle, job_dir, job_id, processes_left
from engine import NEEDS, Engine, engine_of
from losses import losses_of
from pairwise import Case
from ruamel.yaml import YAML

from jobsubmit.bundle.scanner import scan
from jobsubmit.common.resources import SAMPLE_CODE, starter_job

FACTORS: dict[str, tuple[Any, ...]] = {
    "mode": ("spawn", "launch", "torchrun"),
    "backend": tuple(NEEDS),
    "nodes": (1, 2, 3),
    "nproc": (1, 2),
    "store": ("folder", "bucket"),
    "layout": ("archive", "tree"),
}
FIRST_STEPS = ["bundle", "check", "upload", "fetch", "rendezvous", "first_output", "training", "exit"]


def is_possible(case: Case) -> bool:
    """Pods and ModelArts see no folder of this machine; ModelArts takes a code directory, not an archive."""
    if case["backend"] in ("volcano", "modelarts") and case["store"] == "folder":
        return False
    return not (case["backend"] == "modelarts" and case["layout"] == "archive")


POSSIBLE = pairwise.possible_cases(FACTORS, is_possible)
SEEDS = [
    {"mode": mode, "backend": backend, "nodes": 2, "nproc": 2}
    for mode in FACTORS["mode"]
    for backend in FACTORS["backend"]
]
CHOSEN = pairwise.cover(POSSIBLE, SEEDS, lambda case: 1 + case["nodes"] * (1 + case["nproc"]))


def product_of_shapes() -> list[Case]:
    """Return all modes, nodes and processes on each backend, the layouts in turn; local also through a bucket."""
    found = []
    for case in POSSIBLE:
        usual = "folder" if case["backend"] in ("local", "ssh", "slurm") else "bucket"
        is_odd = (case["nodes"] + case["nproc"]) % 2 == 1
        layout = "archive" if is_odd and case["backend"] != "modelarts" else "tree"
        is_wanted = case["store"] == usual or case["backend"] == "local"
        fits = case["nodes"] < 3 or case["backend"] == "local"
        if case["layout"] == layout and is_wanted and fits:
            found.append(case)
    return found


def id_of(case: Case) -> str:
    return "{mode}-{backend}-{nodes}x{nproc}-{store}-{layout}".format_map(case)


def parameters() -> list[Any]:
    """Return the cases of `make test`, then those that are left for `make test-all`."""
    found = [(case, True) for case in CHOSEN] + [(case, False) for case in product_of_shapes() if case not in CHOSEN]
    return [pytest.param(case, id=id_of(case), marks=marks_of(case, is_chosen=chosen)) for case, chosen in found]


def marks_of(case: Case, *, is_chosen: bool) -> list[pytest.MarkDecorator]:
    servers = ("minio",) if case["store"] == "bucket" else ()
    needs = pytest.mark.needs("torch", *NEEDS[case["backend"]], *servers)
    return [needs] if is_chosen else [needs, pytest.mark.slow]


def test_every_pair_is_covered_and_these_cannot_be() -> None:
    found = {pair for case in CHOSEN for pair in pairwise.pairs(case)}
    assert found == {pair for case in POSSIBLE for pair in pairwise.pairs(case)}
    assert pairwise.impossible_pairs(FACTORS, CHOSEN) == [
        (("backend", "volcano"), ("store", "folder")),
        (("backend", "modelarts"), ("store", "folder")),
        (("backend", "modelarts"), ("layout", "archive")),
    ]
    print("\n".join(map(id_of, CHOSEN)))


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return the engine of the case."""
    return engine_of(request.node.callspec.params["case"]["backend"], request)


def job_file(case: Case, engine: Engine, folder: Path, request: pytest.FixtureRequest) -> tuple[Path, Bucket | None]:
    """Write the job file of a case; return it, and the bucket that nobody but this job writes to, if there is one."""
    fields = {
        **starter(case),
        "code_dir": str(SAMPLE_CODE),
        "resources": {"nodes": case["nodes"], "nproc_per_node": case["nproc"]},
        "layout": case["layout"],
    }
    if uses_c10d(case):
        fields["torch_version"] = "2.9"
    if case["store"] == "folder" or "store" in engine.fields:
        return engine.job(folder, **fields), None
    bucket: Bucket = request.getfixturevalue("hosts_bucket" if engine.kind == "ssh" else "bucket")
    store = {"uri": f"s3://{bucket.name}/jobs", "endpoint_url": bucket.server.endpoint}
    return engine.job(folder, **fields, store=store), bucket


def starter(case: Case) -> dict[str, Any]:
    """Return the fields of the job file that jobsubmit brings along for a mode, but what a backend has of its own."""
    found: dict[str, Any] = YAML(typ="safe").load(starter_job(case["mode"]).read_text())
    return {name: value for name, value in found.items() if name not in ("name", "image", "framework", "torch_version")}


def uses_c10d(case: Case) -> bool:
    """With a known version of torch the nodes meet by c10d, else by a static rendezvous: both shall run."""
    return bool(case["mode"] == "torchrun" and case["store"] == "bucket")


@pytest.mark.parametrize("case", parameters())
def test_training(
    case: Case,
    engine: Engine,
    jobsubmit: Command,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> None:
    job, bucket = job_file(case, engine, tmp_path, request)
    keeps_ranks = engine.keeps_ranks(case["mode"])
    is_timed = case["nodes"] == case["nproc"] == 2 and engine.has_timings  # a training is the same without
    flags = ("--profile-sync",) if is_timed else ()
    done = jobsubmit("create", job, "--follow", *flags)
    ranks = case["nodes"] * case["nproc"]
    losses = losses_of(done.stderr, ranks, keeps_ranks=keeps_ranks)
    assert losses == same_for_all(tmp_path_factory.getbasetemp(), ranks, losses)
    name = handle(done.stdout)
    status = jobsubmit.json("status", name)
    assert status["state"] == "SUCCEEDED"
    assert status["training"]["loss"] is not None
    if is_timed:
        report = jobsubmit.json("report", name)
        assert_timed(report)
        used = [(rank["name"], rank["node"]) for rank in report["machines"]["ranks"]]
        assert used == [(str(rank), rank // case["nproc"]) for rank in range(ranks)]
        assert report["goodput"]["knows_steps"]
        assert report["goodput"]["seconds"]["training steps"] > 0
    if case["mode"] == "torchrun":
        assert f"--rdzv_backend={'c10d' if uses_c10d(case) else 'static'}" in done.stderr
    if not keeps_ranks:
        return  # there a start script is what others run
    shown = jobsubmit("render", job, *flags).stdout
    assert status["script_sha256"] == hashlib.sha256(shown.encode()).hexdigest()
    if bucket:
        assert_bucket(bucket, case["layout"], shown)
    if case["backend"] == "local":
        assert_left_by_local_job(job_id(done.stdout), shown, case["nodes"])
        assert [step["name"] for step in status["steps"]] == FIRST_STEPS
        assert all(step["start"] <= step["end"] for step in status["steps"])


def same_for_all(temporary: Path, ranks: int, losses: list[str]) -> list[str]:
    """Return the losses of the first training with so many ranks, whichever worker of pytest ran it."""
    shared = temporary.parent if temporary.name.startswith("popen-") else temporary
    file, own = shared / f"losses-of-{ranks}-ranks.json", temporary / "losses.json"
    own.write_text(json.dumps(losses))
    with suppress(FileExistsError):
        file.hardlink_to(own)  # whole, or not at all: another worker may read it at this moment
    own.unlink()
    found: list[str] = json.loads(file.read_text())
    return found


def assert_timed(report: dict[str, Any]) -> None:
    (sync,) = report["syncs"]
    ranks = [(rank["rank"], rank["node"], rank["steps"]) for rank in sync["ranks"]]
    assert ranks == [(0, 0, 1), (1, 0, 1), (2, 1, 1), (3, 1, 1)]
    assert (sync["name"], sync["backend"], sync["world"]) == ("ToyModel", "gloo", 4)
    names = [phase["name"] for phase in report["phases"]]
    expected = ["upload", "process group", "first step", "training"]
    assert [name for name in names if name in expected] == expected


def assert_bucket(bucket: Bucket, layout: str, script: str) -> None:
    """Assert that the bucket holds the code, its manifest and the script, and nothing else."""
    bundle = scan(SAMPLE_CODE)
    contents = bucket.objects()
    base = f"jobs/contract/{bundle.digest}/code"
    expected = {f"jobs/contract/scripts/{hashlib.sha256(script.encode()).hexdigest()}.sh": script.encode()}
    if layout == "tree":
        expected |= {f"{base}/{file.path}": Path(file.source).read_bytes() for file in bundle.files}
        manifest = contents.pop(f"{base}.manifest.json")
    else:
        manifest = contents.pop(f"{base}.tar.gz.manifest.json")
        assert contents.pop(f"{base}.tar.gz")[:2] == b"\x1f\x8b"
    assert contents == expected
    assert json.loads(manifest)["digest"] == bundle.digest


def assert_left_by_local_job(job: str, script: str, nodes: int) -> None:
    """Assert that no process is left, and that each node has run exactly the script that was shown."""
    assert processes_left(job) == []
    executed = {event["script"] for event in events(job) if event["event"] == "node_start"}
    assert executed == {hashlib.sha256(script.encode()).hexdigest()}
    for node in range(nodes):
        assert (job_dir(job) / f"nodes/{node}/start.sh").read_text() == script
