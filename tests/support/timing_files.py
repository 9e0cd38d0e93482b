"""Timing files as ranks write them, made up: what is in them is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Times = Callable[
    [int, int], tuple[int, int, int, int, int]
]  # rank, step → step, forward, backward, communication, overlap


def timing_file(
    rank: int,
    times: Times,
    *,
    steps: int = 20,
    world: int = 4,
    attempt: int = 0,
    began: float = 1000.0,
    buckets: Sequence[int] = (600, 400),
    more: Sequence[Any] = (),
    restart: int = 0,
    ranks: Sequence[int] = (),
    name: str = "Net",
) -> bytes:
    """Return the file of one process, its times in microseconds."""
    lines: list[Any] = [
        {
            "timing": 1,
            "t": began,
            "rank": rank,
            "node": rank // 2,
            "attempt": attempt,
            "restart": restart,
            "world": world,
        },
        {"event": "joined", "t": began + 5, "seconds": 0.5, "backend": "gloo", "world": world},
        {
            "event": "series",
            "t": began + 6,
            "series": 0,
            "what": "ddp",
            "name": name,
            "bytes": 1000,
            "backend": "gloo",
            "world": world,
            "device": "cpu",
            "sampled": 1,
            "ranks": list(ranks),
            "buckets": [],
        },
        {"event": "buckets", "t": began + 7, "series": 0, "sizes": list(buckets)},
        *more,
    ]
    end = 7_000_000
    for number in range(1, steps + 1):
        step, *parts = times(rank, number)
        end += step
        lines.append([0, number, end, step, *parts, 10])
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
