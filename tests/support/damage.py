"""Damage to the files of a job's record, as crashes, full disks, newer versions and other people leave it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "x\x1b]52;c;eA==\x07",
    [],
    {},
    [[]],
    {"a": 1},
]
ODD_VALUES += ["\ud800", "../../etc", ["x"] * 3, "9" * 5000, -(2**63), 1e300]


def _replaced(value: Any, chance: random.Random) -> Any:
    """Return a JSON value with one of its parts replaced, taken away, or under another name."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(sorted(value))
        what = chance.randrange(4)
        if what == 0:
            return {key: item for key, item in value.items() if key != name}
        if what == 1:
            return {**{key: item for key, item in value.items() if key != name}, name[::-1]: value[name]}
        return {**value, name: _replaced(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], _replaced(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD_VALUES)


def _json(data: bytes, chance: random.Random) -> bytes:
    """Replace a value somewhere in a JSON document, or in one of its lines."""
    try:
        return json.dumps(_replaced(json.loads(data), chance)).encode()
    except ValueError:
        lines = data.split(b"\n")
        place = chance.randrange(len(lines))
        try:
            lines[place] = json.dumps(_replaced(json.loads(lines[place]), chance)).encode()
        except ValueError:
            lines[place] = lines[place][::-1]
        return b"\n".join(lines)


def _bytes(data: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(data or b"x")
    for _ in range(chance.randrange(1, 6)):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    return bytes(damaged)


def _torn(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _glued(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + data[chance.randrange(len(data) + 1) :]


def _newer(data: bytes, chance: random.Random) -> bytes:
    try:
        found = json.loads(data)
    except ValueError:
        return b'{"t": 1, "event": "a_new_one", "with": {"other": "fields"}}\n' + data
    return (
        json.dumps({**found, "format": 99, "state": "PAUSED", "backend": "moon", "new": {}}).encode()
        if isinstance(found, dict)
        else b"{}"
    )


CONTENTS: list[Callable[[bytes, random.Random], bytes]] = [_json, _json, _json, _bytes, _torn, _glued, _newer]
CONTENTS += [lambda data, chance: b"", lambda data, chance: chance.randbytes(200), lambda data, chance: b"[" * 100_000]
CONTENTS += [lambda data, chance: b"\0" * len(data)]


def damage(file: Path, chance: random.Random) -> str:
    """Damage one file; return what was done to it."""
    what = chance.randrange(20)
    if what == 0:
        file.unlink()
        return "removed"
    if what == 1:
        file.unlink()
        file.mkdir()
        return "a folder"
    if what == 2:
        file.unlink()
        file.symlink_to("nowhere")
        return "a dangling link"
    number = chance.randrange(len(CONTENTS))
    file.write_bytes(CONTENTS[number](file.read_bytes(), chance))
    return f"contents {number}"


def copy_of(folder: Path, place: Path) -> Path:
    """Return a fresh copy of a state directory."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place, symlinks=True)
    return place


def files_of(folder: Path) -> list[Path]:
    """Return the files of a state directory that belong to jobs, and those beside them."""
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)
    )
