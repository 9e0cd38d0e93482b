"""Network namespaces, which tests make hosts of: iproute2, from Debian's packages, and root."""

from __future__ import annotations

import os
import shutil

import packages


def is_there() -> bool:
    """Tell whether there can be any."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc")))


if __name__ == "__main__":
    if not is_there():
        packages.install(["iproute2"])
