"""Run the command line as `python -m jobsubmit`."""

from jobsubmit.cli.main import process

process()
