"""The documents for Slurm and Kubernetes: names, sizes, quoting; what they do, with stand-ins for the engines."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hostile import HOSTILE

from jobsubmit import agent as node
from jobsubmit.agent import run, sigv4
from jobsubmit.agent.protocol import NodeStatus
from jobsubmit.agent.recovery.outcome import find_outcome
from jobsubmit.backends.protocol import Request
from jobsubmit.backends.registry import open_backend
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.slurm.states import STATES, explain_wait
from jobsubmit.backends.volcano.names import host_list_length, object_name
from jobsubmit.config import load_settings
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.plan.script import render
from jobsubmit.spec.loader import load_mapping
from jobsubmit.transfer.code_ref import CodeRef

_ETCD_LIMIT = 1_500_000  # bytes an object may have (etcd's documentation)


def request(job_id: str = "a-job-x1", **fields: Any) -> Request:
    given = {"name": "a-job", "mode": "torchrun", "boot_file": "t.py", "code_dir": "/code", "image": "i:1", **fields}
    settings = load_settings()
    job = build_plan(load_mapping(given).spec, settings)
    code = CodeRef("s3://b/x/code.tar.gz", "x/code.tar.gz", "archive", "code", "d" * 64)
    return open_backend(job.backend.kind, settings).request(job, render(job), code, job_id)


def hostile_fields() -> dict[str, Any]:
    return {"env": {f"E{n}": value for n, value in enumerate(HOSTILE)}, "args": list(HOSTILE)}


@pytest.mark.parametrize("kind", ["slurm", "volcano"])
def test_requests_for_4096_nodes_are_small_and_quick(kind: str) -> None:
    fields = {"resources": {"nodes": 4096, "nproc_per_node": 8}, "backend": {"kind": kind}, "name": "n" * 64}
    agent_archive()
    began = time.process_time()
    found = request("n" * 64 + "-abcdef", **fields)
    assert time.process_time() - began < 1.0
    assert all(len(text) < _ETCD_LIMIT / 2 for text in found.documents.values())
    assert found == request("n" * 64 + "-abcdef", **fields)


@pytest.mark.parametrize("job_id", ["plain-x1", "Upper_Case", "upper-case", "9lives", "_", "x" * 80, "a--", "Ünï"])
@pytest.mark.parametrize("nodes", [1, 256, 4096])
def test_names_of_kubernetes(job_id: str, nodes: int) -> None:
    name = object_name(job_id, nodes)
    longest_pod = f"{name}-worker-{nodes - 1}"
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", longest_pod)
    assert host_list_length(name, nodes) < 120_000
    real = len(",".join(f"{name}-worker-{index}.{name}" for index in range(nodes)))
    assert real <= host_list_length(name, nodes)


def test_different_ids_have_different_names() -> None:
    ids = ["a-b", "a_b", "A-b", "a-B", "x" * 79, "x" * 80, "_", "__", "9", "_9"]
    for nodes in (1, 4096):
        assert len({object_name(job_id, nodes) for job_id in ids}) == len(ids)


def test_sbatch_documents_pass_shellcheck(tmp_path: Path) -> None:
    folder = tmp_path / "a'; echo foo"
    backend = {"kind": "slurm", "shared_dir": str(folder), "constraint": "a100&ib", "exclude": "gpu[3-5]"}
    text = request(backend=backend, **hostile_fields()).documents["job.sbatch"]
    (tmp_path / "job.sbatch").write_text(text)
    checker = str(Path(sys.executable).parent / "shellcheck")
    command = [checker, "--enable=all", "--exclude=SC2310,SC2312,SC2250", str(tmp_path / "job.sbatch")]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()


SCONTROL = """#!/bin/bash
[[ $1 == show ]] && for ((n = 0; n < 4096; n++)); do echo "a-node-with-a-long-name-$n"; done
[[ $1 == requeue ]] && { echo "requeue $2" >>"${RECORD}"; kill "${PPID}"; }
exit 0
"""
SRUN = """#!/bin/bash
printf '%s\\n' "$@" >"${RECORD}.srun"
env >"${RECORD}.env"
exit 7
"""
PYTHON = """#!/bin/bash
[[ $4 == outcome ]] && exit "${VERDICT}"
exit 0
"""


@pytest.mark.parametrize(("verdict", "code"), [(0, 7), (9, 9), (75, None)])
def test_the_document_derives_the_node_contract(verdict: int, code: int | None, tmp_path: Path) -> None:
    """4,096 long names do not fit into a variable: they go by file."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("python3", PYTHON)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    backend = {"kind": "slurm", "shared_dir": str(tmp_path / "sha red")}
    found = request(backend=backend, resources={"nodes": 4096, "nproc_per_node": 8}, **hostile_fields())
    (tmp_path / "sha red" / "a-job-x1").mkdir(parents=True)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "a-node-with-a-long-name-[0-4095]",
        "SLURM_JOB_ID": "4711",
        "RECORD": str(tmp_path / "record"),
        "VERDICT": str(verdict),
    }
    text = found.documents["job.sbatch"]
    done = subprocess.run(["bash", "-s"], input=text.encode(), env=environment, capture_output=True, timeout=30)
    if code is None:
        assert (tmp_path / "record").read_text() == "requeue 4711\n"
    else:
        assert done.returncode == code, done.stderr
    told = dict(line.split("=", 1) for line in (tmp_path / "record.env").read_text().splitlines() if "=" in line)
    assert (told["MA_NUM_HOSTS"], told["VC_WORKER_NUM"], told["JOBSUBMIT_JOB_ID"]) == ("4096", "4096", "a-job-x1")
    assert told["JOBSUBMIT_MASTER_PORT"] == "24711"
    assert told["JOBSUBMIT_RESTART_COUNT"] == "0"
    assert "VC_WORKER_HOSTS" not in told
    hosts = Path(told["JOBSUBMIT_HOSTS_FILE"]).read_text().split(",")
    assert (len(hosts), hosts[0], hosts[-1]) == (4096, "a-node-with-a-long-name-0", "a-node-with-a-long-name-4095")
    written = json.loads((tmp_path / "sha red" / "a-job-x1" / "request.json").read_text())
    assert written["env"] == hostile_fields()["env"]
    assert "--kill-on-bad-exit=1" in (tmp_path / "record.srun").read_text()


