"""Run jobs on emulated nodes of this machine: the embedded default, with no account and no containers."""

from jobsubmit.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
