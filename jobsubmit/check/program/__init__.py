"""A user's code, read and never run: its modules, the values in it, and what of it a job surely executes."""

from jobsubmit.check.program.calls import Reach
from jobsubmit.check.program.modules import Function, Module, Program, load_program
from jobsubmit.check.program.reach import Reached, explore
from jobsubmit.check.program.values import UNKNOWN, Facts, Values

__all__ = [
    "UNKNOWN",
    "Facts",
    "Function",
    "Module",
    "Program",
    "Reach",
    "Reached",
    "Values",
    "explore",
    "load_program",
]
