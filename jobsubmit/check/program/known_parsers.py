"""The options of libraries whose functions add them to a parser, or make a parser that has them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NamedTuple


class KnownOption(NamedTuple):
    """An option of a library: its name, and settings, type and default as in `accepted.Option`."""

    name: str
    settings: Mapping[str, Any] = {}
    type: str = ""
    default: Any = None


_DETECTRON2 = (
    KnownOption("--config-file", default=""),
    KnownOption("--resume", {"action": "store_true"}, default=False),
    KnownOption("--eval-only", {"action": "store_true"}, default=False),
    KnownOption("--num-gpus", {}, "int", 1),
    KnownOption("--num-machines", {}, "int", 1),
    KnownOption("--machine-rank", {}, "int", 0),
    KnownOption("--dist-url", default="tcp://127.0.0.1:49152"),  # its port depends on the user
    KnownOption("opts", {"nargs": argparse.REMAINDER}),
)
# Functions that add options to a parser.
ADDERS = {
    "deepspeed.add_config_arguments": (
        KnownOption("--deepspeed", {"action": "store_true"}, default=False),
        KnownOption("--deepspeed_config"),
        KnownOption("--deepspeed_mpi", {"action": "store_true"}, default=False),
        KnownOption("--deepscale", {"action": "store_true"}, default=False),
        KnownOption("--deepscale_config"),
    )
}
# Functions that make a parser (detectron2 0.1 to 0.6).
MAKERS = {
    "detectron2.engine.default_argument_parser": _DETECTRON2,
    "detectron2.engine.defaults.default_argument_parser": _DETECTRON2,
}
