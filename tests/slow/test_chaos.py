"""The short form of `make chaos`: whatever is killed, the training ends as if nothing had happened."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from chaos import TARGETS, chaos


@pytest.mark.timeout(2400)
@pytest.mark.needs("torch")
def test_fifteen_kills(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    killed = chaos(15, seed, tmp_path)
    assert killed.total() == 15
    assert set(killed) == set(TARGETS)
