"""Build the report of a job: what the terminal, JSON and the page show."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobsubmit.agent.atomic_write import read_file
from jobsubmit.agent.job_directory import DIFFERENCE, RESOLVED, SCRIPT_NAME, JobDirectory
from jobsubmit.backends.models import JobStatus, LogLine, LogQuery
from jobsubmit.common.code_paths import short_paths
from jobsubmit.common.durations import time_text
from jobsubmit.config import Settings
from jobsubmit.errors import BackendError, JobNotFoundError, UsageError
from jobsubmit.jobs import monitor
from jobsubmit.jobs.event_files import read_event_files
from jobsubmit.jobs.progress import open_metrics, summarize
from jobsubmit.jobs.records import JobRecord
from jobsubmit.metrics.collection import Metrics
from jobsubmit.metrics.observations import observe
from jobsubmit.plan.plan_file import read_plan
from jobsubmit.report.curves import common_curves, find_curves
from jobsubmit.report.goodput import STEPS, Goodput, Position, measure_goodput
from jobsubmit.report.job_phases import TRAINING, Phase, find_marks, find_phases
from jobsubmit.report.machine_use import machine_document, machine_notes, parse_machines
from jobsubmit.report.model import Comparison, Paper, Report
from jobsubmit.report.statistics import compare_medians
from jobsubmit.report.steps import METRICS, WARM_UP, Sync, measure_syncs
from jobsubmit.report.straggler import FEWEST_STEPS
from jobsubmit.report.text import percent_text
from jobsubmit.report.timing_files import Process, parse_processes


def read_phases(record: JobRecord, status: JobStatus, settings: Settings) -> tuple[Phase, ...]:
    """Return the phases of a job as its report shows them; with `profile`, its timings count once it has ended."""
    files: list[bytes] = []
    if status.state.is_final and record.handle and _was_asked(record, settings):
        with suppress(BackendError, JobNotFoundError):
            files = list(monitor.timings(record, settings))
    return find_phases(monitor.phases_of(record, status), parse_processes(files), status.ended)


def report(record: JobRecord, settings: Settings, metrics: Metrics | None = None) -> Report:
    """Return the report of a job, also of one that still runs or has failed.

    `metrics` is what was read from its output; without them, all of it is read now.
    """
    status = monitor.status(record, settings)
    files = list(monitor.timings(record, settings)) if record.handle else []
    measured, machines = parse_processes(files), parse_machines(files)
    found = measure_syncs(measured)
    phases = find_phases(monitor.phases_of(record, status), measured, status.ended)
    metrics = metrics if metrics is not None else _read_metrics(record, settings)
    goodput = _goodput(record, status, phases, metrics)
    said = [
        *notes(measured, found, was_asked=_was_asked(record, settings), is_over=status.state.is_final),
        *_goodput_notes(goodput),
        *observe(metrics),
        *machine_notes(machines),
    ]
    if record.handle and not machines.nodes and any(phase.name == TRAINING for phase in phases):
        said.append(f"no figures of CPU, memory and accelerators: the {record.backend} backend has recorded none")
    return Report(
        record,
        status,
        phases,
        find_marks(status),
        found,
        tuple(said),
        goodput,
        find_curves(metrics),
        machines,
        (*_stacks(record, status, settings), *_papers(settings.job_dir(record.id)), *_environment(record, settings)),
        summarize(metrics),
        tuple(metrics.progress().items()),
        _nodes_of_ranks(record, settings),
    )


def _nodes_of_ranks(record: JobRecord, settings: Settings) -> dict[str, int]:
    """Return the node of each rank that has started, by its number."""
    with suppress(BackendError, JobNotFoundError):
        starts = (event for event in monitor.events(record, settings) if event["event"] == "rank_start")
        return {str(event["rank"]): int(event["node"]) for event in starts}
    return {}


def _read_metrics(record: JobRecord, settings: Settings) -> Metrics:
    """Return what the training has printed; nothing if the logs cannot be read now."""
    metrics = open_metrics(record, settings)
    with suppress(BackendError, JobNotFoundError):
        for line in monitor.logs(record, settings):
            metrics.take(line.node, line.rank, line.time, line.text)
    read_event_files(record, settings, metrics)
    return metrics


def _goodput(record: JobRecord, status: JobStatus, phases: Sequence[Phase], metrics: Metrics) -> Goodput:
    furthest = max(metrics.progress().items(), key=lambda item: (item[1].epoch or 0, item[1].step or 0), default=None)
    positions = [Position(*one) for one in metrics.positions(furthest[0])] if furthest else []
    ended = status.ended
    hung = list(_hangs(status))
    begin = min((phase.start for phase in phases), default=record.created)
    ends = [end or start for phase in phases for start, end in phase.spans]
    end = ended if ended is not None else time.time()
    return measure_goodput(phases, positions, begin=begin, end=max([end, begin, *ends]), hung=hung)


def _hangs(status: JobStatus) -> Iterator[float]:
    """Yield when it was seen each time that a job hung."""
    yield from (recovery.detected_at for recovery in status.recoveries if recovery.what.endswith(_AFTER_HANG))
    if status.reason == "HANG" and status.ended is not None:
        yield status.ended


def _goodput_notes(goodput: Goodput) -> Iterator[str]:
    if not goodput.knows_steps and goodput.seconds.get(STEPS):
        yield (
            "goodput: the output shows no step numbers, so the whole training phase counts, including steps repeated "
            "after a restart"
        )


def _stacks(record: JobRecord, status: JobStatus, settings: Settings) -> Iterator[Paper]:
    """Yield the stacks of each rank if the job hung."""
    if not any(_hangs(status)):
        return
    with suppress(BackendError, JobNotFoundError):
        for rank, text in sorted(monitor.stacks(record, settings).items())[:_MOST_STACKS]:
            yield Paper(f"stacks of rank {rank}", short_paths(text[:_MOST_LETTERS].decode("utf-8", "replace")))


def _papers(folder: Path) -> tuple[Paper, ...]:
    """Return the texts that explain a job: what was submitted, and what the backend was sent."""
    found, files = [], JobDirectory(folder)
    named = [(name, folder / name) for name in ("job.yaml", RESOLVED, SCRIPT_NAME, DIFFERENCE)]
    known = {Path(path).name for path in (files.record, files.status, files.plan, files.resolved, files.left_out)}
    known |= {Path(files.processes).name, *(name for name, _ in named)}
    others = (file for file in sorted(folder.glob("*")) if file.suffix in _TEXT_FILES and file.name not in known)
    named += [(file.name, file) for file in others]  # what the backend was sent
    for name, file in named:
        try:
            text = read_file(str(file), _MOST_LETTERS).decode("utf-8", "replace")
        except OSError:
            continue
        if text.strip():
            found.append(Paper(name, text))
    return tuple(found)


def _environment(record: JobRecord, settings: Settings) -> Iterator[Paper]:
    """Yield the variables that the job file sets. Secrets are not among them."""
    with suppress(BackendError):
        plan = read_plan(settings.job_dir(record.id))
        if plan is not None and plan.env:
            yield Paper("env", "\n".join(f"{name}={value}" for name, value in plan.env))


def log_excerpts(found: Report, settings: Settings) -> tuple[Paper, ...]:
    """Return the last lines of the process that failed first, if one did, and of all processes."""
    failure, record = found.status.failure, found.record
    queries = {f"all ranks, the last {_LAST_LINES} lines": LogQuery(tail=_LAST_LINES)}
    if failure is not None:
        who = f"node {failure.node}" if failure.rank is None else f"rank {failure.rank}"
        own = LogQuery(failure.node if failure.rank is None else None, failure.rank, tail=_LAST_LINES)
        queries = {f"{who}, the last {_LAST_LINES} lines": own, **queries}
    papers = []
    with suppress(BackendError, JobNotFoundError, OSError):
        for name, query in queries.items():
            text = short_paths("\n".join(map(_log_text, monitor.logs(record, settings, query))))
            papers += [Paper(name, text)] if text else []
    return tuple(papers)


def _log_text(line: LogLine) -> str:
    return f"[{f'node {line.node}' if line.rank is None else f'rank {line.rank}'}] {line.text}"


def events_text(record: JobRecord, settings: Settings) -> str:
    """Return the events of a job, one per line, each with its time."""
    lines = []
    with suppress(BackendError, JobNotFoundError, OSError):
        for event in itertools.islice(monitor.events(record, settings), _MOST_EVENTS):
            fields = (f"{name}={value}" for name, value in event.items() if name not in ("t", "event"))
            lines.append(f"{time_text(event['t'], 'milliseconds')} {event['event']} {' '.join(fields)}".rstrip())
    return "\n".join(lines)


_LAST_LINES, _MOST_EVENTS = 300, 2000
_MOST_STACKS, _MOST_LETTERS = 16, 40_000
_TEXT_FILES = (".yaml", ".json", ".sbatch", ".sh")
_AFTER_HANG = " after HANG"  # the end of what a recovery is called


def compare(first: Report, second: Report) -> tuple[Comparison, ...]:
    """Return how the models with the same name in two jobs compare; without such models, the largest of each job.

    Raises UsageError if no step of one of the jobs was timed, and no metric is common to both.
    """
    for report in (first, second):
        if not report.syncs and not common_curves(first.curves, second.curves):
            raise UsageError(
                f"{report.record.id}: no step was timed, and the jobs share no metric: nothing to compare",
                "".join(report.notes[:1]),
            )
    if not first.syncs or not second.syncs:
        return ()
    known = {(sync.what, sync.name): sync for sync in second.syncs}
    pairs = [(sync, known[sync.what, sync.name]) for sync in first.syncs if (sync.what, sync.name) in known]
    return tuple(_compared(one, other) for one, other in pairs or [(first.syncs[0], second.syncs[0])])


def _compared(one: Sync, other: Sync) -> Comparison:
    ratios = {name: found for name in METRICS if (found := compare_medians(one.by_step[name], other.by_step[name]))}
    return Comparison(one, other, ratios)


def _was_asked(record: JobRecord, settings: Settings) -> bool:
    """Return whether the job was submitted with timing, according to its plan on this machine."""
    try:
        plan = read_plan(settings.job_dir(record.id))
    except BackendError:
        return False
    return plan is not None and plan.profile is not None


def notes(
    measured: Sequence[Process], found: Sequence[Sync], *, was_asked: bool = True, is_over: bool = True
) -> Iterator[str]:
    """Yield the notes of a report: what is not counted, what was not measured, what the timing cost."""
    if not is_over:
        yield "the job has not ended: the report is not complete"
    if not measured and was_asked:
        yield "no process has recorded timings: none has started" if is_over else "no process has recorded timings yet"
        return
    if not measured:
        yield "the steps were not timed: submit the job with --profile-sync (or `profile: sync` in the job file)"
        return
    for why in sorted({process.off for process in measured if process.off}):
        yield f"the timing was stopped: {why}"
    for what in sorted({what for process in measured for what in process.unmeasured}):
        yield f"the code uses {what}, which is not measured"
    if not found:
        yield (
            "no step was timed: timing needs DistributedDataParallel (or jobsubmit.profiling.sync), and more than "
            f"{WARM_UP + 1} steps"
        )
    for sync in found:
        yield from _sync_notes(sync)


def _sync_notes(sync: Sync) -> Iterator[str]:
    name, is_ddp = sync.name, sync.what == "ddp"
    steps = f"measured over {sync.steps} steps of each rank"
    last = " and the last one, which torch does not report" if is_ddp else ""
    sampled = f"; one step in {sync.sampled} was timed" if sync.sampled > 1 else ""
    yield f"{name}: {steps}, without the first {WARM_UP} of each process{last}{sampled}"
    if sync.steps < FEWEST_STEPS:
        yield f"{name}: too few steps for reliable medians or for finding a straggler"
    elif sync.world > 1 and sync.straggler is None:
        yield f"{name}: there is no straggler: no rank makes the others wait in nearly all steps"
    if sync.world == 1:
        yield f"{name}: there is one rank, so nothing is exchanged"
    elif is_ddp and len(sync.buckets) == 1:
        yield f"{name}: all gradients fit into one bucket, so communication cannot overlap: all of it is exposed"
    if sync.has_buffers:
        yield f"{name}: rank 0 sends its buffers (such as those of BatchNorm) during forward, which includes that time"
    if sync.accumulates:
        yield (
            f"{name}: gradients are accumulated (no_sync): a step lasts from one synchronisation to the next; forward "
            "and backward are those of its last micro-batch, and the rest includes the others"
        )
    if sync.device != "cpu":
        yield f"{name}: in a timed step torch waits for the GPU; the cost of the timing does not include this wait"
    if sync.world > 1:
        yield (
            f"{name}: median and p95 (the 95th percentile) cover all steps of all ranks; `ranks` is the range from the "
            "smallest to the largest median of a rank"
        )
    yield f"{name}: the timing itself took {percent_text(sync.own)} of the step time"


def document(found: Report) -> dict[str, Any]:
    """Return a report as a JSON document."""
    return {
        "id": found.record.id,
        "name": found.record.name,
        "backend": found.record.backend,
        "state": found.status.state.value,
        "reason": found.status.reason,
        "phases": [{**phase._asdict(), "seconds": phase.seconds} for phase in found.phases],
        "marks": [mark._asdict() for mark in found.marks],
        "syncs": [_sync_document(sync) for sync in found.syncs],
        "goodput": {
            "share": found.goodput.share,
            "seconds": dict(found.goodput.seconds),
            "knows_steps": found.goodput.knows_steps,
        },
        "machines": machine_document(found.machines),
        "notes": list(found.notes),
    }


def _sync_document(sync: Sync) -> dict[str, Any]:
    values = {name: value for name, value in vars(sync).items() if name not in ("timeline", "by_step")}
    return {
        **values,
        "spreads": {name: spread._asdict() for name, spread in sync.spreads.items()},
        "ranks": [asdict(rank) for rank in sync.ranks],
        "straggler": sync.straggler._asdict() if sync.straggler else None,
        "bucket_medians": [
            {"bucket": bucket, "bytes": size, "seconds": seconds} for bucket, size, seconds in sync.bucket_medians
        ],
    }


def comparison_document(first: Report, second: Report, compared: Sequence[Comparison]) -> dict[str, Any]:
    """Return two reports and their comparison as a JSON document."""
    return {
        "first": document(first),
        "second": document(second),
        "comparisons": [
            {
                "first": one.first.name,
                "second": one.second.name,
                "ratios": {name: found._asdict() for name, found in one.ratios.items()},
            }
            for one in compared
        ],
    }
