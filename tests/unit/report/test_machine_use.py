"""What the samples of nodes say about ranks and their accelerators."""

from __future__ import annotations

from jobsubmit.report.machine_use import (
    AcceleratorUse,
    MachineUse,
    RankUse,
    accelerator_text,
    accelerators_of_ranks,
)
from jobsubmit.report.view import ABSENT


def rank(name: str, node: int) -> RankUse:
    return RankUse(name, node, 1.0, 1e9, 0.0, 0.0)


def accelerator(node: int, index: int) -> AcceleratorUse:
    return AcceleratorUse(node, index, 90.0 + index, 71e9, 80e9, 600.0, 60.0, 9)


def test_a_rank_has_the_accelerator_of_its_place_on_its_node() -> None:
    use = MachineUse(
        tuple(rank(str(number), node) for number, node in ((9, 1), (10, 1), (8, 0), (11, 2))),
        (),
        tuple(accelerator(node, index) for node, index in ((0, 0), (1, 2), (1, 5), (2, 0), (2, 1))),
    )
    found = accelerators_of_ranks(use)
    assert {name: (one.node, one.index) for name, one in found.items()} == {"8": (0, 0), "9": (1, 2), "10": (1, 5)}
    assert accelerator_text(found["9"]) == "92%, 71 GB"
    assert accelerator_text(found.get("11")) == ABSENT  # its node has more of them than ranks
