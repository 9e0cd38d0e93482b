"""Which ranks wait in NCCL, and for which others: from what the ranks note (see nccl_watch.py)."""

from __future__ import annotations

from contextlib import suppress

from ..atomic_write import read_file
from ..job_directory import JobDirectory
from ..json_form import fits, read_object
from ..protocol import Standstill
from .hang_detector import name_ranks

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..protocol import Collective

_MOST_BYTES = 1 << 20
_DEFAULT_GROUP = "0"
_FRAME = {"filename": str, "line": int, "name": str}


def read_standstills(job_dir: str, ranks: Mapping[int, int]) -> dict[int, Standstill]:
    """Return what each rank (rank → pid) has noted, of those of which nothing moves."""
    files = JobDirectory(job_dir)
    found = {}
    for rank, pid in ranks.items():
        with suppress(OSError, ValueError):
            noted = read_object(read_file(files.standstill_of(rank), _MOST_BYTES), Standstill)
            if noted["pid"] == pid and _is_whole(noted):  # else it is of an earlier attempt, or damaged
                found[rank] = noted
    return found


def _is_whole(noted: Standstill) -> bool:
    """Return whether the parts that the form does not reach are as they should be."""
    frames = noted["waits_in"]["frames"] if noted["waits_in"] is not None else []
    return fits([*(noted["started"] or {}).values()], [int]) and fits(frames, [_FRAME])


def find_waiting(standstills: Mapping[int, Standstill], since: float) -> list[int]:
    """Return the ranks that have waited in NCCL since a moment of time.monotonic(), or longer."""
    return [rank for rank, noted in standstills.items() if noted["waits"] and noted["since"] <= since]


def find_collectives(standstills: Mapping[int, Standstill]) -> dict[int, Collective]:
    """Return the collective that each waiting rank is in, as far as that is known."""
    return {rank: noted["waits_in"] for rank, noted in standstills.items() if noted["waits_in"] is not None}


def find_missing(collective: Collective, standstills: Mapping[int, Standstill]) -> list[int]:
    """Return the ranks of its group that are known not to have started a collective."""
    group, number = collective["group"], collective["number"]
    return [
        rank
        for rank, noted in sorted(standstills.items())
        if rank in collective["ranks"] and _count(noted, group, number) < number
    ]


def _count(noted: Standstill, group: str, unknown: int) -> int:
    """Return how many collectives of a group a rank has started: none if it has not started any of any group."""
    started = noted["started"]
    return unknown if started is None else started.get(group, unknown if started else 0)


def find_missing_rank(standstills: Mapping[int, Standstill]) -> int | None:
    """Return the only rank that waits in no collective, and has not started one in which others wait; or None."""
    waiting = find_collectives(standstills)
    missing = {rank for collective in waiting.values() for rank in find_missing(collective, standstills)}
    missing -= set(waiting)
    return missing.pop() if len(missing) == 1 else None


def describe_waits(standstills: Mapping[int, Standstill]) -> dict[int, str]:
    """Return what each rank waits in."""
    texts = {}
    for rank, noted in standstills.items():
        if noted["waits_in"] is not None:
            texts[rank] = describe_collective(noted["waits_in"])
        elif noted["waits"]:
            call = noted["call"].lstrip("_")
            texts[rank] = "%s, which has not returned" % call if call else "a collective of NCCL"
    return texts


def describe_collective(collective: Collective) -> str:
    """Return its name and number, and its tensors: ranks can differ in each of these."""
    inputs = zip(collective["sizes"], collective["types"])
    tensors = ["%s %s" % ("x".join(map(str, size)), kind.lower()) for size, kind in inputs]
    return "%s (%s)" % (collective["name"], ", ".join([_describe_number(collective), *tensors]))


def _describe_number(collective: Collective) -> str:
    if collective["group"] == _DEFAULT_GROUP:
        return "collective %d" % collective["number"]
    return "collective %d of process group %s" % (collective["number"], collective["group"])


def describe_wait(rank: int, standstills: Mapping[int, Standstill]) -> str:
    """Return what a rank waited for, to follow a sentence about its end; empty if that is not known."""
    collective = find_collectives(standstills).get(rank)
    if collective is None:
        return ""
    text = "; it waited in %s" % describe_collective(collective)
    missing = find_missing(collective, standstills)
    return text + ", which %s did not call" % name_ranks(missing) if missing else text
