"""YAML 1.2 text → plain values with their lines; what YAML readers disagree on is refused."""

from __future__ import annotations

import io
import math
import os
import re
import select
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from jobsubmit.errors import Problem, SpecError

FieldPath = tuple[str | int, ...]

_MAX_BYTES = 1 << 20
_MAX_VALUES = 20_000
_MAX_DEPTH = 40
# What only so many of these signs, or so many spaces, can nest so deeply is not looked at twice.
_TO_BE_COUNTED = re.compile(
    rf"(?:[\[{{][^\[{{]*){{{_MAX_DEPTH}}}|(?:[-?:]\s+){{{_MAX_DEPTH}}}|^ {{{_MAX_DEPTH}}}", re.MULTILINE
)
_READ_SECONDS, _LOOK_SECONDS = 10.0, 0.05
_INT64 = 1 << 63
_MAX_DIGITS = 70  # 64 binary ones, and a prefix
_LONGEST_MAPPING = 60  # letters in one line
_PLAIN_WORD = re.compile(r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_/][A-Za-z0-9_/.-]*")
_AMBIGUOUS_WORDS = re.compile(r"(?i)yes|no|on|off")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([Tt ].*)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_INT = re.compile(r"[-+]?(\d[\d_]*|0b[01][01_]*|0o[0-7][0-7_]*|0x[0-9a-fA-F][0-9a-fA-F_]*)")
_SPELLINGS = {
    "null": ("", "~", "null", "Null", "NULL"),
    "bool": ("true", "True", "TRUE", "false", "False", "FALSE"),
}
_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")


def dotted(path: FieldPath) -> str:
    """Return a path as `resources.nodes` or `args[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class WrittenFloat(float):
    """A float that keeps its spelling: `3.10` and `1e-3` reach the nodes unchanged."""

    def __new__(cls, text: str) -> WrittenFloat:
        """Parse the number and keep its text."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass
class Document:
    """A mapping, the place of each of its values, and the problems of the text."""

    source: str
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[FieldPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, path: FieldPath) -> str:
        """Return the place of a value, or of the nearest value around it."""
        for end in range(len(path), -1, -1):
            if place := self.places.get(path[:end]):
                return place
        return self.source


_SCRIPTS = (".py", ".sh")


def read_document(file: Path, source: str, hint: str) -> Document:
    """Read a job or configuration file; raise SpecError if it does not contain a mapping."""
    try:
        raw = _read(file)
    except OSError as error:
        raise SpecError([Problem(source, "", f"cannot be read: {error.strerror or error}")], hint) from error
    if raw.startswith(b"#!") and b"\n#SBATCH" in raw:
        hint = f'write a job file for the command that it starts: jobsubmit init --from "sbatch {source}"'
        raise SpecError([Problem(source, "", "is a script for sbatch, not a job file")], hint)
    if file.suffix in _SCRIPTS and file.is_file():
        program = "python" if file.suffix == ".py" else "bash"
        hint = f"run `jobsubmit init` to write a job file for it; without one: jobsubmit run -- {program} {source}"
        raise SpecError([Problem(source, "", "is a script, not a job file")], hint)
    if len(raw) > _MAX_BYTES:
        raise SpecError([Problem(source, "", f"is larger than {_MAX_BYTES:,} bytes")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SpecError(
            [Problem(f"{source}:{line}", "", f"is not UTF-8 (byte 0x{raw[error.start]:02x})")],
            "save the file as UTF-8",
        ) from error
    return parse_document(text, source)


def _read(file: Path) -> bytes:
    """Return what is in a file, or somewhat more than it may hold; a pipe that nobody writes to is given up."""
    deadline, data = time.monotonic() + _READ_SECONDS, b""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        while len(data) <= _MAX_BYTES:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"nothing was written to it for {_READ_SECONDS:.0f} s")
            block = os.read(descriptor, _MAX_BYTES)
            if not block and (data or not is_pipe or time.monotonic() > deadline):
                break
            if not block:  # its writer has not opened it yet
                time.sleep(_LOOK_SECONDS)
            data += block
        return data
    finally:
        os.close(descriptor)


def parse_document(text: str, source: str) -> Document:
    """Parse YAML text whose top level must be a mapping."""
    node = _compose(text, source)
    if node is None:
        raise SpecError([Problem(source, "", "is empty")], "run `jobsubmit init` to write a job file")
    if not isinstance(node, MappingNode):
        raise SpecError([Problem(_place(node, source), "", "must be a mapping of fields, like `name: my-job`")])
    reader = _Reader(source)
    return Document(source, text, reader.value(node, ()), reader.places, reader.problems)


def parse_value(text: str, source: str) -> Any:
    """Parse one value given on the command line, by the same rules as in a file."""
    node = _compose(text, source)
    if node is None and not text.strip():
        return None
    if node is None or node.end_mark.index < len(text.rstrip()):
        raise SpecError([Problem(source, "", f"`#` starts a comment in {text!r}: put YAML quotes around the value")])
    reader = _Reader(source, lines=False)
    value = reader.value(node, ())
    if reader.problems:
        raise SpecError(reader.problems)
    return value


def to_yaml(values: Mapping[str, Any]) -> str:
    """Return a mapping as the text of a job file."""
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment] # arguments keep their order
    yaml.representer.add_representer(
        WrittenFloat, lambda representer, number: representer.represent_scalar("tag:yaml.org,2002:float", number.text)
    )
    yaml.representer.add_representer(str, _as_text)
    yaml.representer.add_representer(dict, _as_mapping)
    yaml.dump(dict(values), stream)
    return stream.getvalue()


