"""Read the timing files of a job's processes into values in seconds; agent/timing/recorder.py defines their form."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobsubmit.agent import json_form

_MICRO = 1e-6
_ROW_LENGTH = 9
_BEGUN = {"rank": int, "node": int, "attempt": int, "restart": int, "world": int, "t": json_form.TIME}
_MOMENT = {"t": json_form.TIME, "seconds": float}
_EVENTS: dict[str, dict[str, Any]] = {
    "joined": {**_MOMENT, "world": int},
    "saved": _MOMENT,
    "series": {
        "series": int,
        "what": str,
        "name": str,
        "bytes": int,
        "world": int,
        "sampled": int,
        "ranks?": ([int], None),
        "buckets?": ([int], None),
    },
    "buckets": {"series": int, "sizes": [int]},
    "no_sync": {"series": int},
}


class Row(NamedTuple):
    """One step of one process: when it ended (since the epoch), and how long its parts took.

    In a step that was timed by hand, `forward` is the time before the communication.
    """

    number: int
    end: float
    step: float
    forward: float
    backward: float
    communication: float
    overlap: float
    own: float


class Reduction(NamedTuple):
    """The all-reduce of one bucket of gradients: its size in bytes, and when it began and ended."""

    bucket: int
    size: int
    start: float
    end: float


@dataclass
class Series:
    """The steps of one model, or of one `sync` written by hand, in one process."""

    what: str
    name: str
    size: int
    world: int
    device: str
    sampled: int
    backend: str = ""
    ranks: tuple[int, ...] = ()
    buckets: tuple[int, ...] = ()
    has_buffers: bool = False
    accumulates: bool = False
    rows: list[Row] = field(default_factory=list)
    reductions: dict[int, list[Reduction]] = field(default_factory=dict)


class Moment(NamedTuple):
    """A single event of a process: when it ended, and how long it took."""

    end: float
    seconds: float


@dataclass
class Process:
    """What one process of a job measured; a restarted rank is a process of its own."""

    rank: int
    node: int
    attempt: int
    restart: int
    world: int
    began: float
    joined: Moment | None = None
    saves: list[Moment] = field(default_factory=list)
    series: dict[int, Series] = field(default_factory=dict)
    unmeasured: set[str] = field(default_factory=set)
    off: str = ""


def parse_processes(files: Iterable[bytes]) -> list[Process]:
    """Return the contents of the timing files, in order of time and rank; incomplete lines are ignored."""
    found = [process for data in files for process in _processes(data)]
    return sorted(found, key=lambda process: (process.attempt, process.restart, process.rank))


def _processes(data: bytes) -> Iterator[Process]:
    process: Process | None = None
    for line in data.splitlines():
        try:
            value = json_form.parse_json(line)
            if isinstance(value, dict) and "timing" in value:
                if process is not None:
                    yield process
                process = _begun(value)
            elif process is not None and isinstance(value, dict):
                _take_event(process, value)
            elif process is not None and isinstance(value, list):
                _take_row(process, value)
        except (ValueError, KeyError, TypeError, IndexError):
            continue
    if process is not None:
        yield process


def _require(value: Mapping[str, Any], form: dict[str, Any]) -> None:
    if wrong := json_form.find_misfit(dict(value), form):
        raise ValueError(wrong)


def _begun(value: Mapping[str, Any]) -> Process:
    _require(value, _BEGUN)
    return Process(value["rank"], value["node"], value["attempt"], value["restart"], value["world"], float(value["t"]))


def _take_event(process: Process, value: Mapping[str, Any]) -> None:
    _require(value, _EVENTS.get(value["event"], {}))
    match value["event"]:
        case "joined":
            process.joined = Moment(float(value["t"]), float(value["seconds"]))
            process.world = value["world"]
        case "saved":
            process.saves.append(Moment(float(value["t"]), float(value["seconds"])))
        case "series":
            process.series[value["series"]] = Series(
                value["what"],
                str(value["name"]),
                value["bytes"],
                value["world"],
                str(value["device"]),
                value["sampled"],
                str(value.get("backend", "")),
                tuple(value.get("ranks") or ()),
                tuple(value.get("buckets") or ()),
                bool(value.get("buffers")),
            )
        case "buckets":
            process.series[value["series"]].buckets = tuple(value["sizes"])
        case "no_sync":
            process.series[value["series"]].accumulates = True
        case "unmeasured":
            process.unmeasured.add(str(value["what"]))
        case "off":
            process.off = str(value["why"])


def _take_row(process: Process, values: list[Any]) -> None:
    if values[0] == "buckets":
        _, number, step, reductions = values
        if not json_form.fits([step, *itertools.chain.from_iterable(reductions)], [(float, None)]):
            raise ValueError("not numbers")
        process.series[number].reductions[step] = [
            Reduction(bucket, size, process.began + start * _MICRO, process.began + end * _MICRO)
            for bucket, size, start, end in reductions
            if end is not None
        ]
    elif (
        len(values) == _ROW_LENGTH
        and json_form.fits(values[:3], [float])
        and json_form.fits(values[3:], [(float, None)])
    ):
        number, step, end, *times = values
        seconds = [(time or 0) * _MICRO for time in times]
        process.series[number].rows.append(Row(step, process.began + end * _MICRO, *seconds))
