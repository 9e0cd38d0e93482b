"""The earlier name of `jobsubmit.profiling`, for training code that uses it."""

from __future__ import annotations

from jobsubmit.profiling import sync

__all__ = ["sync"]
