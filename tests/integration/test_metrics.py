"""The metrics of real jobs: what their ranks print is shown, also while they run."""

from __future__ import annotations

import csv
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest
from command import JOBSUBMIT, PATIENCE, Command

TRAINING = """
import math, os, sys
rank = int(os.environ.get("RANK", os.environ["NODE_RANK"]))
for step in range(1, 21):
    loss = math.nan if step == 13 and rank == 1 else 2 / step + rank
    print(f"step {step}/20 loss {loss:.4f}", flush=True)
print(f"\\r 5%|5         | 1/20 [00:01<00:19, 1.0it/s]\\r", file=sys.stderr)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(TRAINING)
    (tmp_path / "job.yaml").write_text(
        "name: measured\ncode_dir: code\ncommand: python train.py\nresources: {nodes: 2}\n"
    )
    return tmp_path


def test_metrics_of_a_job_on_two_nodes(job: Path, jobsubmit: Command) -> None:
    jobsubmit("create", "job.yaml", "--follow")
    shown = jobsubmit("metrics", "measured").stdout
    assert "node 0: step 20 of 20\nnode 1: step 20 of 20\n" in shown
    document = jobsubmit.json("metrics", "measured")
    assert [(one["node"], one["name"], one["count"]) for one in document["series"]] == [
        (0, "loss", 20),
        (1, "loss", 20),
    ]
    (first, second) = ([point["value"] for point in one["points"]] for one in document["series"])
    assert first == [round(2 / step, 4) for step in range(1, 21)]
    assert second[12] == "nan"
    rows = list(csv.DictReader(io.StringIO(jobsubmit("metrics", "measured", "-o", "csv").stdout)))
    assert [float(row["value"]) for row in rows if row["node"] == "0"] == first
    assert [row["step"] for row in rows if row["node"] == "1"] == [str(step) for step in range(1, 21)]


def test_a_job_that_has_printed_no_step_has_no_metrics_yet(job: Path, jobsubmit: Command) -> None:
    (job / "code/train.py").write_text("import time\ntime.sleep(600)\n")
    jobsubmit("create", "job.yaml", "--detach", "--job-id", "young")
    assert "no metrics yet: run `jobsubmit metrics young` again" in jobsubmit("metrics", "young").stderr
    jobsubmit("cancel", "young")
    jobsubmit("wait", "young", code=None)
    assert "no metrics: no rank prints a loss" in jobsubmit("metrics", "young").stderr


def test_metrics_of_a_job_that_starts_now_end_with_it(job: Path, jobsubmit: Command) -> None:
    jobsubmit("create", "job.yaml", "--detach")
    followed = jobsubmit("metrics", "measured", "-f").stdout.splitlines()
    assert len([line for line in followed if line.startswith("[node 0] step ")]) == 20
    assert "[node 1] step 20 loss 1.1" in followed


def test_a_job_that_prints_no_metrics_is_no_error(job: Path, jobsubmit: Command) -> None:
    (job / "code/train.py").write_text("print('lr 0.1, loss_weight 0.5')\n")
    jobsubmit("create", "job.yaml", "--follow")
    done = jobsubmit("metrics", "measured")
    assert done.stdout == ""
    assert "no metrics" in done.stderr
    assert jobsubmit.json("metrics", "measured")["series"] == []


RESTARTED = """
import os, pathlib, shutil, sys, time
attempt = int(os.environ["JOBSUBMIT_RESTART_COUNT"])
print("tracked", os.environ.get("WANDB_RUN_GROUP"), os.environ.get("WANDB_NAME"), os.environ.get("MINE"), flush=True)
for step in range(1 if attempt == 0 else 11, 31):
    time.sleep(0.1)
    print(f"<{step}/30> objective={3 / step:.3f}", flush=True)
    if attempt == 0 and step == 20:
        sys.exit(7)
