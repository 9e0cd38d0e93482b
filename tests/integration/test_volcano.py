"""What is Kubernetes' and Volcano's own: what they refuse, why pods do not start or end, rights, lost machines."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import PATIENCE, Command, handle, wait_for_line, wait_until
from engine import Engine
from kubernetes_cluster import Cluster, kubeconfig_text, revive_node
from pace import Pace

pytestmark = pytest.mark.needs("volcano", "minio")

PAGE = Path(__file__).resolve().parents[2] / "docs/backends/volcano.md"
MISSING = {"host_path": "/etc/hostname/below-a-file", "path": "/data"}
SLEEPING = "import time\nprint('sleeping', flush=True)\ntime.sleep(300)\n"


@pytest.fixture
def space(kubernetes: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return a namespace of the test's own."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:50].rstrip("-")
    kubernetes.kubectl("create", "namespace", name)
    yield name
    kubernetes.kubectl("delete", "namespace", name, "--wait=false")


def job(on_volcano: Engine, folder: Path, text: str = "print('hello')\n", **fields: Any) -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "main.py").write_text(text)
    backend = {**on_volcano.fields["backend"], "resources": {"cpu": "100m", "memory": "200Mi"}}
    backend |= fields.pop("backend", {})
    return on_volcano.job(folder, **{"mode": "spawn", "boot_file": "main.py", "backend": backend, **fields})


def assert_within(shown: Any, received: Any, place: str = "") -> None:
    """Assert that everything that was shown is in what was received, where the server adds defaults."""
    if isinstance(shown, Mapping):
        for key, value in shown.items():
            assert key in received, place
            assert_within(value, received[key], f"{place}.{key}")
    elif isinstance(shown, list):
        assert len(shown) == len(received), place
        for number, (ours, theirs) in enumerate(zip(shown, received, strict=True)):
            assert_within(ours, theirs, f"{place}.{number}")
    else:
        assert shown == received, place


def test_kubernetes_got_what_was_shown(
    on_volcano: Engine, kubernetes: Cluster, space: str, jobsubmit: Command, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"restarts": 2, "env": {"A": "$(B) $$"}, "resources": {"nodes": 2, "nproc_per_node": 1}}
    backend = {"namespace": space, "tolerations": [{"key": "gpu", "operator": "Exists"}], "shm_size": "64Mi"}
    file = job(on_volcano, tmp_path, **fields, backend=backend)
    shown = jobsubmit.json("create", file, "--dry-run", "--job-id", "shown-1")["request"]
    jobsubmit("create", file, "--follow", "--job-id", "shown-1")
    received = json.loads(kubernetes.kubectl("get", "vcjob", "shown-1", "-n", space, "-o", "json"))
    asked = yaml.safe_load(shown["vcjob.yaml"])
    del asked["metadata"]["annotations"]["jobsubmit/code-until"]
    assert_within(asked, received)
    found = json.loads(kubernetes.kubectl("get", "configmap", "shown-1-jobsubmit", "-n", space, "-o", "json"))
    assert_within(yaml.safe_load(shown["configmap.yaml"]), found)
    secret = json.loads(kubernetes.kubectl("get", "secret", "shown-1-jobsubmit", "-n", space, "-o", "json"))
    assert set(secret["data"]) == set(yaml.safe_load(shown["secret.yaml"])["stringData"])
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in json.dumps(received) + json.dumps(found) + str(secret)


def test_delete_leaves_nothing(
    on_volcano: Engine, kubernetes: Cluster, space: str, jobsubmit: Command, tmp_path: Path
) -> None:
    done = jobsubmit("create", job(on_volcano, tmp_path, backend={"namespace": space}), "--follow")
    jobsubmit("delete", handle(done.stdout))
    listed = ("get", "vcjob,pod,configmap,secret,service,podgroup,command", "-n", space, "-o", "name")
    deadline = time.monotonic() + PATIENCE
    while (left := kubernetes.kubectl(*listed).split()) != ["configmap/kube-root-ca.crt"]:
        assert time.monotonic() < deadline, left
        time.sleep(0.3)


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"backend": {"queue": "nosuch"}}, 5, "queue"),
        ({"backend": {"namespace": "nosuch"}}, 5, "nosuch"),
        ({"backend": {"context": "nosuch"}}, 5, "your kubeconfig has: test"),
        ({"backend": {"image": None}}, 3, "backend.image: is required"),
        ({"store": {"uri": "folder"}}, 3, "the pods cannot see the folder"),
        ({"checkpoint_dir": "somewhere"}, 3, "no volume of the pods contains"),
        ({"outputs": [{"name": "out", "uri": "s3://bucket/out"}]}, 3, "outputs: out: "),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_sent(
    fields: dict[str, Any], code: int, text: str, on_volcano: Engine, jobsubmit: Command, tmp_path: Path
) -> None:
    refused = jobsubmit("create", job(on_volcano, tmp_path, **fields), code=code)
    assert text in refused.stderr
    assert jobsubmit.json("list") == []


def test_an_image_that_cannot_be_pulled(on_volcano: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    backend = {"image": "localhost/nosuch:1", "image_pull_policy": "Never"}
    name = handle(jobsubmit("create", job(on_volcano, tmp_path, backend=backend), "--detach").stdout)
    status = wait_until(jobsubmit, name, ("QUEUED",))
    deadline = time.monotonic() + PATIENCE
    while (status := jobsubmit.json("status", name))["reason"] != "IMAGE":
        assert time.monotonic() < deadline, status
        time.sleep(0.3)
    assert "localhost/nosuch:1" in status["message"]
    jobsubmit("cancel", name)
    assert jobsubmit.json("status", name)["state"] == "CANCELLED"


def test_a_gang_that_does_not_fit_waits_and_says_why(on_volcano: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    big = job(on_volcano, tmp_path, backend={"resources": {"cpu": 100, "memory": "100Mi"}})
    name = handle(jobsubmit("create", big, "--detach").stdout)
    deadline = time.monotonic() + PATIENCE
    while "cannot be scheduled yet" not in (status := jobsubmit.json("status", name))["message"]:
        assert time.monotonic() < deadline, status
        time.sleep(0.3)
    assert status["state"] == "QUEUED"
    assert "can be fetched until" in status["message"]
    jobsubmit("cancel", name)
    jobsubmit("wait", name, code=103)


def test_a_claim_that_is_not_there(on_volcano: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    volumes = [{"claim": "nosuch", "path": "/data"}]
    name = handle(jobsubmit("create", job(on_volcano, tmp_path, backend={"volumes": volumes}), "--detach").stdout)
    deadline = time.monotonic() + PATIENCE
    while "nosuch" not in (status := jobsubmit.json("status", name))["message"]:
        assert time.monotonic() < deadline, status
        time.sleep(0.3)
    jobsubmit("cancel", name)


def test_a_quota_that_is_used_up(
    on_volcano: Engine, kubernetes: Cluster, space: str, jobsubmit: Command, tmp_path: Path
) -> None:
    kubernetes.kubectl("create", "quota", "nothing", "--hard=pods=0", "-n", space)
    name = handle(jobsubmit("create", job(on_volcano, tmp_path, backend={"namespace": space}), "--detach").stdout)
    deadline = time.monotonic() + PATIENCE
    while (status := jobsubmit.json("status", name))["reason"] != "REFUSED":
        assert time.monotonic() < deadline, status
        time.sleep(0.3)
    assert "exceeded quota: nothing" in status["message"]
    jobsubmit("cancel", name)


def test_a_volume_that_cannot_be_mounted(
    on_volcano: Engine, kubernetes: Cluster, jobsubmit: Command, tmp_path: Path
) -> None:
    name = handle(jobsubmit("create", job(on_volcano, tmp_path, backend={"volumes": [MISSING]}), "--detach").stdout)
    deadline = time.monotonic() + PATIENCE
    while (status := jobsubmit.json("status", name))["reason"] not in ("VOLUME", "CONTAINER"):
        assert time.monotonic() < deadline, status
        time.sleep(0.3)
    jobsubmit("cancel", name)


EATING = "x = []\nwhile True:\n    x.append(bytearray(1 << 24))\n    x[-1][::4096] = b'x' * len(x[-1][::4096])\n"


def test_a_container_without_memory_says_oom(on_volcano: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    done = jobsubmit("create", job(on_volcano, tmp_path, EATING), "--follow", code=100)
    status = jobsubmit.json("status", handle(done.stdout))
    assert (status["state"], status["reason"]) == ("FAILED", "OOM")


ONCE_ASLEEP = """
import os, time
print("here", flush=True)
if os.environ["JOBSUBMIT_RESTART_COUNT"] == "0":
    time.sleep(300)
