"""The command line that a program accepts, told from its source: argparse, click, typer, HfArgumentParser."""

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option, Refusal
from jobsubmit.check.parsers.find import find_command_line

__all__ = ["CommandLine", "Gap", "Option", "Refusal", "find_command_line"]
