"""Following hundreds of nodes takes a bounded number of connections, of open files and of bytes in memory."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import slurm
import yaml
from command import Command, handle
from engine import Engine

from jobsubmit.agent.logs.writing import IndexWriter

NODES, LINES = 256, 2000
_MEMORY_MB = 200

# Reads the lines that argv names, and tells how many there were and what that took.
_READER = """
import json, os, re, sys, threading, time
from pathlib import Path
{setup}
most = 0
def watch():
    global most
    while True:
        most = max(most, len(os.listdir("/proc/self/fd")))
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
count, last, ordered = 0, 0.0, True
for line in lines:
    count, ordered, last = count + 1, ordered and line.time >= last, line.time
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024  # not what a fork inherits
print(json.dumps({{"count": count, "ordered": ordered, "memory_mb": peak, "files": most}}))
"""


def read(setup: str, *args: str) -> dict[str, Any]:
    program = _READER.format(setup=setup)
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_the_shared_folder_of_256_nodes(tmp_path: Path) -> None:
    text = "".join(f"line {number} {'x' * 80}\n" for number in range(LINES))
    half = text[: len(text) // 2].rpartition("\n")[0] + "\n"
    for number in range(NODES):
        folder = tmp_path / "run-0" / f"node-{number}"
        (folder / "logs").mkdir(parents=True)
        writer = IndexWriter(str(folder), 1 << 30)
        for rank in (2 * number, 2 * number + 1):
            log = folder / "logs" / f"rank-{rank}.stdout.log"
            for content in (half, text):
                log.write_text(content)
                writer.note([(number, rank, "stdout")])
    setup = (
        "from jobsubmit.backends.models import LogQuery\n"
        "from jobsubmit.backends.shared.shared_folder import SharedFolder\n"
        "lines = SharedFolder(Path(sys.argv[1])).lines(LogQuery(), lambda: False)"
    )
    found = read(setup, str(tmp_path))
    assert found["count"] == NODES * 2 * LINES
    assert found["ordered"]
    assert found["memory_mb"] < _MEMORY_MB
    assert found["files"] < resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 0.6


class ApiServer(ThreadingHTTPServer):
    """Stand in for the API server of a cluster with very many pods; count the requests that run at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.lock, self.running, self.most = threading.Lock(), 0, 0
        said = (
            f"2026-11-21T12:00:00.{n:09d}Z {n + 1}.000 {n + 1} [rank 0] line {n} {'x' * 80}\n" for n in range(LINES)
        )
        self.log = "".join(said).encode()
        self.pods = json.dumps({"items": [_pod(number) for number in range(NODES)]}).encode()


def _pod(number: int) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 0, "startedAt": "2026-11-21T12:00:00Z", "finishedAt": "2026-11-21T12:00:09Z"}}
    meta = {"name": f"j-worker-{number}", "uid": str(number), "annotations": {"volcano.sh/job-retry-count": "0"}}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "worker", "state": state}]}
    return {"metadata": meta, "spec": {"nodeName": "m"}, "status": status}


class _Answers(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        data = self.server.log if "/log" in self.path else self.server.pods
        time.sleep(0.01)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with self.server.lock:
            self.server.running -= 1
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_pods_of_256_nodes(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    setup = (
        "from jobsubmit.backends.models import LogQuery\nfrom jobsubmit.backends.volcano.api import Kubernetes\n"
        "from jobsubmit.backends.volcano.collected import Collected\nfrom jobsubmit.backends.volcano.pods import Pod\n"
        "api = Kubernetes(None)\n"
        "pods = lambda: [Pod.of(item) for item in api.get('/api/v1/namespaces/default/pods')['items']]\n"
        "lines = Collected(api, 'default', pods, None, '').lines(LogQuery(), lambda: False)"
    )
    found = read(setup)
    assert found["count"] == NODES * LINES
    assert found["ordered"]
    assert found["memory_mb"] < _MEMORY_MB
    assert found["files"] < resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 0.6
    assert api.most <= 16


@pytest.mark.needs("slurm")
def test_64_real_tasks_of_slurm(jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("import os\nfor n in range(50):\n    print('line', n)\n")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with slurm.running(tmp_path / "cluster", nodes=64, base_port=17300) as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        engine = Engine("slurm", {"backend": {"kind": "slurm", "mem": "100M"}})
        resources = {"nodes": 64, "nproc_per_node": 1}
        job = engine.job(tmp_path, mode="spawn", boot_file="main.py", resources=resources)
        done = jobsubmit("create", job, "--follow", timeout=240)
        for text in (done.stderr, jobsubmit("logs", handle(done.stdout)).stdout):
            for number in range(64):
                said = re.findall(rf"^\[node {number}\] line (\d+)$", text, re.MULTILINE)
                assert said == [str(n) for n in range(50)]
