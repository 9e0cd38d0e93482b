"""The words after the boot file: what the user gives, and what jobsubmit injects."""

from __future__ import annotations

import json

from jobsubmit.spec.constraints import SINGLE_NODE_RANKS
from jobsubmit.spec.hyperparameter import Flag, HyperparameterValue
from jobsubmit.spec.job_spec import JobSpec, SpawnSpec


def build_arguments(spec: JobSpec) -> tuple[str, ...]:
    """Return the words after the boot file that are known before the nodes are."""
    words = build_hyperparameter_words(spec)
    return words if isinstance(spec, SpawnSpec) else (*words, *spec.args)


def build_hyperparameter_words(spec: JobSpec) -> tuple[str, ...]:
    """Return the words for the hyperparameters."""
    return tuple(word for name, value in hyperparameters(spec).items() for word in _spelled(name, value))


def hyperparameters(spec: JobSpec) -> dict[str, HyperparameterValue]:
    """Return the hyperparameters of the request: the user's, and in preset mode on one node world_size=1 and rank=0.

    Note that in preset mode `world_size` and `rank` count NODES; the boot file multiplies by the accelerators of its
    node. On one node the platform asks the user for both, on several it appends them itself, per node, and refuses
    them in the request (platform documentation, preset frameworks).
    """
    if isinstance(spec, SpawnSpec) and spec.resources.most == 1:
        return {**spec.hyperparameters, **SINGLE_NODE_RANKS}
    return dict(spec.hyperparameters)


def _spelled(name: str, value: HyperparameterValue) -> list[str]:
    match value:
        case None:
            return []
        case Flag(flag=on):
            return [f"--{name}"] if on else []
        case bool():
            return [f"--{name}={str(value).lower()}"]
        case list():
            return [f"--{name}={json.dumps(value, ensure_ascii=False)}"]
        case _:
            return [f"--{name}={value}"]
