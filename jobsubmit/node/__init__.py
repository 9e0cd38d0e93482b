"""What runs on a node: standard library only, any Python from 3.8."""

from .timing.by_hand import sync as sync
