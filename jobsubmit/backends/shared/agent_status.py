"""What the agent writes about a job: its status, its phases, the cost of its restarts, its timing files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jobsubmit.agent import protocol
from jobsubmit.agent.timing import recorder
from jobsubmit.backends.models import Failure, JobPhase, JobStatus, Recovery, State
from jobsubmit.backends.shared.failure_hints import Diagnosis, diagnose

if TYPE_CHECKING:
    from jobsubmit.agent.protocol import Event, NodeStatus

_DETAILS = ("started", "ended", "attempt", "last_step", "checkpoint_dir", "port", "addresses", "notes")


def parse_status(status: NodeStatus, events: Iterable[Event] = ()) -> JobStatus:
    """Return the status of a job from what its agent wrote; UNKNOWN if a newer version wrote it."""
    if status["state"] not in State.__members__:
        text = f"the state {status['state']!r} is unknown to this version of jobsubmit"
        return JobStatus(State.UNKNOWN, "NEWER", text)
    failure = status.get("failure")
    return JobStatus(
        State(status["state"]),
        status["reason"],
        status["message"],
        _parse_failure(failure, status["reason"]) if failure else None,
        parse_steps(events),
        tuple(_recoveries(status)),
        {name: value for name, value in status.items() if name in _DETAILS},
    )


def with_words(status: NodeStatus) -> NodeStatus:
    """Return a status that came through a log, which leaves out its words: its last lines replace them."""
    failure = status.get("failure")
    if not failure or "words" in failure:
        return status
    return {**status, "failure": {**failure, "words": failure["last_lines"]}}


def read_timing_files(directories: Iterable[Path]) -> Iterator[bytes]:
    """Yield the timing files that ranks wrote below the directories of their nodes."""
    for directory in directories:
        for _, data in recorder.read_files(str(directory)):
            yield data


def parse_steps(events: Iterable[Event]) -> tuple[JobPhase, ...]:
    """Return the phases of a job, from its events."""
    found: dict[tuple[int, str], JobPhase] = {}
    for event in events:
        if event["event"] != "step":
            continue
        key = (event["attempt"], event["step"])
        if event["edge"] == "start":
            found[key] = JobPhase(event["step"], event["t"], attempt=event["attempt"])
        elif key in found:
            found[key] = replace(found[key], end=event["t"])
    return tuple(found.values())


def _parse_failure(failure: protocol.Failure, reason: str) -> Failure:
    """Return the first failure, explained by its own last lines: those of others may be about something else."""
    known = diagnose(failure.get("words", ()), signal=failure["signal"], reason=reason)
    if fault := failure.get("fault"):
        known = Diagnosis("jobsubmit sent this signal on purpose", f"you asked for it: --fault '{fault}'")
    return Failure(
        node=failure["node"],
        rank=failure["rank"],
        exit_code=failure["exit_code"],
        signal=failure["signal"],
        message=failure["message"],
        quoted=failure["quoted"],
        last_lines=tuple(failure["last_lines"]),
        meaning=known.meaning if known else "",
        hint=known.hint if known else "",
        victims=tuple(failure.get("victims", ())),
        alike=tuple(failure.get("alike", ())),
    )


def _recoveries(status: NodeStatus) -> Iterator[Recovery]:
    for restart in status.get("restarts", ()):
        fault = restart["fault"] or {"text": "", "t": restart["failed_at"]}
        what = f"restart {restart['attempt']} after {restart['reason']}"
        times = (fault["t"], restart["detected_at"], restart["back_at"])
        yield Recovery(what, fault["text"], *times, restart["steps_lost"])
    for resize in status.get("resizes", ()):
        fault = resize["fault"] or {"text": "", "t": resize["t"]}
        what = f"node {resize['node']} {resize['what']}" if resize["node"] is not None else resize["what"]
        if resize["what"] == "lost" and resize["nodes"] == resize.get("before"):
            what += f", and back before the others continued with {resize['nodes']} in total"
        elif resize["nodes"] is not None:
            what += f", continued with {resize['nodes']} in total"
        yield Recovery(what, fault["text"], fault["t"], resize["t"], resize["back_at"], None)
