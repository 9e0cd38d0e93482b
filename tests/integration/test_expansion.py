"""`render --expand` tells what each process will see: every combination is started for real, and compared."""

from __future__ import annotations

import copy
import gc
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from command import Command
from tiers import slow

RECORDER = """
import json, os, sys
where = os.path.join(os.environ["RECORDS"], os.environ["NODE_RANK"] + "-" + os.environ.get("LOCAL_RANK", "") + ".json")
with open(where, "w") as stream:
    json.dump({"argv": sys.argv, "environment": dict(os.environ)}, stream)
"""
SHAPES = [(nodes, nproc) for nodes in (1, 2, 3) for nproc in (1, 2)]
# What a contract or a launcher sets; all of it must be told.
CONTRACT = re.compile(
    r"(MA|VC|JOBSUBMIT(?!_GANG))_.*|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|ROLE_NAME|NNODES|NODE_(RANK|ADDR)"
    r"|TORCHELASTIC_(RESTART_COUNT|MAX_RESTARTS|RUN_ID|USE_AGENT_STORE|ERROR_FILE)|NPROC_PER_NODE|MASTER_.*|RDZV_ID|OMP_NUM_THREADS|PYTHONUNBUFFERED|TOKEN|PLAIN"
)
SETTINGS = ("JOBSUBMIT_STATE_DIR", "JOBSUBMIT_REQUIRE", "JOBSUBMIT_CONFIG")


def job_file(folder: Path, mode: str, **extra: Any) -> Path:
    for name in ("code", "records"):
        (folder / name).mkdir()
    (folder / "code" / "boot.py").write_text(RECORDER)
    job = {
        "name": "expanded",
        "mode": mode,
        "code_dir": "code",
        "boot_file": "boot.py",
        "hyperparameters": {"lr": 0.1, "flag": {"flag": True}, "names": ["a b", "c"]},
        "env": {"RECORDS": str(folder / "records"), "PLAIN": "$(id) 'x'"},
        "secrets": {"TOKEN": "env:TOKEN_HERE"},
        **({} if mode == "spawn" else {"args": ["last one"]}),
        **extra,
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    return folder / "job.yaml"


def filled(value: dict[str, Any], environment: dict[str, str]) -> str | None:
    """Return a value with what only the node knows; None where it is described only."""
    text = str(value["value"])
    if not value.get("open"):
        return text
    hosts = environment["VC_WORKER_HOSTS"].split(",")
    text = re.sub(r"<address of node (\d+)>", lambda match: hosts[int(match[1])], text)
    text = re.sub(r"<port,[^>]*>", environment["JOBSUBMIT_MASTER_PORT"], text)
    text = text.replace("<addresses of all nodes>", ",".join(hosts)).replace("<secret TOKEN_HERE>", "hush")
    text = text.replace("<id of the job>", environment["JOBSUBMIT_JOB_ID"])
    return None if "<" in text else text


def compare(told: dict[str, Any], folder: Path) -> None:
    processes = [(node, process) for node in told["nodes"] for process in node["processes"]]
    assert len(list(folder.glob("*.json"))) == len(processes)
    for node, process in processes:
        local = "" if process["local_rank"] is None else process["local_rank"]
        real = json.loads((folder / f"{node['node']}-{local}.json").read_text())
        environment = real["environment"]
        argv = [filled(word, environment) for word in process.get("argv", told["argv"])]
        assert [Path(real["argv"][0]).name, *real["argv"][1:]] == argv
        expected = {**told["environment"], **node["environment"], **process["environment"]}
        for name, value in expected.items():
            assert filled(value, environment) in (None, environment[name]), name
        untold = {name for name in environment if CONTRACT.fullmatch(name)} - set(expected) - set(SETTINGS)
        assert untold == set()


def cases() -> list[Any]:
    """Return each mode and shape; without a launcher of torch all are quick."""
    every = [(mode, nodes, nproc) for mode in ("spawn", "launch", "torchrun") for nodes, nproc in SHAPES]
    return [case if case[0] == "spawn" or case[1:] == (2, 2) else slow(*case) for case in every]


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("mode", "nodes", "nproc"), cases())
def test_it_equals_reality(
    mode: str, nodes: int, nproc: int, jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_HERE", "hush")
    extra = {"local_rank": "argument"} if (mode, nproc) == ("launch", 2) else {}
    job = job_file(tmp_path, mode, resources={"nodes": nodes, "nproc_per_node": nproc}, **extra)
    told = jobsubmit.json("render", job, "--expand")
    jobsubmit("create", job, "--follow")
    compare(told, tmp_path / "records")


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_the_rendezvous_by_c10d(jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_HERE", "hush")
    resources = {"nodes": 2, "nproc_per_node": 2}
    job = job_file(tmp_path, "torchrun", resources=resources, torch_version="2.9")
    told = jobsubmit.json("render", job, "--expand")
    jobsubmit("create", job, "--follow")
    compare(told, tmp_path / "records")


def test_one_node_of_many_is_shown_at_once(jobsubmit: Command, tmp_path: Path) -> None:
    job = job_file(tmp_path, "torchrun", resources={"nodes": 4096, "nproc_per_node": 8})
    told = jobsubmit.json("render", job, "--expand", "--node", "4095")
    (node,) = told["nodes"]
    assert [process["rank"] for process in node["processes"]] == list(range(32760, 32768))
    assert told["environment"]["WORLD_SIZE"] == {"value": "32768", "origin": "launcher"}
    text = jobsubmit("render", job, "--expand", "--node", "7").stdout
    assert "RANK=56 " in text
    assert "hush" not in text
    wrong = jobsubmit("render", job, "--expand", "--node", "4096", code=2)
    assert "0 to 4095" in wrong.stderr


def test_every_value_says_who_gives_it(jobsubmit: Command, tmp_path: Path) -> None:
    job = job_file(tmp_path, "spawn", resources={"nodes": 1})
    told = jobsubmit.json("render", job, "--expand")
    origins = {word["value"].partition("=")[0]: word["origin"] for word in told["argv"]}
    assert origins["--lr"] == "spec"
    assert origins["--world_size"] == origins["--rank"] == "jobsubmit"
    assert origins["--init_method"] == "platform"
    assert told["environment"]["PLAIN"]["origin"] == "spec"
    assert told["environment"]["TOKEN"] == {"value": "<secret TOKEN_HERE>", "origin": "spec", "open": True}


def test_all_processes_of_4096_nodes_take_less_than_two_seconds(tmp_path: Path) -> None:
    """Where memory is slow, they take at most three times as long as copying a quarter of them."""
    from jobsubmit.config import BUILT_IN
    from jobsubmit.plan import launch_plan as planning
    from jobsubmit.plan.processes import expand
    from jobsubmit.spec.loader import load

    job = job_file(tmp_path, "torchrun", resources={"nodes": 4096, "nproc_per_node": 8})
    taken, copying = [], []
    gc.collect()
    gc.freeze()  # what other tests hold in memory is not looked through again and again
    for _ in range(3):
        began = time.process_time()
        expansion = expand(planning.build_plan(load(job, []).spec, BUILT_IN))
        expanded = time.process_time()
        copy.deepcopy(expansion.nodes[:1024])
        taken.append(expanded - began)
        copying.append(time.process_time() - expanded)
        assert sum(len(node.processes) for node in expansion.nodes) == 32768
    gc.unfreeze()
    assert min(taken) < max(2, 3 * min(copying))