def test_kubernetes_gets_values_as_they_are() -> None:
    documents = request(backend={"kind": "volcano"}, **hostile_fields()).documents
    pod = yaml.safe_load(documents["vcjob.yaml"])["spec"]["tasks"][0]["template"]["spec"]
    env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    for name, value in hostile_fields()["env"].items():
        assert env[name].replace("$$", "$") == value
        assert "$" not in env[name].replace("$$", "")


@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ({"placement": "pack"}, {"affinity": {"podAffinity": ...}}),
        ({"placement": "spread"}, {"affinity": {"podAntiAffinity": ...}}),
        ({"host_network": True}, {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}),
        ({"node_selector": {"gpu": "a100"}}, {"nodeSelector": {"gpu": "a100"}}),
        ({"service_account": "me"}, {"serviceAccountName": "me", "automountServiceAccountToken": True}),
        ({"image_pull_secrets": ["s"]}, {"imagePullSecrets": [{"name": "s"}]}),
        ({"tolerations": [{"key": "gpu"}]}, {"tolerations": [{"key": "gpu", "operator": "Equal"}]}),
    ],
)
def test_fields_of_the_pods(backend: dict[str, Any], wanted: dict[str, Any]) -> None:
    documents = request(backend={"kind": "volcano", **backend}).documents
    pod = yaml.safe_load(documents["vcjob.yaml"])["spec"]["tasks"][0]["template"]["spec"]
    for name, value in wanted.items():
        if isinstance(value, dict) and ... in value.values():
            assert set(pod[name]) == set(value)
        else:
            assert pod[name] == value


