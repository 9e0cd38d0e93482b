"""Choose few cases of many factors so that every possible pair of values occurs in at least one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, TypeAlias

Case: TypeAlias = dict[str, Any]
Pair: TypeAlias = tuple[tuple[str, Any], tuple[str, Any]]


def pairs(case: Case) -> Iterator[Pair]:
    """Yield the pairs of values in a case."""
    return combinations(case.items(), 2)


def possible_cases(factors: Mapping[str, Sequence[Any]], is_possible: Callable[[Case], bool]) -> list[Case]:
    """Return the full product of the factors, without what cannot be."""
    cases = (dict(zip(factors, values, strict=True)) for values in product(*factors.values()))
    return [case for case in cases if is_possible(case)]


def impossible_pairs(factors: Mapping[str, Sequence[Any]], cases: Iterable[Case]) -> list[Pair]:
    """Return the pairs of values that occur in none of the cases."""
    names = combinations(factors, 2)
    every = [((a, x), (b, y)) for a, b in names for x, y in product(factors[a], factors[b])]
    found = {pair for case in cases for pair in pairs(case)}
    return [pair for pair in every if pair not in found]


def cover(cases: Sequence[Case], seeds: Iterable[Case], cost: Callable[[Case], float]) -> list[Case]:
    """Choose from the possible cases: one that fits each seed (some of the factors), then as many as the pairs take.

    Each time the case is taken that adds the most new pairs for its cost; of equal ones the first.
    """
    missing = {pair for case in cases for pair in pairs(case)}
    chosen: list[Case] = []

    def take(candidates: Iterable[Case]) -> None:
        best = max(candidates, key=lambda case: len(missing.intersection(pairs(case))) / cost(case))
        chosen.append(best)
        missing.difference_update(pairs(best))

    for seed in seeds:
        take(case for case in cases if seed.items() <= case.items())
    while missing:
        take(cases)
    return chosen
