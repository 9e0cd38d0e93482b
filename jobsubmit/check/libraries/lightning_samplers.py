"""Data that Lightning must not divide among the processes, and that nothing else divides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from jobsubmit.check.code import Code
from jobsubmit.check.libraries.lightning_settings import TRAINERS, settings_of_cli, trainer_composed
from jobsubmit.common.finding import Finding

_SETTINGS = ("use_distributed_sampler", "replace_sampler_ddp")  # of Lightning 2 and 1
_DIVIDES = re.compile(r"Distributed\w*Sampler|num_replicas|split_\w*by_node|get_world_size|WORLD_SIZE|^world_size$")


def check_samplers(code: Code, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a warning where a Trainer must not add a DistributedSampler, and the program makes none.

    Source: `_DataConnector._requires_distributed_sampler` of Lightning 2.6.
    """
    if not code.is_parallel or any(map(_DIVIDES.search, code.names_in_use)):
        return
    for where, settings in _settings(code, read):
        setting = next((one for one in _SETTINGS if settings.get(one) is False), "")
        if setting:
            yield Finding(
                "warning",
                "no-sampler",
                where,
                f"{setting} is false, and no code makes a DistributedSampler: each process trains on all of the data",
                f"leave out {setting}, or give each loader a DistributedSampler",
            )
            return


def _settings(code: Code, read: Callable[[str], str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what Trainers are given, with the place: in the code, by Hydra, and by LightningCLI."""
    for module, call, name in code.reached.calls:
        if name in TRAINERS:
            given = {str(one.arg): code.values.of(one.value, module) for one in call.keywords if one.arg}
            mappings = [code.values.of(one.value, module) for one in call.keywords if one.arg is None]
            mapped = {key: value for one in mappings if isinstance(one, dict) for key, value in one.items()}
            yield module.where(call), mapped | given
    if (composed := trainer_composed(code)) is not None:
        yield "args", composed[1]
    if "LightningCLI" in code.names:
        found = settings_of_cli(code, read)
        yield (
            next((place for key, (_, place) in found.items() if key in _SETTINGS), "args"),
            {key: value for key, (value, _) in found.items()},
        )
