"""Find the straggler, without synchronised clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, quantiles
from typing import NamedTuple

FEWEST_STEPS = 10  # below that nothing can be said of who is slow
_STRAGGLES_IN = 0.8  # of the steps, at least
_NODE_STRAGGLES_IN = 0.9
_COSTS = 0.05  # of a step, at least, and so many seconds
_COSTS_SECONDS = 0.001


class Step(NamedTuple):
    """One step of one rank, in seconds; `exposed` is the communication that does not overlap with computing."""

    key: tuple[int, int, int]
    end: float
    step: float
    forward: float
    backward: float
    communication: float
    exposed: float
    overlap: float

    @property
    def rest(self) -> float:
        """Return the rest of the step: data, optimizer, logging, checkpoints."""
        return max(0.0, self.step - self.forward - self.backward - self.exposed)


class Straggler(NamedTuple):
    """The rank that comes last, or the node whose ranks do (`rank` is None).

    It comes last in `share` of the steps; `cost` is how long the others then wait for it, in seconds (median).
    """

    rank: int | None
    node: int
    share: float
    cost: float


def last_rank(steps: Mapping[int, Step]) -> int:
    """Return the rank that came last: a collective ends for all ranks at once, so this rank waited least in it.

    This needs no synchronised clocks: it compares how long each rank waited after its own work was done.
    """
    return min(steps, key=lambda rank: steps[rank].exposed)


def find_straggler(
    together: Sequence[Mapping[int, Step]], nodes: Mapping[int, int], lasts: Counter[int], usual_step: float
) -> Straggler | None:
    """Return the rank or node for which the others wait long in nearly every step, or None."""
    if len(together) < FEWEST_STEPS:
        return None
    rank, count = lasts.most_common(1)[0]
    found = Straggler(rank, nodes[rank], count / len(together), 0.0)
    if found.share >= _STRAGGLES_IN and (cost := _cost(together, {rank}, usual_step)):
        return found._replace(cost=cost)
    node, count = Counter(nodes[last_rank(steps)] for steps in together).most_common(1)[0]
    its_ranks = {rank for rank, where in nodes.items() if where == node}
    found = Straggler(None, node, count / len(together), 0.0)
    if 1 < len(its_ranks) < len(nodes) and found.share >= _NODE_STRAGGLES_IN:
        if cost := _cost(together, its_ranks, usual_step):
            return found._replace(cost=cost)
    return None


def _cost(together: Iterable[Mapping[int, Step]], ranks: set[int], usual_step: float) -> float:
    """Return how much longer the others usually wait than these ranks do; 0 if that is little, or often not so."""
    waits = [
        fmean(step.exposed for rank, step in steps.items() if rank not in ranks)
        - fmean(step.exposed for rank, step in steps.items() if rank in ranks)
        for steps in together
    ]
    lower, middle, _ = quantiles(waits, n=4)
    is_much = middle >= max(_COSTS * usual_step, _COSTS_SECONDS) and lower >= _COSTS * usual_step / 2
    return middle if is_much else 0.0