shutil.copy(os.environ["EVENTS"], pathlib.Path(os.environ["board"]) / "events.out.tfevents.1")
"""
OWN = """
name: restarted
code_dir: code
command: python train.py
restarts: {max: 1, backoff: 1s}
metrics: {loss: 'objective=([0-9.]+)', step: '<([0-9]+)/', steps: '/([0-9]+)>'}
tracking: [wandb]
outputs: [{name: board, uri: out, as: env}]
"""


def test_a_job_with_patterns_of_its_own_that_restarts(job: Path, jobsubmit: Command) -> None:
    (job / "code/train.py").write_text(RESTARTED)
    (job / "job.yaml").write_text(OWN)
    events = Path(__file__).parents[1] / "corpus/event_files/tensorboardx.tfevents.1"
    jobsubmit("create", "job.yaml", "--follow", "-e", f"EVENTS={events}", "-e", "MINE=yes")
    job_id = jobsubmit.json("list")[0]["id"]
    logged = jobsubmit("logs", "restarted").stdout
    assert f"tracked {job_id} {job_id} yes" in logged
    assert f"tracked {job_id} {job_id}-1 yes" in logged

    shown = jobsubmit.json("status", "restarted")["training"]
    assert (shown["step"], shown["steps"], shown["loss"], shown["done"]) == (30, 30, 0.1, 1.0)
    assert jobsubmit("list").stdout.splitlines()[1].split()[2:4] == ["30/30", "0.1"]
    found = jobsubmit.json("metrics", "restarted")
    series = {one["name"]: one for one in found["series"]}
    assert set(series) == {"loss", "train_loss", "learning_rate"}
    assert [point["step"] for point in series["loss"]["points"]] == [*range(1, 21), *range(11, 31)]
    assert found["notes"] == ["node 0: the steps went back from 20 to 11"]

    report = jobsubmit.json("report", "restarted")
    seconds = report["goodput"]["seconds"]
    assert report["goodput"]["knows_steps"]
    assert seconds["steps done again"] == pytest.approx(1.0, abs=0.5)  # steps 11 to 20, of 0.1 s each
    assert seconds["training steps"] == pytest.approx(3.0, abs=1.0)
    assert seconds["restart"] >= 0.9
    assert 0 < report["machines"]["ranks"][0]["memory"] < 1 << 30
    page = job / "page.html"
    text = jobsubmit("report", "restarted", "--html", str(page)).stdout
    assert "goodput: " in text
    assert "steps done again" in text
    assert page.read_text().count("<polyline") >= 3


def on_a_terminal(columns: int, *words: str) -> str:
    """Return what a command shows on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    running = subprocess.Popen(
        [*JOBSUBMIT, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # the terminal is gone with its last process
        while piece := os.read(ours, 65536):
            seen += piece
    running.wait(timeout=PATIENCE)
    os.close(ours)
    return seen.decode()


def test_a_narrow_terminal_drops_the_time_left_then_the_loss_then_the_step(job: Path, jobsubmit: Command) -> None:
    jobsubmit("create", "job.yaml", "--follow", "--job-id", "measured-on-two-nodes")
    heads = {columns: on_a_terminal(columns, "list").splitlines()[0] for columns in (120, 78, 72, 62)}
    names = {columns: [name for name in ("step", "loss", "ETA") if name in head] for columns, head in heads.items()}
    assert list(names.values()) == [["step", "loss", "ETA"], ["step", "loss"], ["step"], []]
    for columns in heads:
        assert "measured-on-two-nodes" in on_a_terminal(columns, "list")


def test_a_line_below_the_output_shows_the_progress(job: Path, jobsubmit: Command) -> None:
    training = "import time\nfor step in range(1, 11):\n    print(f'step {step}/10 loss {1 / step:.3f}', flush=True)\n"
    (job / "code/train.py").write_text(training + "    time.sleep(0.4)\n")
    shown = on_a_terminal(100, "create", str(job / "job.yaml"), "--follow")
    assert "━" in shown
    assert "step 5/10, loss 0.2, " in shown
    assert "s left" in shown
    last = re.sub(r"\x1b\[[0-9;]*[mK]", "", shown.rsplit("\r\x1b[2K", 1)[1])
    assert "━" not in last  # it is gone when the job has ended


def test_documents_fit_their_schemas(job: Path, jobsubmit: Command) -> None:
    jobsubmit("create", "job.yaml", "--follow")
    for command in (["status", "measured"], ["describe", "measured"], ["list"], ["metrics", "measured"]):
        jsonschema.validate(jobsubmit.json(*command), jobsubmit.json("schema", "--output", command[0]))
    schema = jobsubmit.json("schema", "--output", "report")
    jsonschema.validate(jobsubmit.json("report", "measured"), schema)
    jsonschema.validate(jobsubmit.json("report", "measured", "measured"), schema)


def test_a_figure_nobody_has_is_said_once(job: Path, jobsubmit: Command) -> None:
    (job / "code/train.py").write_text("print('nothing to see')\n")
    jobsubmit("create", "job.yaml", "--follow")
    document = jobsubmit.json("report", "measured")
    assert document["machines"]["accelerators"] == []
    assert not document["goodput"]["knows_steps"]
    assert sum("goodput" in note for note in document["notes"]) == 1
    assert jobsubmit.json("status", "measured")["training"] is None
