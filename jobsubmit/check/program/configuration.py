"""Configuration files that a program reads: YAML, JSON and TOML, as mappings."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program

_LARGEST = 64 << 10
_MOST_VALUES = 100_000  # more than a file of that size has
OPENERS = ("open", "io.open", "codecs.open")
# Function that reads a configuration → the format, empty where the name of the file says it.
READERS: Mapping[str, str] = {
    **dict.fromkeys(("yaml.safe_load", "yaml.load", "yaml.full_load", "yaml.unsafe_load"), "yaml"),
    **dict.fromkeys(("json.load", "json.loads"), "json"),
    **dict.fromkeys(("tomllib.load", "tomllib.loads", "toml.load", "toml.loads", "tomli.load", "tomli.loads"), "toml"),
}


class OpenFile(NamedTuple):
    """A file that was opened, or its text."""

    path: str


def read_configuration(program: Program, file: Any, form: str) -> Any:
    """Return what a configuration file of the code says, a mapping as a rule; UNKNOWN where it cannot be read."""
    text = read_text(program, file.path if isinstance(file, OpenFile) else str(file))
    return parse_text(text, form) if text else UNKNOWN


def read_text(program: Program, path: str) -> str:
    """Return the text of a configuration file of the code; empty if there is none, or if it is too long."""
    try:
        with Path(program.file(path, program.configurations)).open("rb") as stream:
            data = stream.read(_LARGEST + 1)
        return data.decode() if len(data) <= _LARGEST else ""
    except (OSError, ValueError):
        return ""


def parse_text(text: str, form: str = "yaml") -> Any:
    """Return the values of a text; UNKNOWN where it has another form."""
    try:
        return _parse(text, form)
    except (ValueError, RecursionError):
        return UNKNOWN


def merge(target: dict[str, Any], own: Mapping[str, Any]) -> None:
    """Set the values of a mapping in another one, and those of the mappings in it."""
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = _copied(value)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def without_computed(value: Any) -> Any:
    """Return a value in which what OmegaConf and Hydra compute later is not known."""
    if isinstance(value, dict):
        return {key: without_computed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_computed(inner) for inner in value]
    return UNKNOWN if isinstance(value, str) and "${" in value else value


def _parse(text: str, form: str) -> Any:
    """Return the values of a text; raise ValueError where it has another form."""
    if form == "json":
        try:
            return json.loads(text)
        except ValueError:  # programs that allow comments leave them out
            return json.loads("\n".join(line.partition("//")[0] for line in text.splitlines()))
    if form == "toml":
        return _parse_toml(text)
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor
    from ruamel.yaml.error import YAMLError

    class LastWins(SafeConstructor):
        """Take the last of several entries with the same key, as PyYAML does."""

        def check_mapping_key(self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any) -> bool:
            return True

    reader = YAML(typ="safe", pure=True)
    reader.Constructor = LastWins
    try:
        return small(reader.load(text))
    except YAMLError as error:
        raise ValueError(str(error)) from None


def small(tree: Any) -> Any:
    """Return what a text says; raise ValueError where aliases make too many values of it: `[*a, *a]`, over and over."""
    waiting, count = [tree], 0
    while waiting:
        one = waiting.pop()
        count += 1
        if count > _MOST_VALUES:
            raise ValueError
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return tree


def _parse_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    return UNKNOWN
