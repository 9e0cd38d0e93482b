"""Run the command line as `python -m jobsubmit`."""

from jobsubmit.cli.app import main

main()
