"""What a node records of its processes and its accelerators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobsubmit.agent.machine.accelerators import Accelerators, parse_npu, parse_nvidia
from jobsubmit.agent.machine.process_use import Memory, read_use
from jobsubmit.agent.machine.sampler import MachineSampler
from jobsubmit.report.machine_use import parse_machines

GIB, MIB = 1 << 30, 1 << 20
NVIDIA = "0, 97, 34520, 81559, 612.31, 61\n1, 0, 3, 81559, 70.02, 33\n"
# What some GPUs do not report: the use of a part of a GPU, power in a virtual machine.
PARTS = "0, [N/A], 34520, 81559, [N/A], 61\n1, [Not Supported], 3, 81559, [Unknown Error], 33\nNo devices\n"
NPU = """
+------------------------------------------------------------------------------------------------+
| npu-smi 23.0.rc2                 Version: 23.0.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.6        49                0    / 0             |
| 0                         | 0000:C1:00.0  | 35          0    / 0          3162 / 65536         |
+===========================+===============+====================================================+
| 1     910A                | OK            | 70.1        44                0    / 0             |
| 0     1                   | 0000:01:00.0  | 0           1204 / 15137      0    / 0             |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 4711          | python                   | 3100                    |
"""


def test_what_nvidia_smi_prints() -> None:
    assert parse_nvidia(NVIDIA) == [
        [0, 97, 34520 * MIB, 81559 * MIB, 612.31, 61],
        [1, 0, 3 * MIB, 81559 * MIB, 70.02, 33],
    ]
    assert parse_nvidia(PARTS) == [
        [0, None, 34520 * MIB, 81559 * MIB, None, 61],
        [1, None, 3 * MIB, 81559 * MIB, None, 33],
    ]
    assert parse_nvidia("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == []


def test_what_npu_smi_prints() -> None:
    assert parse_npu(NPU) == [
        [0, 35, 3162 * MIB, 65536 * MIB, 91.6, 49],
        [1, 0, 1204 * MIB, 15137 * MIB, 70.1, 44],
    ]


def program(folder: Path, text: str) -> None:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def sample_until(sampler: MachineSampler, folder: Path, roots: dict[str, int]) -> bytes:
    """Take samples until there are several, and a reading of the accelerators; return the file."""
    deadline = time.monotonic() + 60
    data = b""
    while (data.count(b"\n[") < 3 or b"accelerators" not in data) and time.monotonic() < deadline:
        sampler.sample(roots, dict.fromkeys(roots, 1))
        time.sleep(0.02)
        data = next((folder / "timing").iterdir()).read_bytes()
    return data


def test_a_node_is_sampled_with_its_accelerators(on_path: Path, tmp_path: Path) -> None:
    program(on_path, f"cat <<'END'\n{NVIDIA}END")
    busy = subprocess.Popen([sys.executable, "-c", "x = bytearray(200 << 20)\nwhile True: pass"])
    try:
        sampler = MachineSampler(str(tmp_path), 1, 2)
        data = sample_until(sampler, tmp_path, {"4": busy.pid})
        sampler.close()
    finally:
        busy.kill()
        busy.wait()
    (file,) = (tmp_path / "timing").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    use = parse_machines([data, b"", b"{}", data[:30]])
    (rank,) = use.ranks
    assert (rank.name, rank.node) == ("4", 1)
    assert rank.cores is not None
    assert 0.02 < rank.cores < 1.5
    assert rank.memory > 200 * MIB
    (node,) = use.nodes
    assert 0 < node.peak < node.limit
    assert [(one.index, one.percent, one.watts) for one in use.accelerators] == [(0, 97, 612.31), (1, 0, 70.02)]


def test_a_driver_that_hangs_delays_nothing(on_path: Path, tmp_path: Path) -> None:
    program(on_path, "exec sleep 600")
    sampler = MachineSampler(str(tmp_path), 0, 0)
    begun = time.monotonic()
    sampler.sample({"0": os.getpid()}, {"0": 0})
    assert time.monotonic() - begun < 1
    started, (pid,) = sampler.accelerators.process, sampler.pids()
    sampler.close()
    assert sampler.pids() == []
    assert started
    assert started.pid == pid
    assert started.wait(10) == -9


def test_a_machine_without_accelerators_is_asked_once(on_path: Path) -> None:
    program(on_path, f"echo x >> {on_path}/asked\nexit 9")
    accelerators = Accelerators()
    for _ in range(20):
        accelerators.start()
        assert accelerators.read() == []
        time.sleep(0.05)
    assert (on_path / "asked").read_text() == "x\n"


def test_children_count_and_shared_memory_only_once() -> None:
    code = (
        "import os, time\nx = bytearray(100 << 20)\n"
        "if os.fork() == 0:\n    y = bytearray(50 << 20)\n    print(flush=True)\n    time.sleep(60)\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert parent.stdout
        parent.stdout.readline()
        _, memory, _, _ = read_use({"0": parent.pid})["0"]
    finally:
        subprocess.run(["pkill", "-9", "-P", str(parent.pid)], check=False)
        parent.kill()
        parent.communicate()
    assert 150 * MIB < memory < 190 * MIB


def test_the_limit_is_that_of_the_smallest_group(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    (tmp_path / "a/memory.max").write_text(f"{GIB}\n")
    (tmp_path / "a/b/memory.max").write_text("max\n")
    (tmp_path / "a/memory.current").write_text(f"{GIB // 2}\n")
    (tmp_path / "a/memory.stat").write_text(f"anon 1\ninactive_file {GIB // 4}\n")
    memory = Memory(str(tmp_path), str(own))
    assert (memory.limit, memory.used()) == (GIB, GIB // 4)


def test_a_full_disk_ends_the_samples_not_the_job(tmp_path: Path) -> None:
    (tmp_path / "timing").symlink_to("/dev/full")
    sampler = MachineSampler(str(tmp_path), 0, 0)
    sampler.sample({"0": os.getpid()}, {"0": 0})
    sampler.sample({"0": os.getpid()}, {"0": 0})
    assert sampler.due == float("inf")


def test_the_samples_of_a_long_job_become_rare(tmp_path: Path) -> None:
    sampler = MachineSampler(str(tmp_path), 0, 0)
    for _ in range(3000):
        sampler.due = 0.0
        sampler.sample({"0": os.getpid()}, {"0": 0})
    assert sampler.interval == 32
    rows = [json.loads(line) for line in next((tmp_path / "timing").iterdir()).read_text().splitlines()]
    assert len(rows) >= 3001
