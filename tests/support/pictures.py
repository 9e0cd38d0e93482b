"""Draw the pictures of README and docs from a job that really ran: `python tests/support/pictures.py`."""

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
_WIDTH, _HEIGHT = 1120, 780
# Rank 3 computes longer than the others: the report names it.
_TRAINING = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layers = torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(150):
    optimizer.zero_grad()
    batch = torch.randn(64, 512)
    loss = (model(batch) - batch[:, :8].tanh()).square().mean()
    time.sleep(0.06 if rank == 3 else 0.02)
    loss.backward()
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
    """Run the job, and draw its report by day and by night."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["JOBSUBMIT_STATE_DIR"] = str(folder / "state")
        (folder / "code").mkdir()
        (folder / "code/train.py").write_text(_TRAINING)
        (folder / "job.yaml").write_text(_JOB)
        jobsubmit = [sys.executable, "-m", "jobsubmit"]
        subprocess.run([*jobsubmit, "create", "job.yaml", "--follow"], cwd=folder, check=True)
        subprocess.run([*jobsubmit, "report", "resnet-sweep", "--html", "report.html"], cwd=folder, check=True)
        _draw(folder / "report.html")


def _draw(page: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which(browser.PROGRAM), args=list(browser.QUIET))
        for scheme in ("light", "dark"):
            tab = chromium.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme=scheme)
            tab.goto(page.as_uri())
            tab.screenshot(path=FOLDER / f"report-{scheme}.png")
        chromium.close()


if __name__ == "__main__":
    main()
