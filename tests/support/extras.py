"""Print what an extra of jobsubmit needs, for `pip install $(python tests/support/extras.py dev)`.

Installing `.[dev]` instead would take jobsubmit away for a moment, under the tests that run meanwhile.
"""

from __future__ import annotations

import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement


def needs(extra: str) -> list[str]:
    """Return the requirements of an extra, those of extras that it names among them."""
    found: list[str] = []
    for requirement in map(Requirement, requires("jobsubmit") or []):
        marker, requirement.marker = requirement.marker, None
        if marker is None or not marker.evaluate({"extra": extra}) or marker.evaluate({"extra": ""}):
            continue
        if requirement.name == "jobsubmit":
            found += [one for inner in sorted(requirement.extras) for one in needs(inner)]
        else:
            found.append(str(requirement).replace(" ", ""))
    return found


if __name__ == "__main__":
    print(*needs(sys.argv[1]))
