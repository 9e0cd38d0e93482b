"""Run the command line, as `jobsubmit` or as `python -m jobsubmit`."""

import sys

from jobsubmit.common.isolation import isolate


def main() -> None:
    """Run as the whole process; what it imports does not come from the current folder."""
    isolate()
    if sys.argv[1:2] == ["create"]:
        from jobsubmit.cli.early_connection import connect_to_machines

        connect_to_machines(sys.argv[2:])
    from jobsubmit.cli.main import process

    process()


if __name__ == "__main__":
    main()
