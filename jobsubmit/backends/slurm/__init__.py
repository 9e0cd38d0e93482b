"""Slurm: one task a node, and what the nodes tell through a folder that they share with us."""

from jobsubmit.backends.slurm.backend import SlurmBackend

__all__ = ["SlurmBackend"]
