"""What the ranks of the sample training print."""

from __future__ import annotations

import re


def losses_of(log: str, ranks: int, *, keeps_ranks: bool) -> list[str]:
    """Return the loss of each step, which all ranks have said alike."""
    for rank in range(ranks):
        start = f"[rank {rank}] " if keeps_ranks else ""
        assert f"{start}rank {rank} done: all {ranks} ranks hold equal parameters" in log, log
    found: dict[str, list[str]] = {}
    if not keeps_ranks:  # the ranks of a node share its log letter by letter: a line may begin in another
        for step, loss in re.findall(r"step (\d+) loss (\d\.\d{6})", log):
            found.setdefault(step, []).append(loss)
        assert [len(said) for said in found.values()] == [ranks] * 5, log
        assert all(len(set(said)) == 1 for said in found.values()), log
        losses = [found[str(step)][0] for step in range(1, 6)]
        assert len(set(losses)) == 5, log
        return losses
    for rank_said, loss in re.findall(r"^\[rank (\d+)\] step \d+ loss (\S+)$", log, re.MULTILINE):
        found.setdefault(rank_said, []).append(loss)
    assert sorted(found) == [str(rank) for rank in range(ranks)], log
    assert all(said == found["0"] and len(said) == 5 for said in found.values()), log
    return found["0"]
