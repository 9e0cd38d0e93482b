"""Constants of libraries that programs use."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from typing import Any

from jobsubmit.check.program.facts import SYSTEM

CONSTANTS: Mapping[str, Any] = {
    "argparse.REMAINDER": argparse.REMAINDER,
    "argparse.SUPPRESS": argparse.SUPPRESS,
    "argparse.ZERO_OR_MORE": "*",
    "argparse.ONE_OR_MORE": "+",
    "argparse.OPTIONAL": "?",
    "math.inf": math.inf,
    "math.pi": math.pi,
    "os.sep": "/",
    "os.path.sep": "/",
    "sys.maxsize": sys.maxsize,
    **SYSTEM,
}
