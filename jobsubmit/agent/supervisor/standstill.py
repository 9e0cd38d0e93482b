"""Which ranks wait in NCCL, and for which others: from what the ranks note (see nccl_watch.py)."""

from __future__ import annotations

from contextlib import suppress

from ..atomic_write import read_file
from ..job_directory import JobDirectory
from ..json_form import read_object
from ..protocol import Standstill
from .hang_detector import name_ranks

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..protocol import Collective

_MOST_BYTES = 1 << 20
_DEFAULT_GROUP = "0"
_WITH_STORE = ("store_based_barrier", "init_process_group", "new_group")  # calls that wait for others without NCCL


def read_standstills(job_dir: str, ranks: Mapping[int, int]) -> dict[int, Standstill]:
    """Return what each rank (rank → pid) has noted, of those whose collectives stand still."""
    files = JobDirectory(job_dir)
    found = {}
    for rank, pid in ranks.items():
        with suppress(OSError, ValueError):
            noted = read_object(read_file(files.standstill_of(rank), _MOST_BYTES), Standstill)
            if noted["pid"] == pid:  # else it is of an earlier attempt
                found[rank] = noted
    return found


def find_waiting(standstills: Mapping[int, Standstill]) -> list[int]:
    """Return the ranks that wait in NCCL."""
    return [rank for rank, noted in sorted(standstills.items()) if noted["waits_in"] or noted["call"]]


def find_collectives(standstills: Mapping[int, Standstill]) -> dict[int, Collective]:
    """Return the collective that each waiting rank has started, of those that have started one."""
    return {rank: noted["waits_in"] for rank, noted in standstills.items() if noted["waits_in"] is not None}


def find_missing(collective: Collective, standstills: Mapping[int, Standstill]) -> list[int]:
    """Return the ranks of its group that are known not to have started a collective."""
    if collective["is_p2p"]:
        return []  # others need not take part
    group, number = collective["group"], collective["number"]
    return [
        rank
        for rank, noted in sorted(standstills.items())
        if rank in collective["ranks"] and noted["started"].get(group, 0) < number
    ]


def find_missing_rank(standstills: Mapping[int, Standstill]) -> int | None:
    """Return the only rank that has not started a collective in which others wait, or None."""
    waited_for = find_collectives(standstills).values()
    missing = {rank for collective in waited_for for rank in find_missing(collective, standstills)}
    return missing.pop() if len(missing) == 1 else None


def describe_waits(standstills: Mapping[int, Standstill]) -> dict[int, str]:
    """Return what each waiting rank waits in."""
    texts = {rank: describe_collective(collective) for rank, collective in find_collectives(standstills).items()}
    for rank in find_waiting(standstills):
        call = standstills[rank]["call"].lstrip("_")
        if rank not in texts:
            texts[rank] = call + ("" if call.startswith(_WITH_STORE) else ", while NCCL is connecting the ranks")
    return texts


def describe_collective(collective: Collective) -> str:
    """Return its name and number, and its tensors: ranks can differ in each of these."""
    inputs = zip(collective["sizes"], collective["types"])
    tensors = ["%s %s" % ("x".join(map(str, size)), kind.lower()) for size, kind in inputs]
    return "%s (%s)" % (collective["name"], ", ".join([_describe_number(collective), *tensors]))


def _describe_number(collective: Collective) -> str:
    if collective["is_p2p"]:
        return "send or recv %d" % collective["number"]
    if collective["group"] == _DEFAULT_GROUP:
        return "collective %d" % collective["number"]
    return "collective %d of process group %s" % (collective["number"], collective["group"])


def describe_wait(rank: int, standstills: Mapping[int, Standstill]) -> str:
    """Return what a rank waited for, to follow a sentence about its end; empty if it did not wait."""
    collective = find_collectives(standstills).get(rank)
    if collective is None:
        return ""
    text = "; it waited in %s" % describe_collective(collective)
    missing = find_missing(collective, standstills)
    return text + ", which %s did not call" % name_ranks(missing) if missing else text