def _as_mapping(representer: Any, values: dict[str, Any]) -> Any:
    """Represent a mapping in one line if it fits into one, else with a line for each entry."""
    node = representer.represent_mapping("tag:yaml.org,2002:map", values)
    if node.flow_style and sum(len(f"{name}: {value}, ") for name, value in values.items()) > _LONGEST_MAPPING:
        node.flow_style = False
    return node


def _as_text(representer: Any, text: str) -> Any:
    """Represent text so that every reader of YAML takes it for text: in quotes, but for plain words."""
    is_plain = _PLAIN_WORD.fullmatch(text) and not _AMBIGUOUS_WORDS.fullmatch(text)
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


def _compose(text: str, source: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    try:
        if _TO_BE_COUNTED.search(text):
            _require_shallow(text, source)
        node: Node | None = yaml.compose(text)
    except MarkedYAMLError as error:
        problem = re.sub(r"\s+", " ", str(error.problem or error.context))
        # What was never closed is found at the end of the file; where it was opened is what helps.
        marks = (
            (error.context_mark, error.problem_mark)
            if re.search(r"stream end|end of (?:stream|file)", problem)
            else (error.problem_mark, error.context_mark)
        )
        mark = next((mark for mark in marks if mark), None)
        place = f"{source}:{mark.line + 1}" if mark else source
        hint = (
            "check the indentation of this line and of the one above, and that `: ` follows each name; "
            "quote text that contains `: ` or ` #`"
        )
        hint = "indent with spaces, not tabs" if "\\t" in problem else hint
        raise SpecError([Problem(place, "", f"is not YAML: {problem}")], hint) from error
    except YAMLError as error:
        line = text[: getattr(error, "position", 0)].count("\n") + 1
        reason = re.sub(r"\s+", " ", str(getattr(error, "reason", error)))
        raise SpecError([Problem(f"{source}:{line}", "", f"is not YAML: {reason}")]) from error
    except RecursionError as error:
        raise SpecError([Problem(source, "", f"is nested deeper than {_MAX_DEPTH} levels")]) from error
    except ValueError as error:
        raise SpecError([Problem(source, "", f"is not YAML: {error}")]) from error
    return node


def _require_shallow(text: str, source: str) -> None:
    """Raise SpecError for a text that is nested too deeply, at the first value that is: to build it takes minutes."""
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH + 1:
            where = f"{source}:{event.start_mark.line + 1}"
            raise SpecError([Problem(where, "", f"is nested deeper than {_MAX_DEPTH} levels")])


def _place(node: Node, source: str) -> str:
    return f"{source}:{node.start_mark.line + 1}"


class _Reader:
    """Turn YAML nodes into values; collect problems instead of stopping at the first."""

    def __init__(self, source: str, *, lines: bool = True) -> None:
        self.source = source
        self.lines = lines
        self.problems: list[Problem] = []
        self.places: dict[FieldPath, str] = {}
        self.count = 0
        self.open: set[int] = set()

    def value(self, node: Node, path: FieldPath) -> Any:
        self.places.setdefault(path, self.at(node))
        self.count += 1
        if self.count > _MAX_VALUES:
            raise SpecError([Problem(self.at(node), "", f"has more than {_MAX_VALUES:,} values (aliases expanded)")])
        if id(node) in self.open:
            raise SpecError([Problem(self.at(node), dotted(path), "an alias contains itself")])
        if len(self.open) > _MAX_DEPTH:
            raise SpecError([Problem(self.at(node), "", f"is nested deeper than {_MAX_DEPTH} levels")])
        if isinstance(node, ScalarNode):
            return self.scalar(node, path)
        self.open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            return dict(self.entries(node, path))
        finally:
            self.open.discard(id(node))

    def entries(self, node: Node, path: FieldPath) -> Iterator[tuple[str, Any]]:
        seen: dict[str, str] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, ScalarNode) else None
            if key is None:
                self.problem(key_node, path, "a field name must be plain text")
            elif key == "<<" and key_node.style is None:
                self.problem(key_node, path, "merge keys (`<<`) are not YAML 1.2: write the fields out")
            elif key in seen:
                self.problem(key_node, (*path, key), f"is given twice (first at {seen[key]})")
            else:
                seen[key] = self.at(key_node)
                place = (*path, key)
                self.places[place] = self.at(key_node)
                yield key, self.value(value_node, (*path, key))

    def scalar(self, node: ScalarNode, path: FieldPath) -> Any:
        text: str = node.value
        if node.style is not None or node.tag == "tag:yaml.org,2002:str":
            if node.style is None and _AMBIGUOUS_WORDS.fullmatch(text):
                self.problem(node, path, f'`{text}` is true or false to some YAML readers: write "{text}" or a boolean')
            elif node.style is None and _DATE.fullmatch(text):
                self.problem(node, path, f'dates are not supported: write "{text}" in quotes')
            return text
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if text not in _SPELLINGS.get(kind, (text,)):
            self.problem(
                node,
                path,
                f'only some YAML readers read `{text}` as {kind}: write "{text}" for text, or the YAML 1.2 form',
            )
            return text
        if kind in ("null", "bool"):
            return {"t": True, "f": False}.get(text[:1].lower())
        if kind in ("int", "float"):
            return self.number(node, path, kind)
        if kind == "timestamp":
            self.problem(node, path, f'dates are not supported: write "{text}" in quotes')
            return text
        self.problem(node, path, f"the tag `{node.tag}` is not supported")
        return text

    def number(self, node: ScalarNode, path: FieldPath, kind: str) -> int | float | str:
        text: str = node.value
        if _LEADING_ZERO.fullmatch(text):
            self.problem(node, path, f'`{text}` starts with a zero: write "{text}" for text, or the number without it')
            return text
        if kind == "int" and _INT.fullmatch(text):
            digits = text.replace("_", "")
            if len(digits) > _MAX_DIGITS or abs(int(digits, 0)) >= _INT64:
                self.problem(node, path, "is too big for a 64-bit integer: quote it to pass it as text")
                return text
            return int(digits, 0)
        if _FLOAT.fullmatch(text):
            number = WrittenFloat(text.replace("_", ""))
            if math.isfinite(number):
                return number
        self.problem(node, path, f'`{text}` is not a finite number: write "{text}" to pass it as text')
        return text

    def problem(self, node: Node, path: FieldPath, text: str) -> None:
        self.problems.append(Problem(self.at(node), dotted(path), text))

    def at(self, node: Node) -> str:
        return _place(node, self.source) if self.lines else self.source
