"""The report: what it says of files whose content is known."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from command import Command
from timing_files import Times, timing_file

from jobsubmit.backends.models import Failure, JobPhase, JobStatus, LogLine, Recovery, State
from jobsubmit.common.sizes import bytes_text
from jobsubmit.config import BUILT_IN
from jobsubmit.errors import UsageError
from jobsubmit.jobs import monitor
from jobsubmit.jobs.records import JobRecord
from jobsubmit.metrics.collection import Metrics
from jobsubmit.report.curves import find_curves
from jobsubmit.report.goodput import measure_goodput
from jobsubmit.report.html import render_page
from jobsubmit.report.job_phases import find_marks, find_phases
from jobsubmit.report.model import Paper, Report
from jobsubmit.report.report import compare, log_excerpts, notes
from jobsubmit.report.statistics import compare_medians, measure_spread
from jobsubmit.report.steps import Sync, measure_syncs
from jobsubmit.report.text import percent_text, ratio_rows, seconds_text, straggler_text
from jobsubmit.report.timing_files import parse_processes

CORPUS = Path(__file__).parents[2] / "corpus"


def even(rank: int, step: int) -> tuple[int, int, int, int, int]:
    """All ranks alike; each is the last one in its turn."""
    wait = 3000 if step % 4 == rank else 3200
    return 10_000, 1000, 4000, wait, 1000


def measured(times: Times, ranks: int = 4) -> Sync:
    (found,) = measure_syncs(parse_processes(timing_file(rank, times) for rank in range(ranks)))
    return found


def test_the_parts_of_a_step_are_told() -> None:
    found = measured(even)
    assert found.steps == 17  # of 20, the first 3 do not count
    assert found.spreads["step"].median == pytest.approx(0.010)
    assert found.spreads["forward"].median == pytest.approx(0.001)
    assert found.spreads["exposed"].median == pytest.approx(0.0022)  # the middle of all ranks
    assert found.spreads["rest"].median == pytest.approx(0.010 - 0.001 - 0.004 - 0.0022)
    assert found.overlap == pytest.approx(1000 / 3150, rel=0.01)
    assert found.wire is None  # of several buckets only their own times tell
    assert found.own == pytest.approx(0.001)
    assert found.straggler is None
    assert straggler_text(found) == ""


def test_the_first_steps_do_not_count() -> None:
    assert measured(lambda rank, step: (10_000, 1000, 4000, 3000 if step > 3 else 900_000, 0)).spreads[
        "communication"
    ].p95 == pytest.approx(0.003)


def test_who_waits_least_is_the_one_all_wait_for() -> None:
    found = measured(lambda rank, step: (10_000, 1000, 4000, 500 if rank == 2 else 4000, 0))
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.node) == (2, 1)
    assert found.straggler.share == 1.0
    assert found.straggler.cost == pytest.approx(0.0035)
    assert straggler_text(found).startswith("rank 2 (node 1) comes last in 100% of the steps: the others wait 3.5 ms")


def test_a_slow_node_is_named_where_its_ranks_take_turns() -> None:
    found = measured(
        lambda rank, step: (10_000, 1000, 4000, (500 + 50 * (step % 2 == rank % 2)) if rank > 1 else 4000, 0)
    )
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.node) == (None, 1)
    assert straggler_text(found).startswith("node 1 comes last")


def test_chance_makes_nobody_a_straggler() -> None:
    dice = random.Random(3)

    def times(rank: int, step: int) -> tuple[int, int, int, int, int]:
        return 20_000, 1000, 4000, 3000 + dice.randrange(2500) - 600 * (rank == 1), 0

    assert measured(times).straggler is None
    assert [measured(times, ranks=2).straggler for _ in range(20)] == [None] * 20


def test_who_is_late_without_keeping_anybody_is_no_straggler() -> None:
    assert measured(lambda rank, step: (100_000, 1000, 4000, 3000 if rank == 2 else 3100, 0)).straggler is None


def test_one_bucket_cannot_overlap() -> None:
    files = [timing_file(rank, even, buckets=[1000]) for rank in range(4)]
    told = parse_processes(files)
    (found,) = measure_syncs(told)
    assert found.overlap is None
    assert found.spreads["exposed"] == found.spreads["communication"]
    assert any("one bucket, so communication cannot overlap" in note for note in notes(told, (found,)))


def test_a_line_that_was_cut_off_and_steps_that_one_rank_lacks_do_no_harm() -> None:
    files = [timing_file(rank, even, steps=20 - rank)[: -5 if rank == 1 else None] for rank in range(4)]
    (found,) = measure_syncs(parse_processes([*files, b"", b"no json\n[1,2,3]\n"]))
    assert [rank.steps for rank in found.ranks] == [17, 15, 15, 14]


def test_steps_of_all_attempts_count_and_their_warm_up_does_not() -> None:
    files = [timing_file(rank, even, attempt=attempt, steps=10) for attempt in (0, 1) for rank in range(4)]
    (found,) = measure_syncs(parse_processes(files))
    assert [rank.steps for rank in found.ranks] == [14] * 4
    assert sum(rank.last for rank in found.ranks) == pytest.approx(1.0)


def test_the_line_is_as_fast_as_the_rank_that_waits_for_nobody_sees_it() -> None:
    files = [timing_file(rank, even, buckets=[1000]) for rank in range(4)]
    (one,) = measure_syncs(parse_processes(files))
    assert one.wire == pytest.approx(0.003)
    assert one.bandwidth == pytest.approx(1000 * 2 * 3 / 4 / 0.003)

    def reductions(rank: int) -> list[object]:
        start, late = 8_000_000, 500 * (rank != 2)  # rank 2 comes last; the buckets overlap
        times = [[0, 600, start, start + 2000 + late], [1, 400, start + 1000, start + 4000 + late]]
        return [["buckets", 0, step, times] for step in range(1, 20)]

    (several,) = measure_syncs(parse_processes(timing_file(rank, even, more=reductions(rank)) for rank in range(4)))
    assert several.wire == pytest.approx(0.004)
    assert several.bandwidth == pytest.approx(1000 * 2 * 3 / 4 / 0.004)
    assert [(bucket, size) for bucket, size, _ in several.bucket_medians] == [(0, 600), (1, 400)]


def recorded_on_a_gpu(name: str) -> Sync:
    """Return what two ranks measured that shared a GPU: torch 2.11, NCCL 2.28, three buckets of equal size."""
    files = [(CORPUS / f"nccl/timing/{name}-rank-{rank}.jsonl").read_bytes() for rank in range(2)]
    (found,) = measure_syncs(parse_processes(files))
    return found


def test_with_nccl_a_bucket_does_not_answer_for_those_before_it() -> None:
    found = recorded_on_a_gpu("buckets")
    assert (found.backend, found.device, found.sampled) == ("nccl", "cuda", 10)
    assert all(0.020 < seconds < 0.023 for _, _, seconds in found.bucket_medians)
    assert found.wire == pytest.approx(0.066, abs=0.001)


@pytest.mark.parametrize(("name", "waited"), [("slow-gpu", 0.044), ("slow-cpu", 0.030)])
def test_a_straggler_on_gpus_is_named_whether_its_gpu_or_its_cpu_is_late(name: str, waited: float) -> None:
    found = recorded_on_a_gpu(name)
    assert found.straggler is not None
    assert found.straggler.rank == 1
    assert found.straggler.cost == pytest.approx(waited, abs=0.001)


def test_another_number_of_ranks_is_another_training() -> None:
    files = [timing_file(rank, even, world=6, attempt=0) for rank in range(6)]
    files += [timing_file(rank, even, world=4, attempt=1) for rank in range(4)]
    (found,) = measure_syncs(parse_processes(files))
    assert (found.world, found.steps, len(found.ranks)) == (4, 17, 4)


def test_groups_of_ranks_are_told_apart() -> None:
    files = [timing_file(rank, even, world=2, ranks=[rank // 2 * 2, rank // 2 * 2 + 1]) for rank in range(4)]
    found = measure_syncs(parse_processes(files))
    assert [[rank.rank for rank in sync.ranks] for sync in found] == [[0, 1], [2, 3]]


def test_what_torch_restarts_within_an_attempt_is_told_apart() -> None:
    steps = [JobPhase("rendezvous", 990, 1000), JobPhase("training", 1004, 1220)]
    files = [timing_file(0, even), timing_file(0, even, began=1200.0, restart=1)]
    found = {phase.name: phase for phase in find_phases(steps, parse_processes(files))}
    assert len(found["training"].spans) == 2
    assert found["training"].seconds == pytest.approx(2 * 19 * 0.01)
    assert found["start-up"].spans == ((1000.0, 1004.5), (1200.0, 1204.5))


def test_phases_are_as_exact_as_what_is_known_of_them() -> None:
    steps = [JobPhase("upload", 990, 991), JobPhase("rendezvous", 992, 1001), JobPhase("first_output", 1001, 1004)]
    steps += [JobPhase("training", 1004, 1020), JobPhase("exit", 1020, 1021)]
    plain = ["upload", "launcher, rendezvous", "first output", "training", "exit"]
    assert [phase.name for phase in find_phases(steps, [])] == plain
    saves = [{"event": "saved", "t": 1010.0 + number, "seconds": 0.25} for number in range(3)]
    told = parse_processes([timing_file(0, even, more=saves), timing_file(1, even)])
    found = {phase.name: phase for phase in find_phases(steps, told)}
    assert list(found) == [
        "upload",
        "launcher, rendezvous",
        "start-up",
        "process group",
        "first step",
        "training",
        "exit",
        "checkpoint",
    ]
    assert found["process group"].spans == ((1004.5, 1005.0),)
    assert found["first step"].start == 1005.0
    assert found["first step"].end == pytest.approx(1007.01)
    assert found["training"].end == pytest.approx(1007.2)  # 20 steps
    assert found["exit"].start == pytest.approx(1007.2)
    assert found["exit"].end == 1021
    assert found["checkpoint"].seconds == pytest.approx(0.75)


def test_what_never_ended_ends_with_the_job() -> None:
    steps = [JobPhase("rendezvous", 990, 1000), JobPhase("first_output", 1000), JobPhase("exit", 1030, 1031)]
    found = {phase.name: phase for phase in find_phases(steps, [], ended=1031)}
    assert found["first output"].spans == ((1000, 1030),)
    assert {phase.name: phase for phase in find_phases(steps, [])}["first output"].end is None


def alone(values: list[float]) -> list[list[float]]:
    """Return steps of one rank."""
    return [[value] for value in values]


def test_a_ratio_has_an_interval_that_holds_it() -> None:
    first = [1.0 + 0.1 * (step % 7) for step in range(100)]
    found = compare_medians(alone(first), alone([2 * value for value in first]))
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.low <= 2.0 <= found.high
    assert found.high - found.low < 0.5
    assert compare_medians(alone(first), []) is None
    assert compare_medians(alone(first), alone(first[:9])) is None  # too few for an interval
    assert compare_medians(alone([0.0] * 20), alone([1.0] * 20)) is None
    often_nothing = compare_medians(alone([0.0] * 9 + [1.0] * 11), alone([1.0] * 20))
    assert often_nothing is not None
    assert often_nothing.value == 1.0


def test_the_ratio_is_that_of_the_medians_beside_it_and_they_lie_among_the_ranks() -> None:
    """Ranks that take turns: the mean of a step is in no rank's range."""
    first = [[0.010, 0.030] if step % 3 else [0.030, 0.012] for step in range(600)]
    second = [[2.5 * value for value in step] for step in first]
    one, other = (measure_spread(list(zip(*steps, strict=True))) for steps in (first, second))
    found = compare_medians(first, second)
    assert one.least_rank <= one.median <= one.greatest_rank
    assert found
    assert found.value == pytest.approx(other.median / one.median)
    assert found.low <= found.value <= found.high


