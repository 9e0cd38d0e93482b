from .data import Pairs, SyntheticHomographies
from .model import Matcher

__all__ = ["Matcher", "Pairs", "SyntheticHomographies"]
