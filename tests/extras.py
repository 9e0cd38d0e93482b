"""Print what an extra of jobsubmit, which is installed without it, needs: `pip install $(python tests/extras.py dev)`.

Installing `.[dev]` instead would take jobsubmit away for a moment, under the tests that run meanwhile.
"""

from __future__ import annotations

import sys
from importlib.metadata import requires


def needs(extra: str) -> list[str]:
    """Return the requirements of an extra, those of extras that it names among them."""
    found: list[str] = []
    for text in requires("jobsubmit") or []:
        requirement, _, condition = text.partition(";")
        if condition.strip() not in (f'extra == "{extra}"', f"extra == '{extra}'"):
            continue
        name, _, inner = requirement.strip().partition("[")
        if name == "jobsubmit":
            found += [one for part in inner.rstrip("] ").split(",") for one in needs(part.strip())]
        else:
            found.append(requirement.replace(" ", ""))
    return found


if __name__ == "__main__":
    print(*needs(sys.argv[1]))