def report_of(job_id: str, files: list[bytes], name: str = "job", message: str = "") -> Report:
    record = JobRecord(job_id, name, "torchrun", "local", 2, 990.0, "code", None, "", handle="local://x")
    recovery = Recovery(f"restart 1 {message}", f"kill {message}", 1008.0, 1009.0, None, None)
    status = JobStatus(State.FAILED, "EXIT_CODE", message, recoveries=(recovery,), details={"ended": 1030.0})
    told = parse_processes(files)
    found = measure_syncs(told)
    steps = [JobPhase("training", 1000.0, 1030.0)]
    phases = find_phases(steps, told)
    goodput = measure_goodput(phases, [], begin=1000.0, end=1030.0)
    return Report(record, status, phases, find_marks(status), found, tuple(notes(told, found)), goodput)


def test_paths_in_the_logs_of_a_page_begin_at_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    line = LogLine(1, 3, "stderr", 0.0, '  File "/home/me/state/jobs/a-1/nodes/1/code/train.py", line 3, in work')
    monkeypatch.setattr(monitor, "logs", lambda *args: [line])
    (paper,) = log_excerpts(report_of("a-1", []), BUILT_IN)
    assert paper.text == '[rank 3]   File "code/train.py", line 3, in work'


def test_two_jobs_compare() -> None:
    first = report_of("a", [timing_file(rank, even) for rank in range(4)])
    second = report_of(
        "b", [timing_file(rank, lambda rank, step: (20_000, *even(rank, step)[1:])) for rank in range(4)]
    )
    (found,) = compare(first, second)
    assert found.ratios["step"].value == pytest.approx(2.0)
    assert found.ratios["forward"] == (1.0, 1.0, 1.0)
    shown = {row[0]: row[1:] for row in ratio_rows(found)}
    assert shown["step"] == ("10 ms", "20 ms", "2.00", "2.00 to 2.00")
    with pytest.raises(UsageError, match="c: no step was timed"):
        compare(first, report_of("c", []))


