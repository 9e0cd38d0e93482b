"""Values that break whoever builds a command line by hand reach the training process as they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command, job_dir, job_id
from hostile import HOSTILE
from ruamel.yaml import YAML

# No YAML text can hold these two as they are; as escapes it can.
NAMES = [name for name in HOSTILE if name and "/" not in name and len(name) < 100 and not set(name) & set("\n\r\x01")]

# A script that used one of these for itself would change what the user's program sees.
NAMES_SCRIPTS_LIKE = [
    "CODE_DIR",
    "BOOT_FILE",
    "hosts",
    "start",
    "cpus",
    "is_host",
    "command",
    "args",
    "python",
    "script",
    "i",
    "end",
    "port",
    "name",
    "mode",
    "job",
    "OMP_NUM_THREADS",
    "PYTHONUNBUFFERED",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
]

RECORDER = """
import json, os, sys
with open(os.path.join(os.path.dirname(__file__), "record.json"), "w") as record:
    json.dump({"argv": sys.argv, "env": dict(os.environ), "files": sorted(os.listdir("."))}, record)
"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize("mode", ["spawn", "launch", "torchrun"])
def test_hostile_values_arrive_unmodified(mode: str, jobsubmit: Command, tmp_path: Path) -> None:
    code = tmp_path / "code"
    boot = "a'; echo x $(id) -f.py"
    code.mkdir()
    (code / boot).write_text(RECORDER)
    for name in NAMES:
        (code / f"file {name}").write_text(name)
    job: dict[str, Any] = {
        "name": "__hostile-Name_1",
        "mode": mode,
        "code_dir": "code",
        "boot_file": boot,
        "hyperparameters": {f"h{i:02}": value for i, value in enumerate(HOSTILE)},
        "env": {**{f"E{i}": value for i, value in enumerate(HOSTILE)}, **dict.fromkeys(NAMES_SCRIPTS_LIKE, "mine")},
        "resources": {"nodes": 1, "nproc_per_node": 1},
    }
    if mode != "spawn":
        job["args"] = list(HOSTILE)
    with (tmp_path / "job.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump(job, stream)
    done = jobsubmit("create", "job.yaml", "--follow")
    record = json.loads((job_dir(job_id(done.stdout)) / "nodes/0/code/record.json").read_text())
    words = record["argv"][1:]
    assert words[: len(HOSTILE)] == [f"--h{i:02}={value}" for i, value in enumerate(HOSTILE)]
    if mode != "spawn":
        assert words[len(HOSTILE) :] == list(HOSTILE)
    assert {name: record["env"][name] for name in job["env"]} == job["env"]
    assert set(record["files"]) >= {f"file {name}" for name in NAMES}
    assert record["argv"][0].endswith(f"/code/{boot}")


def test_a_script_of_the_users_own_gets_hostile_arguments_too(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/run me.sh").write_text("printf '%s\\0' \"$@\" >args\n")
    job = {"name": "own", "mode": "launch", "code_dir": "code", "command": ["bash", "run me.sh", *HOSTILE]}
    with (tmp_path / "job.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump(job, stream)
    done = jobsubmit("create", "job.yaml", "--follow")
    arguments = (job_dir(job_id(done.stdout)) / "nodes/0/code/args").read_bytes()
    assert arguments.decode().split("\0")[:-1] == list(HOSTILE)
