"""Lists with a place for each process of a node, or for fewer, of which some processes ask for a place beyond."""

from __future__ import annotations

from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.module import unparsed
from jobsubmit.common.finding import Finding


def check_places(code: Code) -> Iterator[Finding]:
    """Yield an error where a process asks for a place that a list does not have, and the first one does not."""
    if not code.followed:
        return
    first, *others = code.followed
    for one in others:
        for node, place in one.beyond.items():
            if node not in first.beyond:
                said = (
                    f"rank {one.process.rank} asks for place {place.number} of {unparsed(node.value)}, which has "
                    f"{place.length}: IndexError"
                )
                hint = "use the rank within the node (LOCAL_RANK), if the list is for the processes of one node"
                yield Finding("error", "out-of-range", place.module.where(node), said, hint)
                return