"""


@pytest.mark.parametrize(("restarts", "state"), [(None, "FAILED"), (1, "SUCCEEDED")])
def test_a_pod_that_is_taken_away(
    restarts: int | None, state: str, on_volcano: Engine, kubernetes: Cluster, jobsubmit: Command, tmp_path: Path
) -> None:
    text = (
        "import os, time\nprint('here', flush=True)\ntime.sleep(300 * (os.environ['JOBSUBMIT_RESTART_COUNT'] == '0'))\n"
    )
    file = job(on_volcano, tmp_path, text, resources={"nodes": 2, "nproc_per_node": 1}, restarts=restarts)
    name = handle(jobsubmit("create", file, "--detach").stdout)
    wait_for_line(jobsubmit, name, "[node 1] here")
    kubernetes.kubectl("delete", "pod", f"{name.rpartition('/')[2]}-worker-1", "--wait=false")
    status = wait_until(jobsubmit, name, ("SUCCEEDED", "FAILED"))
    assert status["state"] == state
    assert jobsubmit("logs", name).stdout.count("[node 1] here") == (2 if restarts else 1)
    if not restarts:
        assert status["reason"] in ("EVICTED", "POD_LOST")


def test_the_documented_role_suffices(
    on_volcano: Engine, kubernetes: Cluster, space: str, jobsubmit: Command, tmp_path: Path, monkeypatch: Any
) -> None:
    role = next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "kind: Role" in text)
    kubernetes.kubectl("create", "serviceaccount", "user", "-n", space)
    kubernetes.kubectl("apply", "-n", space, "-f", "-", stdin=role)
    kubernetes.kubectl(
        "create", "rolebinding", "user", "-n", space, "--role=jobsubmit", f"--serviceaccount={space}:user"
    )
    token = kubernetes.kubectl("create", "token", "user", "-n", space).strip()
    (tmp_path / "kubeconfig").write_text(kubeconfig_text(kubernetes, token, space))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    done = jobsubmit("create", job(on_volcano, tmp_path), "--follow")
    assert handle(done.stdout).startswith(f"volcano://{space}/")
    assert "[node 0] hello" in done.stderr
    assert "Scheduled" in jobsubmit("events", handle(done.stdout)).stdout
    name = handle(jobsubmit("create", job(on_volcano, tmp_path, SLEEPING), "--detach").stdout)
    wait_for_line(jobsubmit, name, "sleeping")
    jobsubmit("cancel", name, "--grace", "3")
    jobsubmit("wait", name, code=103)
    jobsubmit("delete", name)
    elsewhere = jobsubmit("create", job(on_volcano, tmp_path, backend={"namespace": "kube-system"}), code=5)
    assert "Role" in elsewhere.stderr


def test_keys_that_the_cluster_holds(
    on_volcano: Engine, kubernetes: Cluster, space: str, jobsubmit: Command, tmp_path: Path
) -> None:
    keys = [f"--from-literal={name}={os.environ[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    kubernetes.kubectl("create", "secret", "generic", "keys", "-n", space, *keys)
    backend = {"namespace": space, "credentials_secret": "keys"}
    done = jobsubmit("create", job(on_volcano, tmp_path, backend=backend), "--follow")
    own = f"{handle(done.stdout).rpartition('/')[2]}-jobsubmit"
    secret = kubernetes.kubectl(
        "get", "secret", own, "-n", space, "-o", "go-template={{range .data}}{{. | base64decode}}{{end}}"
    )
    assert "Signature" not in secret
    assert "[node 0] hello" in done.stderr
    kubernetes.kubectl("delete", "pod", "--all", "-n", space)
    assert "[node 0] hello" in jobsubmit("logs", handle(done.stdout)).stdout


@pytest.mark.slow  # what it bounds is a wall time
def test_a_server_that_is_down_or_does_not_know_us(
    on_volcano: Engine, kubernetes: Cluster, jobsubmit: Command, tmp_path: Path, pace: Pace
) -> None:
    text = kubernetes.kubeconfig.read_text()
    (tmp_path / "down").write_text(text.replace("127.0.0.1:18001", "127.0.0.1:18999"))
    (tmp_path / "stranger").write_text(kubeconfig_text(kubernetes, "not-a-token"))
    file = job(on_volcano, tmp_path)
    for config, hint in (("down", "kubectl cluster-info"), ("stranger", "log in"), ("none", "KUBECONFIG")):
        for command in (("create", file), ("status", "volcano://default/x"), ("cancel", "volcano://default/x")):
            began = time.monotonic()
            refused = jobsubmit(*command, code=5, env={"KUBECONFIG": str(tmp_path / config)})
            assert time.monotonic() - began < pace.stretched(10)
            assert hint in refused.stderr


@pytest.mark.slow  # Kubernetes takes a minute to see it
def test_a_machine_that_is_lost(on_volcano: Engine, kubernetes: Cluster, jobsubmit: Command, tmp_path: Path) -> None:
    if not kubernetes.processes:
        pytest.skip("machines of a cluster that is not ours are left alone")
    text = "import time\nprint('here', flush=True)\ntime.sleep(300)\n"
    file = job(on_volcano, tmp_path, text, resources={"nodes": 2, "nproc_per_node": 1})
    name = handle(jobsubmit("create", file, "--detach").stdout)
    wait_for_line(jobsubmit, name, "[node 1] here")
    machines = jobsubmit.json("status", name)["details"]["machines"]
    kubernetes.kill_node(int(machines["1"].removeprefix("machine")))
    try:
        status = wait_until(jobsubmit, name, ("LOST",))
        assert status["reason"] == "NODE_FAILED"
        assert machines["1"] in status["message"]
        jobsubmit("wait", name, code=100)
        jobsubmit("cancel", name, code=None)
    finally:
        kubernetes.kubectl("delete", "pod", "--all", "--force", "--grace-period=0", check=False)
        revive_node(kubernetes, int(machines["1"].removeprefix("machine")))
