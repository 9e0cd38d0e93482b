"""`jobsubmit ui` as a browser shows it: real jobs, live, in both themes, on small and large screens."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import pytest
from command import PATIENCE
from pace import Pace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.needs("browser")

TRAINING = r"""
import os, sys, time
node = os.environ["NODE_RANK"]
kind, steps = sys.argv[1], int(sys.argv[2])
print("<script>window.struck = 1</script> \x1b[31mred\x1b[0m \x1b[2J", flush=True)
mark = os.path.join(os.environ["MA_JOB_DIR"], "..", "..", "was-here")
for step in range(1, steps + 1):
    print(f"step {step}/{steps} loss {3 / step:.4f} lr 0.1", flush=True)
    if kind == "slow":
        time.sleep(0.2)
    if kind == "fail" and step == steps and node == "1":
        raise KeyError("x")
    if kind == "again" and step == steps and not os.path.exists(mark):
        open(mark, "w").close()
        sys.exit(3)
if kind == "ends":
    time.sleep(1)
if kind == "burst":
    sys.stdout.write("".join(f"line {n}\n" for n in range(100_000)))
if kind == "still":
    time.sleep(600)
"""


class Served(NamedTuple):
    """The pages, and the process that serves them."""

    url: str
    pid: int
    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of jobsubmit beside the server."""
        return subprocess.run(
            [sys.executable, "-m", "jobsubmit", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def submit(self, job_id: str, kind: str, steps: int, *more: str) -> None:
        """Submit a job that prints steps."""
        setting = f"command=python train.py {kind} {steps}"
        done = self.run("create", "job.yaml", "--job-id", job_id, "--set", setting, "--no-check", *more)
        assert done.returncode == 0, done.stderr

    def ended(self, job_id: str) -> None:
        """Wait for a job to end."""
        self.run("wait", job_id)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("ui")
    (folder / "code").mkdir()
    (folder / "code/train.py").write_text(TRAINING)
    (folder / "job.yaml").write_text(
        "name: ddp\ncode_dir: code\ncommand: python train.py slow 5\nresources: {nodes: 2}\n"
    )
    environment = {**os.environ, "JOBSUBMIT_STATE_DIR": str(folder / "state"), "PYTHONPATH": str(Path.cwd())}
    words = [sys.executable, "-m", "jobsubmit", "ui", "--port", "0", "-o", "json"]
    with subprocess.Popen(words, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        document = json.loads(read_document(process.stdout))
        found = Served(document["url"], document["pid"], folder, environment)
        found.submit("fails", "fail", 12)
        found.submit("works", "quick", 30)
        found.submit("again", "again", 9, "--set", "restarts={max: 1}", "--nodes", "1")
        for job_id in ("fails", "works", "again"):
            found.ended(job_id)
        yield found
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def read_document(stream) -> str:  # type: ignore[no-untyped-def] # a text stream
    lines = [stream.readline()]
    while lines[-1].rstrip() != "}" and lines[-1]:
        lines.append(stream.readline())
    return "".join(lines)


@pytest.fixture
def open_page(chromium: Browser, served: Served) -> Iterator[Callable[..., Page]]:
    """Open a page; at the end nothing may have been said on the console, and no script of a job may have run."""
    opened: list[Page] = []
    said: list[str] = []

    def open_one(path: str, width: int = 1280, scheme: str = "light", **options: object) -> Page:
        page = chromium.new_page(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if scheme == "dark" else "light",
            **options,  # type: ignore[arg-type]
        )
        page.set_default_timeout(1000 * PATIENCE)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith(served.url) else None)
        page.goto(served.url + path)
        opened.append(page)
        return page

    yield open_one
    for page in opened:
        if not page.is_closed():
            page.close()
    assert said == []


def until(page: Page, expression: str) -> None:
    """Wait until an expression is true in a page; Playwright's own way needs eval, which our policy forbids."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(100)


def ask(url: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


VIEWS = (
    *("", "job/fails", "job/fails?tab=ranks", "job/works?tab=timeline", "job/again?tab=timeline", "job/works?tab=code"),
    *("job/works?tab=files", "job/works?tab=events", "compare?job=works&job=fails&job=again", "job/works/delete"),
    "job/nobody",
)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_and_is_accessible(
    view: str, open_page: Callable[..., Page], served: Served, chromium: Browser
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for width, scheme in ((320, "dark"), (768, "light"), (2560, "dark")):
        if view == "job/nobody":
            break  # a 404 is said on the console
        page = open_page(view, width, scheme)
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        assert page.evaluate("window.struck") is None
        page.close()
    for scheme in ("light", "dark"):
        page = chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme, bypass_csp=True)  # type: ignore[arg-type]
        page.goto(served.url + view)
        page.wait_for_timeout(150)
        found = Axe().run(page).response["violations"]
        page.close()
        assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []


def milliseconds_to_paint(page: Page) -> float:
    """Load a page again, and return when it showed something first."""
    page.reload()
    until(page, "performance.getEntriesByName('first-contentful-paint').length")
    return float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def test_a_failed_job_shows_what_went_wrong_above_the_fold(open_page: Callable[..., Page], pace: Pace) -> None:
    page = open_page("job/fails")
    for text in ("FAILED (EXIT_CODE)", "node 1 failed first: exit code 1", "KeyError: 'x'", "12/12"):
        box = page.get_by_text(text, exact=False).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 800, text
    assert min(milliseconds_to_paint(page) for _ in range(8)) <= 1000 * pace.stretched(0.5)
    assert len(page.content()) <= 150_000
    assert page.get_by_text("\\x1b[2J").first.is_visible()  # a code that moves the cursor is shown as text


def test_a_restart_is_a_line_in_the_chart(open_page: Callable[..., Page]) -> None:
    page = open_page("job/again?tab=timeline")
    page.wait_for_selector("svg .mark")
    assert page.get_by_text("restart 1 after").count() >= 1


def test_logs_are_found_by_rank_and_text(open_page: Callable[..., Page]) -> None:
    page = open_page("job/works?tab=logs&of=node-1&find=STEP 30/30")
    page.wait_for_selector("#log li")
    assert page.locator("#log li").count() == 1
    assert page.locator("#log li .who").inner_text() == "node 1"
    assert page.locator("#log li .text").inner_text() == "step 30/30 loss 0.1000 lr 0.1"


def test_without_script_it_is_a_still_picture(chromium: Browser, served: Served) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(served.url + "job/fails")
    assert page.get_by_text("KeyError: 'x'").first.is_visible()
    assert page.locator("#log li").count() == len(served.run("logs", "fails").stdout.splitlines()) > 10
    page.goto(served.url)
    page.get_by_label("Search").fill("works")
    page.get_by_role("button", name="Filter").click()
    assert page.locator("tr.job").count() == 1
    context.close()


def test_a_line_is_on_the_page_soon_after_it_was_written(
    open_page: Callable[..., Page], served: Served, pace: Pace
) -> None:
    served.submit("slow", "slow", 40)
    page = open_page("job/slow")
    page.evaluate(
        """() => {
            window.seen = {};
            const textOf = (line) => line.querySelector(".who").textContent + line.querySelector(".text").textContent;
            const note = (all) => {
                for (const one of all) for (const line of one.addedNodes) window.seen[textOf(line)] = Date.now() / 1000;
            };
            new MutationObserver(note).observe(document.getElementById("log"), {childList: true});
        }"""
    )
    until(page, "document.querySelector('#part-head .state')?.textContent?.includes('SUCCEEDED')")
    seen = page.evaluate("window.seen")
    delays = []
    for text in served.run("logs", "slow", "-o", "json").stdout.splitlines():
        line = json.loads(text)
        if (key := f"node {line['node']}{line['text']}") in seen:
            written = (
                time.mktime(time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S"))
                - time.timezone
                + float(line["time"][19:23])
            )
            delays.append(seen[key] - written)
    assert len(delays) >= 20
    assert median(delays) <= pace.stretched(1.0)
    assert page.get_by_text("40/40").first.is_visible()
    until(page, "document.getElementById('live').textContent === ''")  # it is over


def test_a_hundred_thousand_lines_arrive_whole(open_page: Callable[..., Page], served: Served) -> None:
    served.submit("burst", "burst", 3, "--nodes", "1")
    page = open_page("job/burst")
    until(page, "document.querySelector('#log li:last-child .text')?.textContent == 'line 99999'")
    lines = page.evaluate(
        "[...document.querySelectorAll('#log li')].map((one) => [one.id, one.querySelector('.text').textContent])"
    )
    assert len(lines) <= 2000
    numbers = [int(name[1:]) for name, _ in lines]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [text for _, text in lines][-3:] == ["line 99997", "line 99998", "line 99999"]
    page.evaluate("document.getElementById('log').scrollTop = 0")
    until(page, f"document.querySelector('#log li').id != 'l{numbers[0]}'")
    more = page.evaluate("[...document.querySelectorAll('#log li')].map((one) => Number(one.id.slice(1)))")
    assert more == list(range(more[0], numbers[-1] + 1))
    assert memory_of(served.pid) < 400 << 20


def memory_of(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


IDLE_SERVER = """
import uvicorn

async def nothing(scope, receive, send):
    pass

uvicorn.run(nothing, port=0, log_level="error", lifespan="off")
"""


@pytest.fixture
def idle_server() -> Iterator[subprocess.Popen[bytes]]:
    """Run a server of the same kind that has nothing to serve."""
    with subprocess.Popen([sys.executable, "-c", IDLE_SERVER]) as process:
        yield process
        process.kill()


def test_nothing_costs_next_to_nothing(
    open_page: Callable[..., Page], served: Served, idle_server: subprocess.Popen[bytes]
) -> None:
    """With the pages of all jobs and of a silent one open, the server takes at most 2% of a core.

    Where a server that serves nothing takes more than a fifth of that, it may take five times as much.
    """
    served.submit("still", "still", 5, "--nodes", "1")
    page = open_page("job/still")
    until(page, "document.querySelectorAll('#log li').length >= 6")
    open_page("")
    time.sleep(8)  # until the job counts as silent
    pids = (served.pid, idle_server.pid)
    before, begun = [cpu_of(pid) for pid in pids], time.monotonic()
    time.sleep(15)
    taken, idle = (cpu_of(pid) - used for pid, used in zip(pids, before, strict=True))
    assert taken <= max(0.02 * (time.monotonic() - begun), 5 * idle)
    page.get_by_role("link", name="Cancel").click()
    assert page.get_by_text("jobsubmit cancel still", exact=True).is_visible()
    page.get_by_role("button", name="Cancel the job").click()
    until(page, "document.querySelector('#part-head .state')?.textContent?.includes('CANCELLED')")


def test_a_job_is_submitted_again_and_deleted(open_page: Callable[..., Page], served: Served) -> None:
    page = open_page("job/works/rerun")
    page.get_by_role("button", name="Submit the job again").click()
    page.wait_for_selector("#part-head .state")
    job_id = page.url.rpartition("/")[2]
    assert job_id.startswith("ddp-")
    served.ended(job_id)
    page.goto(served.url + f"job/{job_id}/delete")
    page.get_by_role("button", name="Delete the job").click()
    page.wait_for_selector("tr.job")
    assert page.locator(f"#job-{job_id}").count() == 0
    assert served.run("status", job_id).returncode == 102


def test_only_the_job_that_was_seen_is_deleted(served: Served) -> None:
    """An id that is gone must not become the name of another job, and a resubmitted id is another job."""
    served.submit("ddp", "quick", 2)
    served.ended("ddp")
    page = ask(served.url + "job/ddp/delete")[1].decode()
    found = re.search(r'name="created" value="([^"]+)"', page)
    assert found is not None
    for created, code in (("1.5", 400), (found[1], 200), (found[1], 404)):
        assert ask(served.url + "job/ddp/delete", f"created={created}".encode())[0] == code
    assert served.run("status", "works").returncode == 0


def test_the_file_that_opens_the_page_opens_it(served: Served, chromium: Browser) -> None:
    from jobsubmit.ui import server

    opened: list[str] = []
    patch = pytest.MonkeyPatch()
    patch.setattr(webbrowser, "open", opened.append)
    with server.opened(served.url):
        page = chromium.new_page()
        page.goto(opened[0])
        page.wait_for_selector("#part-jobs", timeout=1000 * PATIENCE)
        assert page.url == served.url
        page.close()
    patch.undo()


def test_the_end_of_a_job_is_on_its_page(open_page: Callable[..., Page], served: Served) -> None:
    """The last report, of the whole log, is shown before the page counts as over."""
    served.submit("ends", "ends", 4000, "--nodes", "1")
    page = open_page("job/ends")
    until(page, "document.querySelector('#part-head')?.textContent?.includes('SUCCEEDED')")
    until(page, "document.getElementById('live').textContent === ''")
    assert page.get_by_text("4,000/4,000").first.is_visible()
    assert page.get_by_role("link", name="Delete").is_visible()
    assert page.title().startswith("●")


def test_many_tabs_of_one_browser_are_served(chromium: Browser, served: Served) -> None:
    context = chromium.new_context()
    for _ in range(5):
        context.new_page().goto(served.url)
    hidden = context.pages[0]
    hidden.evaluate("""() => {
        Object.defineProperty(document, 'hidden', {value: true, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }""")
    assert hidden.evaluate("1") == 1
    context.new_page().goto(served.url + "job/works", timeout=1000 * PATIENCE)
    context.close()


@pytest.mark.parametrize(
    "text", ["\x1b[" + "1" * 5000 + "m", "\x1b[1;31;99;38;5;7mred", "\udc80 half", "\r\r", "\x9b31m"]
)
def test_hostile_lines_are_text(text: str) -> None:
    from jobsubmit.report import html

    assert "<script" not in html.spelled(text + "<script>")
    assert html.render("log_part.html.j2", lines=[]) == ""


def test_odd_addresses_get_an_answer(served: Served) -> None:
    for path in (
        "?page=x&since=nan&before=1e999",
        "job/works?before=x&of=rank-" + "9" * 60,
        "job/works?tab=none&find=" + "x" * 5000,
    ):
        assert ask(served.url + path)[0] == 200
    assert ask(served.url.rstrip("/"))[0] == 200
    assert ask(served.url, Origin="http://[")[0] == 404
    assert ask(served.url + "job/works/")[0] in (400, 404)
    assert ask(served.url + "job/x/none")[0] == 400


def test_the_list_is_live_and_compares(open_page: Callable[..., Page], served: Served) -> None:
    page = open_page("")
    page.wait_for_selector("#job-works")
    served.submit("new-one", "quick", 5)
    page.wait_for_selector("#job-new-one", timeout=1000 * PATIENCE)
    page.get_by_label("works", exact=True).check()
    page.get_by_label("fails", exact=True).check()
    page.get_by_role("button", name="Compare the chosen jobs").click()
    page.wait_for_selector("figure polyline.s1")
    difference = page.locator("details[open] pre").inner_text()
    assert "--- works" in difference
    assert "+++ fails" in difference
    assert "quick" in difference


def test_others_get_nothing(served: Served) -> None:
    bare = re.sub(r"(:\d+/).*", r"\1", served.url)
    assert ask(bare) == (404, b"")
    assert ask(bare + "x" * 32 + "/") == (404, b"")
    assert ask(served.url, Host="evil.example") == (404, b"")
    assert ask(served.url, Origin="http://evil.example") == (404, b"")
    assert ask(served.url + "job/works/delete", b"created=1", Origin="http://evil.example") == (404, b"")
    assert served.run("status", "works").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_another_user_finds_no_token(served: Served) -> None:
    user = pwd.getpwnam("nobody")
    words = Path(f"/proc/{served.pid}/cmdline").read_bytes()
    token = served.url.rstrip("/").rpartition("/")[2]
    assert token.encode() not in words
    read = subprocess.run(["cat", f"/proc/{served.pid}/environ"], user=user.pw_uid, capture_output=True, check=False)
    assert token.encode() not in read.stdout


def test_the_page_follows_the_language(served: Served, chromium: Browser) -> None:
    environment = {**served.environment, "JOBSUBMIT_LANG": "zh"}
    words = [sys.executable, "-m", "jobsubmit", "ui", "--port", "0", "-o", "json"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(read_document(process.stdout))["url"]
        page = chromium.new_page()
        page.goto(url + "job/fails")
        assert page.locator("html").get_attribute("lang") == "zh"
        assert page.get_by_text("时间线").is_visible()
        page.close()
        process.terminate()
        assert process.wait(20) in (0, -signal.SIGTERM)
