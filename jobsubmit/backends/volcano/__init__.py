"""Volcano on Kubernetes: one pod a node, and what the pods tell through their status, their logs and the store."""

from jobsubmit.backends.volcano.backend import VolcanoBackend

__all__ = ["VolcanoBackend"]
