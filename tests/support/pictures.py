"""Draw the pictures of README and docs from jobs that really ran: `python tests/support/pictures.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "engines")]

import browser

FOLDER = Path(__file__).resolve().parents[2] / "docs/images"
_WIDTH, _HEIGHT = 1280, 800
# Rank 3 computes longer than the others: the report names it.
_TRAINING = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layers = torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
fails = len(sys.argv) > 1 and sys.argv[1] == "--fail"
for step in range(150):
    optimizer.zero_grad()
    batch = torch.randn(64, 512)
    loss = (model(batch) - batch[:, :8].tanh()).square().mean()
    time.sleep(0.06 if rank == 3 else 0.02)
    loss.backward()
    if fails and rank == 3 and step == 60:
        print(dict(inputs=batch)["labels"])
    optimizer.step()
    if step % 2 == 0 and rank == 0:
        print(f"step {step}/150 loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.4f}", flush=True)
    optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 150)
dist.destroy_process_group()
"""
_JOB = """
name: resnet-sweep
mode: torchrun
code_dir: code
boot_file: train.py
profile: sync
resources: {nodes: 2, nproc_per_node: 2}
"""


def main() -> None:
    """Run the jobs, and draw their pages by day and by night."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["JOBSUBMIT_STATE_DIR"] = str(folder / "state")
        (folder / "code").mkdir()
        (folder / "code/train.py").write_text(_TRAINING)
        (folder / "job.yaml").write_text(_JOB)
        for number in range(3):
            _create(folder, "--job-id", f"warm-up-{number}", "--set", f"hyperparameters.seed={number}", "--nodes", "1")
        _create(folder, "--job-id", "resnet-sweep-fail", "--set", "args=[--fail]")
        _create(folder, "--job-id", "resnet-sweep-m5ztqs")
        words = [sys.executable, "-m", "jobsubmit", "ui", "--port", "0"]
        with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            _draw(server.stdout.readline().strip())
            server.terminate()


def _create(folder: Path, *more: str) -> None:
    words = [sys.executable, "-m", "jobsubmit", "create", "job.yaml", "--follow", "--no-check", *more]
    subprocess.run(words, cwd=folder, check=False)


def _draw(address: str) -> None:
    from playwright.sync_api import sync_playwright

    pictures = [
        ("ui-light", "job/resnet-sweep-m5ztqs?tab=ranks", "light"),
        ("ui-dark", "job/resnet-sweep-m5ztqs?tab=ranks", "dark"),
        ("ui-failed", "job/resnet-sweep-fail", "light"),
        ("ui-jobs", "", "light"),
    ]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which(browser.PROGRAM), args=list(browser.QUIET))
        for name, path, scheme in pictures:
            tab = chromium.new_page(
                viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="dark" if scheme == "dark" else "light"
            )
            tab.goto(address + path)
            tab.wait_for_timeout(3000)
            tab.screenshot(path=FOLDER / f"{name}.png")
        chromium.close()


if __name__ == "__main__":
    main()
