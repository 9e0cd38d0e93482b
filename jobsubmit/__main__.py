"""Run the command line, as `jobsubmit` or as `python -m jobsubmit`."""

from jobsubmit.common.isolation import isolate


def main() -> None:
    """Run as the whole process; what it imports does not come from the current folder."""
    isolate()
    from jobsubmit.cli.main import process

    process()


if __name__ == "__main__":
    main()
