"""The defects that `make defects` puts back still fit the code."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_defect_can_be_put_back() -> None:
    spec = importlib.util.spec_from_file_location("defects", ROOT / "tests/bench/defects.py")
    assert spec
    assert spec.loader
    defects = sys.modules["defects"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(defects)
    for defect in defects.DEFECTS:
        _, text = defects.found(ROOT, defect)  # exits where it does not
        compile(text, defect.name, "exec")
