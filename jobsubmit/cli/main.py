"""The command line's first and last lines, and the one place where an error becomes an exit code."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from itertools import pairwise

from jobsubmit.cli.output import out, show_error
from jobsubmit.errors import INTERRUPTED, JobSubmitError


def process() -> None:
    """Be the whole process: leave at once, for taking everything down costs time, and a dead line would hold us."""
    code: object = 0
    try:
        main()
    except SystemExit as done:
        code = done.code
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    """Run the command line and exit with its code."""
    arguments = sys.argv[1:]
    # An error may come before the option is parsed, and is JSON then too.
    out.json = any(pair in (("-o", "json"), ("--output", "json")) for pair in pairwise(arguments))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign must not hide the exit code
    sys.exit(_guarded(arguments))


def _guarded(arguments: list[str]) -> int:
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        out.talk("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if out.debug:
            raise
        known = error if isinstance(error, JobSubmitError) else _bug(error)
        show_error(known)
        return known.code


def _bug(error: Exception) -> JobSubmitError:
    return JobSubmitError(f"this is a bug in jobsubmit: {type(error).__name__}: {error}", "run it again with --debug")


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("upload", "download"):
        from jobsubmit.cli import transfer

        return transfer.run(arguments[0], arguments[1:])
    from jobsubmit.cli import app

    return app.run(arguments)
