"""How the steps of a training spent their time, and which rank is the straggler."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from jobsubmit.report.statistics import Spread, measure_spread
from jobsubmit.report.straggler import Step, Straggler, find_straggler, last_rank
from jobsubmit.report.timing_files import Process, Reduction, Row, Series

WARM_UP = 3  # steps of each process that do not count: torch orders its buckets anew, caches fill
METRICS = ("step", "forward", "backward", "communication", "exposed", "rest")


@dataclass(frozen=True)
class RankTimes:
    """The medians of one rank's steps, in seconds, and how often it came last."""

    rank: int
    node: int
    steps: int
    medians: Mapping[str, float]
    last: float


@dataclass(frozen=True)
class Sync:
    """How one model (or one `sync` by hand) was trained; times in seconds, sizes in bytes.

    `spreads` has an entry a metric; `wire` is how long a step's communication takes without any waiting.
    `by_step` has the values of the ranks of each step, `timeline` (end, duration) of each step of the first rank.
    """

    what: str
    name: str
    backend: str
    device: str
    world: int
    sampled: int
    size: int
    buckets: tuple[int, ...]
    steps: int
    spreads: Mapping[str, Spread]
    overlap: float | None
    wire: float | None
    bandwidth: float | None
    own: float
    has_buffers: bool
    accumulates: bool
    ranks: tuple[RankTimes, ...]
    straggler: Straggler | None
    timeline: Sequence[tuple[float, float]] = field(repr=False)
    by_step: Mapping[str, Sequence[Sequence[float]]] = field(repr=False)
    bucket_medians: tuple[tuple[int, int, float], ...] = ()

    @property
    def step_medians(self) -> list[float]:
        """Return the duration of each step, the median over its ranks."""
        return [median(values) for values in self.by_step["step"]]

    @property
    def by_hand(self) -> bool:
        """Return whether only the blocks that the user's code marked were timed."""
        return self.what == "by_hand"


def measure_syncs(processes: Sequence[Process]) -> tuple[Sync, ...]:
    """Return the measurements of each model, the largest first.

    If the number of ranks changed, only the steps with the last number count.
    """
    groups: dict[tuple[object, ...], list[tuple[Process, Series]]] = defaultdict(list)
    for process in processes:
        for number, series in process.series.items():
            groups[number, series.what, series.name, series.ranks].append((process, series))
    found = []
    for group in groups.values():
        world = group[-1][1].world
        if sync := _sync([(process, series) for process, series in group if series.world == world]):
            found.append(sync)
    return _numbered(sorted(found, key=lambda sync: -sync.size))


def _numbered(found: Sequence[Sync]) -> tuple[Sync, ...]:
    """Number the models that have the same name."""
    names = Counter(sync.name for sync in found)
    order: Counter[str] = Counter()
    numbered = []
    for sync in found:
        order[sync.name] += 1
        is_alone = names[sync.name] == 1
        numbered.append(sync if is_alone else replace(sync, name=f"{sync.name} #{order[sync.name]}"))
    return tuple(numbered)


def _sync(group: list[tuple[Process, Series]]) -> Sync | None:
    last = next((series for _, series in reversed(group) if series.rows), group[-1][1])
    by_rank: dict[int, list[Step]] = defaultdict(list)
    for process, series in sorted(group, key=lambda pair: pair[0].rank):
        by_rank[process.rank] += [_step(process, series, row) for row in series.rows if row.number > WARM_UP]
    if not any(by_rank.values()):
        return None
    nodes = {process.rank: process.node for process, _ in group}
    together = _together(by_rank)
    own = {name: [[getattr(step, name) for step in steps] for steps in by_rank.values()] for name in METRICS}
    spreads = {name: measure_spread(own[name]) for name in METRICS}
    size = sum(last.buckets) or last.size
    wire = _wire([series for _, series in group], last, together)
    communication = sum(step.communication for steps in by_rank.values() for step in steps)
    hidden = sum(step.overlap for steps in by_rank.values() for step in steps)
    lasts = Counter(last_rank(steps) for steps in together)
    return Sync(
        what=last.what,
        name=last.name,
        backend=last.backend,
        device=last.device,
        world=last.world,
        sampled=last.sampled,
        size=size,
        buckets=last.buckets,
        steps=max(map(len, by_rank.values())),
        spreads=spreads,
        overlap=hidden / communication if _can_overlap(last) and communication and last.world > 1 else None,
        wire=wire,
        bandwidth=size * 2 * (last.world - 1) / last.world / wire if wire and last.world > 1 else None,
        own=_own_share([series for _, series in group]),
        has_buffers=last.has_buffers,
        accumulates=last.accumulates,
        ranks=tuple(_rank_times(rank, nodes[rank], by_rank[rank], lasts, len(together)) for rank in by_rank),
        straggler=find_straggler(together, nodes, lasts, spreads["step"].median),
        timeline=[(step.end, step.step) for step in by_rank[min(by_rank)]],
        by_step={name: [[getattr(step, name) for step in steps] for steps in _steps(by_rank)] for name in METRICS},
        bucket_medians=_bucket_medians([series for _, series in group]),
    )


