"""What this machine has of the Hugging Face Hub. Source: the documentation of huggingface_hub's cache."""

from __future__ import annotations

import os
from pathlib import Path

OF_CACHE = ("HF_HOME", "HF_HUB_CACHE")  # variables that say where it is


def is_cached(name: str) -> bool:
    """Return whether the cache has a model, a dataset or a metric of this name."""
    kinds = (hub_folder() / f"{kind}--{name.replace('/', '--')}" for kind in ("models", "datasets", "spaces"))
    own = (_hub_home() / "datasets" / name.replace("/", "___"), _hub_home() / "modules/evaluate_modules/metrics" / name)
    return any(path.exists() for path in (*kinds, *own))


def hub_folder() -> Path:
    """Return where this machine keeps what it has of the hub."""
    return Path(os.environ.get("HF_HUB_CACHE") or _hub_home() / "hub")


def _hub_home() -> Path:
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
