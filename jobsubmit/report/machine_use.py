"""What a job used of its machines: read from the samples of its nodes (see agent/machine/sampler.py)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobsubmit.agent import json_form
from jobsubmit.common.sizes import bytes_text

_HEAD = {"machine": int, "t": json_form.TIME, "node": int, "attempt": int, "cores": int, "memory": float}
_NUMBERS_OF_A_RANK, _NUMBERS_OF_A_READING = 5, 6
_ABSENT = "–"  # noqa: RUF001 - a dash for a figure that there is not
_MOST_POINTS = 400
_ALMOST_FULL = 0.9  # of the memory: the next larger batch is killed
_ALMOST_FULL_GPU = 0.97  # PyTorch keeps what it has freed
_IDLE_PERCENT = 5.0
_FEWEST_READINGS = 3
_UNEQUAL = 1.5
_LARGE = 1 << 30  # bytes: smaller differences do not matter


@dataclass(frozen=True)
class RankUse:
    """What a rank and the processes that it started used; `name` is its number, or `node N` for a job without ranks.

    `cores` is the mean number of busy CPU cores, `memory` the peak in bytes; `read` and `written` are bytes from and to
    storage. Each attempt counts: sums are sums over all attempts.
    """

    name: str
    node: int
    cores: float | None
    memory: float
    read: float
    written: float


@dataclass(frozen=True)
class NodeUse:
    """The memory of a node in bytes: its peak, its limit, and how it changed, as (seconds since the epoch, bytes)."""

    node: int
    cores: int
    peak: float
    limit: float
    memory: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class AcceleratorUse:
    """What a GPU or NPU did: mean use in percent, peak of its memory and all of it in bytes, mean watts, highest °C."""

    node: int
    index: int
    percent: float | None
    peak: float | None
    memory: float | None
    watts: float | None
    degrees: float | None
    readings: int


@dataclass(frozen=True)
class MachineUse:
    """What a job used; all empty if its backend keeps no samples."""

    ranks: tuple[RankUse, ...] = ()
    nodes: tuple[NodeUse, ...] = ()
    accelerators: tuple[AcceleratorUse, ...] = ()


NO_MACHINES = MachineUse()


@dataclass
class _Samples:
    """The samples of one node in one attempt."""

    node: int
    cores: int
    limit: float
    memory: list[tuple[float, float]] = field(default_factory=list)
    ranks: dict[str, list[tuple[float, list[float]]]] = field(default_factory=lambda: defaultdict(list))
    accelerators: dict[int, list[list[float | None]]] = field(default_factory=lambda: defaultdict(list))


def parse_machines(files: Iterable[bytes]) -> MachineUse:
    """Return what the nodes of a job used; incomplete lines and files of other kinds are ignored."""
    found = [samples for data in files if (samples := _samples(data)) is not None]
    nodes = sorted({samples.node for samples in found})
    return MachineUse(
        tuple(sorted(_ranks(found), key=lambda rank: (not rank.name.isdigit(), len(rank.name), rank.name))),
        tuple(_node([samples for samples in found if samples.node == node]) for node in nodes),
        tuple(use for node in nodes for use in _accelerators([one for one in found if one.node == node])),
    )


def _samples(data: bytes) -> _Samples | None:
    lines = data.splitlines()
    try:
        head = json_form.read_fields(lines[0], _HEAD)
    except (IndexError, ValueError):
        return None
    found = _Samples(head["node"], head["cores"], float(head["memory"]))
    for line in lines[1:]:
        try:
            _take(json_form.parse_json(line), found)
        except (ValueError, TypeError):
            continue
    return found


def _take(value: Any, found: _Samples) -> None:
    match value:
        case [t, used, dict(ranks)] if json_form.fits([t, used], [float]):
            found.memory.append((t, used))
            for name, use in ranks.items():
                if json_form.fits(use, [float]) and len(use) == _NUMBERS_OF_A_RANK:
                    found.ranks[name].append((t, use))
        case {"accelerators": list(readings)}:
            for reading in readings:
                if json_form.fits(reading, [(float, None)]) and len(reading) == _NUMBERS_OF_A_READING:
                    found.accelerators[int(reading[0])].append(reading)


def _ranks(found: Iterable[_Samples]) -> Iterator[RankUse]:
    by_name: dict[str, list[list[tuple[float, list[float]]]]] = defaultdict(list)
    for samples in found:
        for name, rows in samples.ranks.items():
            by_name[name].append(rows)
    for name, attempts in by_name.items():
        seconds = sum(rows[-1][0] - rows[0][0] for rows in attempts)
        busy = sum(max(0.0, rows[-1][1][1] - rows[0][1][1]) for rows in attempts)
        yield RankUse(
            name,
            int(attempts[-1][-1][1][0]),
            busy / seconds if seconds > 0 else None,
            max(use[2] for rows in attempts for _, use in rows),
            sum(max(use[3] for _, use in rows) for rows in attempts),
            sum(max(use[4] for _, use in rows) for rows in attempts),
        )


def _node(found: Sequence[_Samples]) -> NodeUse:
    memory = sorted(point for samples in found for point in samples.memory)
    peak = max((used for _, used in memory), default=0.0)
    every = max(1, len(memory) // _MOST_POINTS)
    return NodeUse(found[0].node, found[-1].cores, peak, found[-1].limit, memory[::every])


def _accelerators(found: Sequence[_Samples]) -> Iterator[AcceleratorUse]:
    by_index: dict[int, list[list[float | None]]] = defaultdict(list)
    for samples in found:
        for index, readings in samples.accelerators.items():
            by_index[index] += readings
    for index, readings in sorted(by_index.items()):
        _, use, used, memory, watts, degrees = (
            [v for v in values if v is not None] for values in zip(*readings, strict=True)
        )
        yield AcceleratorUse(
            found[0].node,
            index,
            statistics.fmean(use) if use else None,
            max(used, default=None),
            max(memory, default=None),
            statistics.fmean(watts) if watts else None,
            max(degrees, default=None),
            len(readings),
        )


def machine_notes(use: MachineUse) -> Iterator[str]:
    """Yield what to know about it: memory that is almost full, accelerators that do nothing, ranks that differ."""
    for node in use.nodes:
        if node.limit and node.peak > _ALMOST_FULL * node.limit:
            share = f"{bytes_text(node.peak)} of {bytes_text(node.limit)}"
            yield f"node {node.node}: its memory was almost full ({share}); at the limit, the kernel kills a process"
    for one in use.accelerators:
        name = f"node {one.node}, accelerator {one.index}"
        if one.peak is not None and one.memory and one.peak > _ALMOST_FULL_GPU * one.memory:
            yield f"{name}: its memory was almost full ({bytes_text(one.peak)} of {bytes_text(one.memory)})"
        if one.percent is not None and one.percent < _IDLE_PERCENT and one.readings >= _FEWEST_READINGS:
            yield f"{name} was idle: {one.percent:.0f}% busy on average"
    yield from _unequal(use.ranks)


def _unequal(ranks: Sequence[RankUse]) -> Iterator[str]:
    numbered = [rank for rank in ranks if rank.name.isdigit()]
    if len(numbered) < 2:  # noqa: PLR2004 - a comparison needs two
        return
    usual = statistics.median(rank.memory for rank in numbered)
    most = max(numbered, key=lambda rank: rank.memory)
    if most.memory > _UNEQUAL * usual and most.memory - usual > _LARGE:
        memory, median = bytes_text(most.memory), bytes_text(usual)
        yield f"rank {most.name} used {memory} of memory at its peak; the median of all ranks is {median}"


def rank_rows(use: MachineUse) -> list[tuple[str, ...]]:
    """Return (rank, node, busy cores, peak memory, read, written) as text."""
    return [
        (
            rank.name,
            str(rank.node),
            _ABSENT if rank.cores is None else f"{rank.cores:.2f}",
            *(bytes_text(size) for size in (rank.memory, rank.read, rank.written)),
        )
        for rank in use.ranks
    ]


def accelerators_of_ranks(use: MachineUse) -> dict[str, AcceleratorUse]:
    """Return the accelerator of each rank: by its place on its node, where a node has as many of them as ranks."""
    found: dict[str, AcceleratorUse] = {}
    for node in {one.node for one in use.accelerators}:
        there = [one for one in use.accelerators if one.node == node]
        ranks = [rank.name for rank in use.ranks if rank.node == node and rank.name.isdigit()]
        if len(there) == len(ranks):
            found.update(zip(sorted(ranks, key=int), there, strict=True))
    return found


def accelerator_text(one: AcceleratorUse | None) -> str:
    """Return mean use and peak memory of an accelerator."""
    if one is None:
        return _ABSENT
    parts = [f"{one.percent:.0f}%" if one.percent is not None else "", bytes_text(one.peak) if one.peak else ""]
    return ", ".join(filter(None, parts)) or _ABSENT


def accelerator_rows(use: MachineUse) -> list[tuple[str, ...]]:
    """Return (node, number, mean use, peak memory, its memory, mean watts, peak degrees) as text."""
    return [
        (
            str(one.node),
            str(one.index),
            _ABSENT if one.percent is None else f"{one.percent:.0f}%",
            *(_ABSENT if size is None else bytes_text(size) for size in (one.peak, one.memory)),
            _ABSENT if one.watts is None else f"{one.watts:.0f} W",
            _ABSENT if one.degrees is None else f"{one.degrees:.0f} °C",
        )
        for one in use.accelerators
    ]


def machine_document(use: MachineUse) -> Mapping[str, Any]:
    """Return what a job used as a JSON document."""
    return {
        "ranks": [vars(rank) for rank in use.ranks],
        "nodes": [{**vars(node), "memory": [list(point) for point in node.memory]} for node in use.nodes],
        "accelerators": [vars(one) for one in use.accelerators],
    }
