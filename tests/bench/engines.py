"""How long it takes from `create` to the first line of user code, against the same submitted by hand.

    python tests/bench/engines.py slurm --pairs 9
    python tests/bench/engines.py volcano --pairs 9
    python tests/bench/engines.py ssh --pairs 9

By hand means: the same start script, image and code fetch, the code uploaded before, in a document that somebody wrote
(sbatch, kubectl apply), or on SSH hosts in two commands, with the code there already: no checks, no log collection, no
report. Both run on the test engines, as pairs in turn. Each connection to an SSH host is a new one.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("support", "engines")]

import kubernetes_cluster
import minio_server
import slurm
import ssh_hosts
import yaml
from command import JOBSUBMIT
from engine import Engine, volcano_fields

BOOT = "import time\nprint('first line at', time.time(), flush=True)\n"
NODES = 2
PARTS: list[dict[str, float]] = []  # of each job of ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["slurm", "volcano", "ssh"])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--mode", choices=["torchrun", "spawn"], default="torchrun", help="spawn: without torch at all")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jobsubmit-bench-") as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        os.environ["JOBSUBMIT_STATE_DIR"] = str(root / "state")
        run = stack.enter_context({"slurm": _slurm, "volcano": _volcano, "ssh": _ssh}[chosen.engine](root, chosen.mode))
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(chosen.pairs + 1):
            for measured in (ours, theirs) if number % 2 else (theirs, ours):
                seconds = run(measured is ours, number)
                if number:  # the first warms caches up
                    measured.append(seconds)
        ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
        print(f"{chosen.engine}: create {statistics.median(ours):.2f} s, by hand {statistics.median(theirs):.2f} s")
        print(f"ratio: median {statistics.median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}")
        for name in PARTS[1]:
            print(f"  {name:<60} {statistics.median(part[name] for part in PARTS[1:]):.2f} s")


def _create(job: Path, number: int) -> float:
    began = time.time()
    command = [*JOBSUBMIT, "create", str(job), "--follow", "--job-id", f"bench-{number}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first_line = _last_first_line(done.stderr)
    PARTS.append(_parts(f"bench-{number}", began, first_line))
    return first_line - began


def _parts(job: str, began: float, first_line: float) -> dict[str, float]:
    """Return how long each part of the way to the first line of user code took."""
    shown = subprocess.run([*JOBSUBMIT, "status", job, "-o", "json"], capture_output=True, text=True, check=True)
    phases = {phase["name"]: phase for phase in json.loads(shown.stdout)["steps"]}
    loaded, uploaded = phases["bundle"]["start"], phases["upload"]["end"]
    fetches, fetched = phases["fetch"]["start"], phases["fetch"]["end"]
    return {
        "start Python and load jobsubmit": loaded - began,
        "read, check and upload the code": uploaded - loaded,
        "submit, and wait until the platform starts the first node": fetches - uploaded,
        "fetch and verify the code on the first node": fetched - fetches,
        "start script and launcher, until the last node's first line": first_line - fetched,
    }


def _last_first_line(text: str) -> float:
    """Return when the last node printed its first line."""
    found = re.findall(r"first line at (\d+\.\d+)", text)
    assert len(found) == NODES, text
    return max(map(float, found))


def _job(engine: Engine, root: Path, mode: str) -> Path:
    (root / "code").mkdir()
    (root / "code" / "main.py").write_text(BOOT)
    resources = {"nodes": NODES, "nproc_per_node": 1}
    return engine.job(root, name="bench", mode=mode, boot_file="main.py", resources=resources)


BY_HAND_SLURM = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output={root}/hand-{number}.log
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export VC_WORKER_HOSTS=$(IFS=,; echo "${{hosts[*]}}") VC_WORKER_NUM=2
export MA_NUM_HOSTS=2 MA_NUM_GPUS=1 JOBSUBMIT_MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
srun bash -c 'export VC_TASK_INDEX=$SLURM_NODEID MA_JOB_DIR={root}/hand-{number}-$SLURM_NODEID
python3 -I -S -c "{fetch}" {root}/agent.pyz "$MA_JOB_DIR" <{root}/order.json >/dev/null &&
exec bash "$MA_JOB_DIR/start.sh"'
"""


@contextlib.contextmanager
def _slurm(root: Path, mode: str) -> Iterator[Callable[[bool, int], float]]:
    with slurm.running(root / "cluster", nodes=NODES) as cluster:
        os.environ.update(cluster.environment)
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        job = _job(Engine("slurm", {"backend": {"kind": "slurm"}}), root, mode)
        (root / "order.json").write_text(json.dumps(_order(job)))
        (root / "agent.pyz").write_bytes(_agent())

        def run(is_ours: bool, number: int) -> float:
            if is_ours:
                return _create(job, number)
            text = BY_HAND_SLURM.format(root=root, number=number, fetch=_FETCH)
            began = time.time()
            subprocess.run(["sbatch", "--wait"], input=text.encode(), check=True, capture_output=True)
            return _last_first_line((root / f"hand-{number}.log").read_text()) - began

        yield run


BY_HAND_SSH = (
    "cd {root}/hand && PATH={programs}:$PATH VC_WORKER_HOSTS={addresses} VC_WORKER_NUM=2 VC_TASK_INDEX={node} "
    "MA_NUM_HOSTS=2 MA_NUM_GPUS=1 JOBSUBMIT_MASTER_PORT={port} MA_JOB_DIR={root}/hand GLOO_SOCKET_IFNAME=eth0 "
    "bash start.sh"
)


