"""The report's page as a browser shows it: on a phone and on a wide screen, by day and by night."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from timing_files import timing_file

from jobsubmit.backends.models import JobPhase, JobStatus, Recovery, State
from jobsubmit.jobs.records import JobRecord
from jobsubmit.report.goodput import measure_goodput
from jobsubmit.report.html import render_page
from jobsubmit.report.job_phases import find_marks, find_phases
from jobsubmit.report.model import Report
from jobsubmit.report.report import compare, notes
from jobsubmit.report.steps import measure_syncs
from jobsubmit.report.timing_files import parse_processes

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.needs("browser")

STRIKES = "<script>window.struck = 1</script><img src=x onerror='window.struck = 1'>" * 3


def report_of(job_id: str, ranks: int, longer: int) -> Report:
    """Return the report of a job with a restart, a straggler and names that want to be more than names."""
    dice = random.Random(0)

    def times(rank: int, step: int) -> tuple[int, int, int, int, int]:
        wait = 2000 if rank == 1 else 9000
        return 40_000 + longer + dice.randrange(4000), 5000 + longer, 12_000, wait + dice.randrange(900), 1500

    saves = [{"event": "saved", "t": 1010.0 + number, "seconds": 0.3} for number in range(5)]
    told = parse_processes(
        timing_file(rank, times, steps=400, world=ranks, more=saves, name="Net" + STRIKES) for rank in range(ranks)
    )
    steps = [
        JobPhase("bundle", 988, 989),
        JobPhase("upload", 989, 991),
        JobPhase("queue", 991, 995),
        JobPhase("fetch", 995, 996),
    ]
    steps += [JobPhase("rendezvous", 996, 1001), JobPhase("training", 1001, 1040), JobPhase("exit", 1040, 1041)]
    status = JobStatus(
        State.FAILED,
        "EXIT_CODE",
        STRIKES,
        recoveries=(Recovery("restart 1 after SIGNAL", f"kill rank 3 {STRIKES}", 1012.0, 1013.0, None, None),),
        details={"ended": 1041.0},
    )
    record = JobRecord(
        job_id, "training" + STRIKES, "torchrun", "local", 2, 988.0, "code", None, "", handle="local://x"
    )
    found = measure_syncs(told)
    phases = find_phases(steps, told)
    goodput = measure_goodput(phases, [], begin=1000.0, end=1030.0)
    return Report(record, status, phases, find_marks(status), found, tuple(notes(told, found)), goodput)


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_looks_right_and_does_nothing(scheme: str, width: int, chromium: Browser, tmp_path: Path) -> None:
    one, other = report_of("job-a", 4, 0), report_of("job-b", 64, 3000)
    file = tmp_path / "report.html"
    file.write_text(render_page([one, other], compare(one, other), version="1"), encoding="utf-8")
    shown = chromium.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    said: list[str] = []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("request", lambda request: said.append(request.url))
    shown.goto(file.as_uri())
    shown.screenshot(path=str(tmp_path / f"{scheme}-{width}.png"), full_page=True)
    assert said == [file.as_uri()]
    assert shown.evaluate("window.struck") is None
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.evaluate("document.querySelectorAll('script, img, [style]').length") == 0
    ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert shown.locator("text=comes last").first.is_visible()
    for kind in ("forward", "backward", "exposed", "rest"):
        parts = shown.locator(f".ranks .stack .{kind}")
        assert parts.count() == 4 + 64
        box = parts.first.bounding_box()
        assert box is not None and box["width"] > 2 and box["height"] > 8
    bars = shown.locator(".track rect.training")
    box = bars.first.bounding_box()
    assert box is not None and box["width"] > 0.3 * min(width, 1120) * 0.5
    shown.close()
