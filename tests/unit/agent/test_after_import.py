"""What is done with a module right after its import, by several that wait for the same one."""

from __future__ import annotations

import subprocess
import sys

_TWO_WAIT = """
import sys
from jobsubmit.agent.after_import import after_import

said = []
for number in range(2):
    after_import({"colorsys": lambda module, number=number: said.append((number, module.__name__))}, print)
import colorsys
print(sorted(said), [finder for finder in sys.meta_path if "_Watcher" in repr(finder)])
"""


def test_two_may_wait_for_one_module() -> None:
    done = subprocess.run([sys.executable, "-c", _TWO_WAIT], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[(0, 'colorsys'), (1, 'colorsys')] []\n", "")
