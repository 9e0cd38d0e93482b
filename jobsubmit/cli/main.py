"""The entry point of the command line, and the one place where an error becomes an exit code."""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import signal
import sys
from contextlib import suppress
from itertools import pairwise
from typing import TextIO

from jobsubmit.cli.console import OutputError, discard, out, show_error
from jobsubmit.errors import INTERRUPTED, BackendError, JobSubmitError

# Until the next search for cycles: a bundle of hundreds of thousands of files has none, and there would be hundreds.
_ALLOCATIONS = 200_000
_AS_JSON = re.compile(r"(?:.* )?(?:-o[ =]?|--output[ =])json", re.S)
_READER_GONE = 128 + signal.SIGPIPE
_ACTING = ("create", "submit", "run", "rerun", "cancel", "stop", "delete", "prune", "upload", "download", "init")
_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE)


def process() -> None:
    """Run as the whole process, and exit at once: an orderly shutdown costs time, and may wait for a connection.

    A command that only shows something ends by SIGPIPE if its reader has closed the pipe, as other programs do.
    """
    code: object = 0
    number = 0
    _heed_signals()
    gc.set_threshold(_ALLOCATIONS)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before we began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    try:
        main()
    except SystemExit as done:
        code = done.code
    except _AskedToEndError as asked:
        number = asked.number
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code == _READER_GONE:
        number = signal.SIGPIPE
    if number:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code if isinstance(code, int) else int(code is not None))


class _AskedToEndError(BaseException):
    """A signal asks this process to end: it releases what it holds on the way out, as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _heed_signals() -> None:
    """Exit in order at the first signal, at once at the second. An ignored signal stays ignored (nohup)."""

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise _AskedToEndError(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def main() -> None:
    """Run the command line and exit with its code."""
    arguments = sys.argv[1:]
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments  # what follows is a user's command
    # An error may come before the option is parsed, and is JSON then too.
    out.json = any(_AS_JSON.fullmatch(" ".join(pair)) for pair in pairwise(["", *ours]))
    out.acts = next((word for word in arguments if not word.startswith("-")), "") in _ACTING
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign must not hide the exit code
    sys.exit(_guarded(arguments))


def _guarded(arguments: list[str]) -> int:
    try:
        code = run_command(arguments)
        with out.unread(sys.stdout):
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        out.talk("interrupted")
        return INTERRUPTED
    except OutputError as unread:
        return _unread(unread.stream, unread.error)
    except BrokenPipeError as error:
        return _unread(sys.stdout, error)
    except Exception as error:
        if out.debug:
            sys.excepthook(*sys.exc_info())
        known = _known(error)
        out.acts = True  # what is wrong is said where that is possible, and does not change the exit code
        show_error(known)
        return known.code


def _unread(stream: TextIO, error: OSError) -> int:
    """Return the exit code for output that cannot be written; the rest of the output is discarded."""
    with suppress(OSError, ValueError):
        discard(stream)
    if error.errno == errno.EPIPE:
        return _READER_GONE
    out.acts = True
    known = BackendError(f"the output cannot be written: {error.strerror}", "free disk space, or redirect the output")
    show_error(known)
    return known.code


def _known(error: Exception) -> JobSubmitError:
    """Return an error as a JobSubmitError; an error of the operating system is not a bug of ours."""
    if isinstance(error, JobSubmitError):
        return error
    if isinstance(error, OSError) and error.errno in _SYSTEM:
        name = error.filename if error.filename is not None else "a file"
        where = os.fsdecode(name) if isinstance(name, (str, bytes)) else str(name)
        return BackendError(f"{where}: {error.strerror}", "free disk space, or check the permissions")
    return _bug(error)


def _bug(error: Exception) -> JobSubmitError:
    return JobSubmitError(
        f"this is a bug in jobsubmit: {type(error).__name__}: {error}", "run it again with --debug, and report it"
    )


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    completes = "_JOBSUBMIT_COMPLETE" in os.environ  # a shell asks what may be typed
    if not completes and arguments in ([], ["--help"], ["-h"]):
        from jobsubmit.cli.help import show_help

        show_help()
        return 0
    if arguments and arguments[0] in ("upload", "download"):
        from jobsubmit.cli import upload

        return upload.run(arguments[0], arguments[1:])
    from jobsubmit.cli import app

    return app.run(arguments)
