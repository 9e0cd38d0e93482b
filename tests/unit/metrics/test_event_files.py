"""TensorBoard event files, as tensorboardX and tensorboard wrote them."""

from __future__ import annotations

import io
import math
import random
from pathlib import Path

import pytest

from jobsubmit.metrics.event_files import Scalar, read_scalars

FILES = Path(__file__).parents[2] / "corpus/event_files"


def scalars(data: bytes) -> list[Scalar]:
    return list(read_scalars(io.BytesIO(data)))


def test_scalars_of_tensorboardx() -> None:
    found = scalars((FILES / "tensorboardx.tfevents.1").read_bytes())
    losses = [one for one in found if one.name == "train_loss"]
    assert [one.step for one in losses] == list(range(20))
    assert [one.value for one in losses] == pytest.approx([2 / (step + 1) for step in range(20)])
    assert losses[3].time == 1_790_000_003
    assert {one.name for one in found} == {"train_loss", "learning_rate"}  # no histogram, no text


def test_scalars_that_are_tensors() -> None:
    found = scalars((FILES / "tensorboard.tfevents.1").read_bytes())
    losses = [one for one in found if one.name == "epoch_loss"]
    assert [one.step for one in losses] == [1_000_000 * step for step in range(10)]
    assert [one.value for one in losses] == pytest.approx([3 / (step + 1) for step in range(10)])
    assert losses[1].time == pytest.approx(1_790_000_101.5)
    assert all(math.isnan(one.value) for one in found if one.name == "val_acc")


@pytest.mark.parametrize("name", ["tensorboardx.tfevents.1", "tensorboard.tfevents.1"])
def test_a_file_that_is_still_written_is_read_as_far_as_it_goes(name: str) -> None:
    data = (FILES / name).read_bytes()
    whole = scalars(data)
    for end in range(0, len(data), 7):
        found = scalars(data[:end])
        assert repr(found) == repr(whole[: len(found)])


def test_damage_raises_nothing_and_ends() -> None:
    data = (FILES / "tensorboard.tfevents.1").read_bytes()
    chance = random.Random(3)
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 20)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        scalars(bytes(damaged))
    assert scalars(b"") == scalars(b"no event file at all") == scalars(bytes(1000)) == []