def _can_overlap(series: Series) -> bool:
    """Return whether communication can overlap with computing, which needs more than one bucket."""
    return series.what == "ddp" and len(series.buckets) > 1


def _step(process: Process, series: Series, row: Row) -> Step:
    overlap = min(row.overlap, row.communication) if _can_overlap(series) else 0.0
    return Step(
        (process.attempt, process.restart, row.number),
        row.end,
        row.step,
        row.forward,
        row.backward,
        row.communication,
        row.communication - overlap,
        overlap,
    )


def _wire(all_series: Sequence[Series], last: Series, together: Sequence[Mapping[int, Step]]) -> float | None:
    """Return how long the communication of the median step takes without waiting: the time of the fastest rank.

    With several buckets this needs the times of each bucket, because computing goes on between them.
    """
    if not _can_overlap(last):
        return median(min(step.communication for step in steps.values()) for steps in together) if together else None
    busy: dict[int, list[float]] = defaultdict(list)
    for series in all_series:
        for number, reductions in series.reductions.items():
            if number > WARM_UP and reductions:
                busy[number].append(_union(reductions))
    return median(map(min, busy.values())) if busy else None


def _union(reductions: Sequence[Reduction]) -> float:
    """Return for how many seconds at least one of the reductions was under way."""
    total, until = 0.0, float("-inf")
    for reduction in sorted(reductions, key=lambda one: one.start):
        total += max(0.0, reduction.end - max(reduction.start, until))
        until = max(until, reduction.end)
    return total


def _own_share(all_series: Iterable[Series]) -> float:
    """Return the share of the step time that the timing took; a row's own time covers all steps since the last row."""
    own = whole = 0.0
    for series in all_series:
        for before, row in itertools.pairwise(series.rows):
            own += row.own
            whole += row.step * (row.number - before.number)
    return own / whole if whole else 0.0


def _steps(by_rank: Mapping[int, Sequence[Step]]) -> list[list[Step]]:
    """Return each step, of all ranks that recorded it."""
    found: dict[tuple[int, int, int], list[Step]] = defaultdict(list)
    for steps in by_rank.values():
        for step in steps:
            found[step.key].append(step)
    return [found[key] for key in sorted(found)]


def _together(by_rank: Mapping[int, Sequence[Step]]) -> list[dict[int, Step]]:
    """Return the steps that all ranks recorded, by rank."""
    whole = (steps for steps in _steps(by_rank) if len(steps) == len(by_rank) > 1)
    return [dict(zip(by_rank, steps, strict=True)) for steps in whole]


def _rank_times(rank: int, node: int, steps: Sequence[Step], lasts: Counter[int], count: int) -> RankTimes:
    medians = {name: median(getattr(step, name) for step in steps) for name in METRICS} if steps else {}
    return RankTimes(rank, node, len(steps), medians, lasts[rank] / count if count else 0.0)


def _bucket_medians(all_series: Iterable[Series]) -> tuple[tuple[int, int, float], ...]:
    """Return (bucket, bytes, usual seconds) of each bucket that was timed, as the rank sees it that waits least."""
    least: dict[tuple[int, int], float] = {}
    sizes: dict[int, int] = {}
    for series in all_series:
        for number, reductions in series.reductions.items():
            for one, seconds in _own_times(series, reductions) if number > WARM_UP else ():
                sizes[one.bucket] = one.size
                least[one.bucket, number] = min(seconds, least.get((one.bucket, number), math.inf))
    by_bucket: dict[int, list[float]] = defaultdict(list)
    for (bucket, _), seconds in least.items():
        by_bucket[bucket].append(seconds)
    return tuple((bucket, sizes[bucket], median(by_bucket[bucket])) for bucket in sorted(sizes))


def _own_times(series: Series, reductions: Iterable[Reduction]) -> Iterator[tuple[Reduction, float]]:
    """Yield each reduction and its own seconds: NCCL runs those of a group one after the other."""
    until = float("-inf")
    for one in sorted(reductions, key=lambda one: one.start):
        start = max(one.start, until) if series.backend == "nccl" else one.start
        until = max(until, one.end)
        yield one, max(0.0, one.end - start)