@contextlib.contextmanager
def _ssh(root: Path, mode: str) -> Iterator[Callable[[bool, int], float]]:
    (root / "hosts").mkdir()
    with ssh_hosts.running(root / "hosts", NODES) as hosts:
        os.environ.update(PATH=f"{hosts.bin}:{os.environ['PATH']}", XDG_RUNTIME_DIR=str(hosts.sockets))
        job = _job(Engine("ssh", {"backend": {"kind": "ssh", "python": sys.executable}}), root, mode)
        words = [sys.executable, "-c", _FETCH, str(Path(__file__).parents[2]), str(root / "hand")]
        subprocess.run(words, input=json.dumps(_order(job)).encode(), check=True, capture_output=True)
        addresses = ",".join(hosts.address(number + 1) for number in range(NODES))
        programs = Path(sys.executable).parent

        def run(is_ours: bool, number: int) -> float:
            hosts.break_connections()
            if is_ours:
                return _create(job, number)
            began = time.time()
            commands = [
                BY_HAND_SSH.format(root=root, programs=programs, addresses=addresses, node=node, port=21000 + number)
                for node in range(NODES)
            ]
            started = [
                subprocess.Popen(["ssh", f"gpu{node + 1}", command], stdout=subprocess.PIPE, text=True)
                for node, command in enumerate(commands)
            ]
            return _last_first_line("".join(process.communicate()[0] for process in started)) - began

        yield run


def _agent() -> bytes:
    from jobsubmit.backends.shared.agent_archive import agent_archive

    return agent_archive()


_FETCH = "import sys; sys.path[:0] = [sys.argv.pop(1)]; from jobsubmit.agent.fetch import main; sys.exit(main())"


def _order(job: Path) -> Any:
    """Upload a job's code and script, and return what a node needs to fetch them."""
    from jobsubmit.config import load_settings
    from jobsubmit.jobs.prepare import prepare
    from jobsubmit.spec.loader import load
    from jobsubmit.stores.opening import open_store
    from jobsubmit.transfer.fetch_plan import fetch_order
    from jobsubmit.transfer.progress import Progress
    from jobsubmit.transfer.upload import upload, upload_script

    settings = load_settings()
    prepared = prepare(load(job), settings)
    store = open_store(prepared.plan.store)
    assert prepared.bundle
    upload(store, prepared.bundle, prepared.code, settings.transfer_dir, progress=Progress())
    upload_script(store, prepared.plan.name, prepared.script)
    return fetch_order(store, store, prepared.code, prepared.plan.name, prepared.script, prepared.bundle)


def _by_hand_volcano(fields: dict[str, Any], order: dict[str, Any], number: int) -> list[dict[str, Any]]:
    name = f"hand-{number}"
    container = {"image": fields["image"], "imagePullPolicy": "Never"}
    limits, packages = fields["backend"]["resources"], fields["backend"]["volumes"][0]
    container["resources"] = {"requests": limits, "limits": limits}
    work, own = {"name": "work", "mountPath": "/job"}, {"name": "own", "mountPath": "/own"}
    fetch = ["sh", "-c", f'python3 -I -S -c "{_FETCH}" /own/agent.pyz /job </own/order.json']
    env = {"MA_NUM_HOSTS": "2", "MA_NUM_GPUS": "1", "MA_JOB_DIR": "/job"}
    term = {"labelSelector": {"matchLabels": {"volcano.sh/job-name": name}}, "topologyKey": "kubernetes.io/hostname"}
    pod = {
        "restartPolicy": "Never",
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "own", "secret": {"secretName": name}},
            {"name": "packages", "hostPath": {"path": packages["host_path"]}},
        ],
        "initContainers": [{**container, "name": "fetch", "command": fetch, "volumeMounts": [work, own]}],
        "containers": [
            {
                **container,
                "name": "worker",
                "command": ["bash", "/job/start.sh"],
                "env": [{"name": key, "value": value} for key, value in env.items()],
                "volumeMounts": [work, {"name": "packages", "mountPath": packages["path"], "readOnly": True}],
            }
        ],
    }
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "minAvailable": NODES,
            "schedulerName": "volcano",
            "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
            "tasks": [{"name": "worker", "replicas": NODES, "template": {"spec": pod}}],
        },
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {"order.json": json.dumps(order)},
        "data": {"agent.pyz": base64.b64encode(_agent()).decode()},
    }
    return [secret, job]


@contextlib.contextmanager
def _volcano(root: Path, mode: str) -> Iterator[Callable[[bool, int], float]]:
    import boto3

    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(kubernetes_cluster.running(root / "k", nodes=NODES))
        (root / "minio").mkdir()
        store = stack.enter_context(minio_server.running(root / "minio", host=kubernetes_cluster.GATEWAY))
        os.environ |= {"KUBECONFIG": str(cluster.kubeconfig), "AWS_ACCESS_KEY_ID": store.key}
        os.environ["AWS_SECRET_ACCESS_KEY"] = store.secret
        boto3.client("s3", endpoint_url=store.endpoint, region_name="us-east-1").create_bucket(Bucket="bench")
        engine = Engine("volcano", volcano_fields(store, "bench"))
        job = _job(engine, root, mode)
        order = _order(job)

        def run(is_ours: bool, number: int) -> float:
            if is_ours:
                return _create(job, number)
            text = str(yaml.safe_dump_all(_by_hand_volcano(engine.fields, order, number)))
            (root / "hand.yaml").write_text(text)
            began = time.time()
            cluster.kubectl("apply", "-f", str(root / "hand.yaml"))
            wait = ["wait", "vcjob", f"hand-{number}", "--for=jsonpath={.status.state.phase}=Completed"]
            cluster.kubectl(*wait, "--timeout=120s")
            said = [cluster.kubectl("logs", f"hand-{number}-worker-{node}") for node in range(NODES)]
            return _last_first_line("\n".join(said)) - began

        yield run


if __name__ == "__main__":
    main()