def test_models_of_one_name_are_told_apart() -> None:
    def second(rank: int) -> list[object]:
        series = {"event": "series", "t": 1006.5, "series": 1, "what": "ddp", "name": "Net", "bytes": 500, "world": 4}
        rows = [[1, step, 7_000_000 + step, 9_000, 1, 1, 1, 0, 1] for step in range(1, 20)]
        return [{**series, "device": "cpu", "sampled": 1}, *rows]

    found = measure_syncs(parse_processes(timing_file(rank, even, more=second(rank)) for rank in range(4)))
    assert [sync.name for sync in found] == ["Net #1", "Net #2"]
    assert [sync.size for sync in found] == [1000, 500]


XSS = (
    "<script>window.struck = 1</script>",
    '"><img src=x onerror="window.struck = 1">',
    "'); window.struck = 1; ('",
    "</title><svg onload=window.struck=1>",
    "{{ 7 * 7 }}{% raw %}",
    "</style><script>window.struck = 1</script>",
    "javascript:window.struck=1",
    "\u202e\x00\x1b[31m",
)


@pytest.mark.parametrize("text", XSS)
def test_texts_stay_texts_in_the_page(text: str) -> None:
    files = [timing_file(rank, even, name=text) for rank in range(4)]
    found = render_page([report_of(text, files, name=text, message=text)], version="1")
    assert "<script" not in found
    assert "<img" not in found
    assert 'onerror="' not in found
    assert "<svg onload" not in found
    assert found.count("</style>") == 1
    head, _, body = found.partition("</head>")
    assert head.count("</title>") == 1
    assert body.count("<title>") == body.count("</title>")  # of bars