def test_gpus_shared_memory_and_the_rendezvous_port() -> None:
    backend = {"kind": "volcano", "resources": {"nvidia.com/gpu": 8, "memory": "64Gi"}, "shm_size": "16Gi"}
    pod = yaml.safe_load(request(backend=backend).documents["vcjob.yaml"])["spec"]["tasks"][0]["template"]["spec"]
    worker = pod["containers"][0]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "8", "memory": "64Gi"}
    assert worker["ports"] == [{"name": "rendezvous", "containerPort": 6060}]
    assert {"name": "shm", "mountPath": "/dev/shm"} in worker["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in pod["volumes"]


@pytest.mark.parametrize(
    ("restarts", "retries", "policies"),
    [
        (None, 1, ["PodEvicted T", "PodFailed T"]),
        (2, 3, ["75 R", "143 R", "137 R", "PodEvicted R", "PodFailed T"]),
        ({"max": 2, "on": ["exit:7"]}, 3, ["75 R", "143 T", "137 T", "PodEvicted T", "PodFailed T"]),
    ],
)
def test_restarts_are_volcanos_policies(restarts: Any, retries: int, policies: list[str]) -> None:
    spec = yaml.safe_load(request(backend={"kind": "volcano"}, restarts=restarts).documents["vcjob.yaml"])["spec"]
    assert spec["maxRetry"] == retries
    assert [f"{p.get('event', p.get('exitCode'))} {p['action'][0]}" for p in spec["policies"]] == policies


def test_every_reason_to_wait_is_explained() -> None:
    for reason in ("Resources", "Priority", "QOSMaxJobsPerUserLimit", "AssocGrpGRES", "JobHeldUser", "PartitionDown"):
        assert explain_wait(reason, "7") != f"Slurm's reason: {reason}", reason
    assert "SomethingNew" in explain_wait("SomethingNew", "7")
    assert {"PENDING", "RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"} <= set(STATES)


def test_the_nodes_program_is_python_3_8() -> None:
    for file in Path(node.__path__[0]).rglob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))


def test_code_whose_addresses_have_expired(tmp_path: Path, monkeypatch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    for name, value in {"VC_TASK_INDEX": "0", "VC_WORKER_HOSTS": "h", "JOBSUBMIT_MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "order.json").write_text(json.dumps({"expires": time.time() - 1}))
    assert run.fetch(str(tmp_path), str(tmp_path)) == 1
    assert "have expired; submit the job again" in capfd.readouterr().err


def test_our_signatures_are_those_of_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from botocore.client import Config

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "to/ken+=")
    config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
    session = boto3.Session(region_name="eu-west-1")  # the default one would keep these keys for other tests
    client = session.client("s3", endpoint_url="http://127.0.0.1:9000", config=config)
    for method, operation in (("GET", "get_object"), ("PUT", "put_object")):
        theirs = client.generate_presigned_url(operation, Params={"Bucket": "b", "Key": "a/b c+d.gz"}, ExpiresIn=3600)
        now = re.findall(r"X-Amz-Date=(\w+)", theirs)[0]
        ours = sigv4.sign_url(theirs.partition("?")[0], method, "eu-west-1", now)
        assert sorted(ours.partition("?")[2].split("&")) == sorted(theirs.partition("?")[2].split("&"))
    client.close()


def failed(node_index: int, rank: int | None, at: float, **evidence: Any) -> NodeStatus:
    failure: Any = {"node": node_index, "rank": rank, "exit_code": 7, "signal": None, "victims": []}
    failure["evidence"] = {"t": at, "was_told": False, "is_victim": False, "is_leader": rank is None, **evidence}
    return {"state": "FAILED", "reason": "EXIT_CODE", "message": f"node {node_index}", "failure": failure}


def test_nodes_together_name_the_cause_and_not_its_victims() -> None:
    told: NodeStatus = {"state": "CANCELLED", "reason": "STOPPED_BY_ENGINE", "message": "", "failure": None}
    victim, cause = failed(0, 0, 1.0, is_victim=True), failed(1, 3, 2.0)
    outcome = find_outcome([victim, cause, told], 3)
    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.message, outcome.failure["victims"]) == ("node 1", [0])
    alike = find_outcome([failed(0, 0, 5.0, kinds=["OSError"]), failed(1, 3, 2.0, kinds=["OSError"])], 2)
    assert alike is not None
    assert alike.failure is not None
    assert (alike.failure["victims"], alike.failure["alike"]) == ([], [0])
    later = find_outcome([failed(0, 0, 5.0), failed(1, 3, 2.0)], 2)
    assert later is not None
    assert later.message == "node 1"
    assert find_outcome([told], 2) is None
    ended: NodeStatus = {"state": "SUCCEEDED", "reason": "", "message": "", "failure": None}
    assert find_outcome([ended], 2) is None
    whole = find_outcome([ended, ended], 2)
    assert whole is not None
    assert whole.state == "SUCCEEDED"
