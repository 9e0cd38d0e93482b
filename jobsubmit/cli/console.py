"""Write results as text or JSON: data to stdout, messages to stderr. rich is loaded only for a terminal."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, TextIO, TypeVar, cast

from jobsubmit.common.language import translate
from jobsubmit.errors import JobSubmitError
from jobsubmit.transfer.progress import Progress

if TYPE_CHECKING:
    from rich import progress as bars
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_PIPE_WIDTH = 1000
LATER = "\0later"  # in a document: a list that is written item by item
_ITEMS_AT_ONCE = 1000
_SLOW_SECONDS = 2.0
READING_OUTPUT = "reading the output of the job …"
# Controls, what turns the direction of writing, and half signs; tabs and ends of lines steer nothing.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# What a line of a message may be broken between: a `command` stays whole, and Chinese has no blanks.
_PIECE = re.compile(
    r"\s*(?:`[^`]*`[^\s`]*|[\u2e80-\uffef][\u3001\u3002\u300d\uff01\uff09\uff0c\uff1a\uff1b\uff1f]*|[^\s`\u2e80-\uffef]+|`)"
)
_HANGING = 4


class Output:
    """How this process writes its output; set by the options -o and --debug.

    `hidden` gives a context in which nothing else is drawn on the terminal, such as a footer.
    """

    hidden: Callable[[], AbstractContextManager[None]] = staticmethod(nullcontext)

    def __init__(self) -> None:
        self.json = False
        self.debug = False
        self.acts = False  # the command changes something: it goes on where nobody reads what it says

    @cached_property
    def stderr(self) -> Console:
        """Return the console for messages."""
        from rich.console import Console

        return Console(file=_stream("stderr"), highlight=False, markup=False, soft_wrap=True)

    @cached_property
    def stdout(self) -> Console:
        """Return the console for tables and highlighted text; plain data is written with `data`."""
        from rich.console import Console

        # A pipe has no width: a table that is cut off there has lost data.
        width = None if sys.stdout.isatty() else _PIPE_WIDTH
        return Console(file=_stream("stdout"), highlight=False, markup=False, soft_wrap=True, width=width)

    def has_colour(self, stream: TextIO) -> bool:
        """Return whether to write colours to a stream (https://no-color.org)."""
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def line(self, text: str) -> None:
        """Write a line of a job's output to stderr unchanged."""
        with self.unread(sys.stderr):
            sys.stderr.write(text + "\n")

    def data(self, text: str) -> None:
        """Write a line of data and flush it; on a terminal, control characters are escaped."""
        self._part(text + "\n")

    def _part(self, text: str) -> None:
        self._write(_as_bytes(visible(text) if sys.stdout.isatty() else text))

    def coloured_data(self, text: str) -> None:
        """Write a line of data with its colours, unchanged."""
        self._write(_as_bytes(text + "\n"))

    def _write(self, data: bytes) -> None:
        with self.unread(sys.stdout):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    @contextmanager
    def unread(self, stream: TextIO) -> Iterator[None]:
        """Tolerate a stream that is closed or full, if the command must finish anyway."""
        try:
            yield
        except OSError as error:
            if not self.acts:
                raise OutputError(stream, error) from error
            discard(stream)

    def document(self, value: Any) -> None:
        """Write one JSON document; what is not UTF-8, as in some file names, is written as JSON escapes."""
        self.data(json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "backslashreplace").decode())

    def long_document(self, value: Any, items: Iterable[Any]) -> None:
        """Write one JSON document in which a long list replaces LATER, item by item."""
        head, found, tail = json.dumps(value, ensure_ascii=False, indent=2).partition(json.dumps(LATER))
        assert found
        separator, pieces, encode = "[", iter(items), json.JSONEncoder(ensure_ascii=False).encode
        self._part(head)
        while batch := list(itertools.islice(pieces, _ITEMS_AT_ONCE)):
            text = ",\n".join("      " + encode(item) for item in batch)
            self._part(f"{separator}\n{text}")
            separator = ","
        self.data(("[" if separator == "[" else "\n    ") + "]" + tail)

    def talk(self, text: str, style: str = "") -> None:
        """Write a message for people to stderr, in their language; on a terminal, no line but a command is too long."""
        is_command = text.startswith("next: ")
        text = visible(translate(text))
        with self.hidden(), self.unread(sys.stderr):
            if not sys.stderr.isatty():
                print(text, file=sys.stderr, flush=True)  # noqa: T201 - it is what the console would write there
                return
            from rich.text import Text

            for line in text.split("\n"):
                shown = Text(line, style=style)
                self.stderr.print(shown if is_command else wrapped(shown, self.stderr.width))

    def styled(self, stream: TextIO, *parts: str | tuple[str, str], is_message: bool = False) -> None:
        """Write a line to stdout or stderr; on a terminal, a part with a style is shown in it.

        A message for people is broken between words where it is longer than the terminal is wide.
        """
        if stream.isatty():
            from rich.text import Text

            console, line = self.stdout if stream is sys.stdout else self.stderr, Text.assemble(*parts)
            console.print(wrapped(line, console.width) if is_message else line)
            return
        text = "".join(part if isinstance(part, str) else part[0] for part in parts)
        if stream is sys.stdout:
            self.data(text)
        else:
            self.line(text)

    def table(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write rows as a table to stdout; a column whose name begins with `>` is aligned to the right."""
        if sys.stdout.isatty():
            self.stdout.print(table(names, rows))
        else:
            self.data(columns([names, *rows]))

    def script(self, text: str) -> None:
        """Write shell text: highlighted on a terminal, unchanged elsewhere."""
        if sys.stdout.isatty():
            from rich.syntax import Syntax

            self.stdout.print(
                Syntax(visible(text), "bash", background_color="default", theme="ansi_dark"), soft_wrap=True
            )
        else:
            self._write(text.encode())


class OutputError(Exception):
    """The output cannot be written: its reader has closed it, or the disk is full."""

    def __init__(self, stream: TextIO, error: OSError) -> None:
        super().__init__(str(error))
        self.stream, self.error = stream, error


class _Stream(io.TextIOBase):
    """Forward what rich writes to the current sys.stdout or sys.stderr; see Output.unread."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def _stream(self) -> TextIO:
        stream: TextIO = getattr(sys, self.name)
        return stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        with out.unread(self._stream):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with out.unread(self._stream):
            self._stream.flush()


def _stream(name: str) -> IO[str]:
    return cast("IO[str]", _Stream(name))


def discard(stream: TextIO) -> None:
    """Redirect a stream to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


out = Output()


def show_error(error: JobSubmitError) -> None:
    """Show an error once for people, and with -o json once for programs."""
    for line in error.message.split("\n"):
        is_more = line.startswith(" ")
        out.talk(line if is_more else f"error: {line}", "" if is_more else "red")
    if error.hint:
        out.talk(f"  hint: {error.hint}")
    if out.json:
        out.document({"code": error.code, "message": error.message, "hint": error.hint, "where": error.where})


@contextmanager
def said_if_slow(text: str) -> Iterator[None]:
    """Show a message if what is being done takes long."""
    timer = threading.Timer(_SLOW_SECONDS, lambda: out.talk(text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Talk(Progress):
    def say(self, text: str) -> None:
        """Write it (see Progress)."""
        out.talk(text)


class _Bar(_Talk):
    """Show the progress of a transfer: bytes, files, rate and remaining time."""

    def __init__(self, bar: bars.Progress) -> None:
        self.bar, self.task = bar, bar.add_task("", start=False, visible=False, done=0, files=0)
        self.done = 0

    def begin(self, what: str, size: int, files: int) -> None:
        """Start anew (see Progress)."""
        self.done = 0
        self.bar.reset(self.task, description=what, total=size, visible=True, done=0, files=files)

    def advance(self, size: int, files: int = 0) -> None:
        """Move on (see Progress)."""
        self.done += files
        self.bar.update(self.task, advance=size, done=self.done)


@contextmanager
def transfer_progress() -> Iterator[Progress]:
    """Show the progress of a transfer, on a terminal as a bar."""
    if not sys.stderr.isatty():
        yield _Talk()
        return
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TextColumn("{task.fields[done]:,} of {task.fields[files]:,} files"),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(
        *columns, console=out.stderr, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        yield _Bar(bar)


def visible(text: str) -> str:
    """Return text for a terminal: line ends stay, other control characters are escaped."""
    return text if text.isprintable() else _STEERING.sub(lambda found: _named(found[0]), text)


def _named(sign: str) -> str:
    byte = os.fsencode(sign) if "\udc80" <= sign <= "\udcff" else b""  # a byte of a name that is not UTF-8
    return f"\\x{byte[0]:02x}" if byte else sign.encode("unicode_escape").decode()


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a sign, as JSON may hold it
        return text.encode("utf-8", "backslashreplace")


def without_steering(text: str) -> str:
    """Return a line of a job for a terminal: its colours stay, other control characters are escaped."""
    if text.isprintable():
        return text
    parts = _COLOUR.split(text)
    colours = [*_COLOUR.findall(text), ""]
    return "".join(visible(part) + colour for part, colour in zip(parts, colours, strict=True))


_Value = TypeVar("_Value")


def readable(value: _Value, stream: IO[str] | None = None) -> _Value:
    """Return a value with the control characters in its texts escaped; unchanged if the stream is no terminal."""
    return _spelled(value) if (stream or sys.stdout).isatty() else value


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else visible(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _spelled(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **fields)
    if isinstance(value, Mapping):
        return {name: _spelled(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        spelled = map(_spelled, value)
        return type(value)(*spelled) if hasattr(value, "_fields") else type(value)(spelled)
    return value


def printable(text: str) -> str:
    """Return a name on one line, with unprintable characters escaped."""
    return "".join(sign if sign.isprintable() else _named(sign) for sign in text)


def wrapped(line: Text, width: int) -> Text:
    """Return a line broken between its words where it is longer than a terminal is wide, the rest indented."""
    from rich.cells import cell_len
    from rich.text import Text

    if line.cell_len <= width:
        return line
    indent = " " * (len(line.plain) - len(line.plain.lstrip()) + _HANGING)
    found, used = Text(style=line.style), 0
    for piece in _PIECE.finditer(line.plain):
        blanks = len(piece[0]) - len(piece[0].lstrip())
        if used and found.plain.strip() and used + cell_len(piece[0]) > width:
            found.append("\n" + indent)
            used, start = len(indent) + cell_len(piece[0][blanks:]), piece.start() + blanks
        else:
            used, start = used + cell_len(piece[0]), piece.start()
        found.append_text(line[start : piece.end()])
    return found


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns for a pipe (rich would take seconds for thousands of them); the first row names them.

    A column whose name begins with `>` is aligned to the right.
    """
    justify = [str.rjust if name.startswith(">") else str.ljust for name in rows[0]]
    shown = [[name.removeprefix(">") for name in rows[0]], *rows[1:]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    cells = ([put(cell, width) for put, cell, width in zip(justify, row, widths, strict=True)] for row in shown)
    return "\n".join("  ".join(row).rstrip() for row in cells)


def table(names: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """Return rows as a table; a column whose name begins with `>` is aligned to the right."""
    from rich.table import Column, Table

    heads = (Column(name.lstrip(">"), justify="right" if name.startswith(">") else "left") for name in names)
    found = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        found.add_row(*row)
    return found


def counted(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