def test_the_page_asks_for_nothing() -> None:
    found = render_page([report_of("a", [timing_file(rank, even) for rank in range(4)])], version="1")
    assert "http:" not in found
    assert "https:" not in found
    assert "default-src 'none'" in found


def test_numbers_are_short() -> None:
    assert [seconds_text(seconds) for seconds in (0.0000123, 0.0123, 1.234, 65, 7620, None)] == [
        "12 µs",
        "12.3 ms",
        "1.23 s",
        "1 min 05 s",
        "2 h 07 min",
        "…",
    ]
    assert [bytes_text(size) for size in (660, 39_256_000, 2e15)] == ["660 B", "39.3 MB", "2e+03 TB"]
    assert [percent_text(share) for share in (0, 0.0012, 0.045, 0.5, None)] == ["0%", "0.12%", "4.5%", "50%", "—"]


def test_a_job_that_was_not_timed_says_how_to(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('hello')\n")
    (tmp_path / "job.yaml").write_text(
        "name: plain\nmode: spawn\ncode_dir: code\nboot_file: train.py\nresources: {nproc_per_node: 1}\n"
    )
    jobsubmit("create", "--follow", "--no-check", "--job-id", "plain-1")
    done = jobsubmit("report", "plain-1", "--html", "out.html")
    assert "submit the job with --profile-sync" in done.stdout
    assert "upload" in done.stdout
    assert "Timeline" in (tmp_path / "out.html").read_text()
    assert jobsubmit.json("report", "plain-1")["syncs"] == []
    assert "nothing to compare" in jobsubmit("report", "plain-1", "plain-1", code=2).stderr
    assert "cannot be written" in jobsubmit("report", "plain-1", "--html", "no/such/out.html", code=2).stderr


def test_the_page_of_a_failed_job_says_who_failed_why_and_from_what() -> None:
    found = report_of("a", [])
    failure = Failure(
        1,
        3,
        1,
        None,
        "node 1, rank 3 failed first",
        "rank 3",
        ('  File "/s/jobs/a/nodes/1/code/train.py", line 7', "ValueError: <bad>"),
        "the data is bad",
        "mend it",
        (0, 2),
    )
    revision = {"commit": "c0ffee", "branch": "main", "uncommitted": ["train.py"]}
    papers = (Paper("job.yaml", "name: a\n"), Paper("stacks of rank 3", "Thread 0x1"))
    found = replace(
        found,
        status=replace(found.status, failure=failure),
        record=replace(found.record, revision=revision),
        papers=papers,
    )
    page = render_page([found], version="1")
    for text in (
        "Last lines of rank 3",
        "code/train.py&#34;, line 7",
        "ValueError: &lt;bad&gt;",
        "the data is bad",
        "mend it",
        "ranks 0, 2",
        "c0ffee, with 1 uncommitted path",
        "name: a",
        "stacks of rank 3",
        "Thread 0x1",
    ):
        assert text in page, text
    assert "/s/jobs" not in page


def with_curve(report: Report, shift: float) -> Report:
    metrics = Metrics()
    for step in range(1, 50):
        metrics.take(0, 0, 1000.0 + step, f"step {step} <b>loss</b> {shift + 3 / step:.4f} loss {shift + 3 / step:.4f}")
    return replace(report, curves=find_curves(metrics))


def test_two_jobs_without_timed_steps_compare_by_their_curves() -> None:
    first, second = with_curve(report_of("a", []), 0.0), with_curve(report_of("b", []), 1.0)
    assert compare(first, second) == ()
    page = render_page([first, second], version="0")
    assert page.count('<polyline class="s1"') == 2  # over the steps, and over the time
    assert "goodput" in page
    assert "4</span>" in page  # the highest value of both


def test_a_curve_of_one_value_everywhere_is_a_line() -> None:
    metrics = Metrics()
    for step in range(1, 50):
        metrics.take(0, 0, 1000.0 + step, f"step {step} loss 0.5")
    report = replace(report_of("a", []), curves=find_curves(metrics))
    assert "NaN" not in render_page([report], version="0")


def test_a_curve_over_decades_has_a_logarithmic_scale() -> None:
    metrics = Metrics()
    for step in range(1, 5):
        metrics.take(0, 0, 1000.0 + step, f"step {step} loss {10.0 ** (2 - step)}")
    report = replace(report_of("a", []), curves=find_curves(metrics))
    page = render_page([report], version="0")
    assert "logarithmic scale" in page
    assert 'points="0.0,0.0 333.3,33.3 666.7,66.7 1000.0,100.0"' in page
