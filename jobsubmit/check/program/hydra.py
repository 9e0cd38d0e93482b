"""The configuration that Hydra composes for a program: its files, the options of their groups, and the overrides.

Source: Hydra 1.3, "The Defaults List", "Basic Override syntax" and "Changes to default composition order": what a file
says itself comes last since 1.1. Hydra 0.11, "Config groups", where the path of the configuration is one file, and what
a group has is merged at the top.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from jobsubmit.check.program.configuration import merge, parse_text, read_text
from jobsubmit.check.program.interpolation import interpolated
from jobsubmit.check.program.module import FUNCTIONS, Function, Module
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program

HYDRA = ("hydra.main", "dora.hydra_main", "dora.hydra.hydra_main")
_OVERRIDE = re.compile(r"(\+\+|\+|~)?([\w@/.-]+?)(?:=(.*))?", re.DOTALL)
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_CONFIG_NAME = re.compile(r"(?:--config-name|-cn)(?:=(.*))?")
_CONFIG_PATH = re.compile(r"(?:--config-path|-cp)(?:=(.*))?")  # from the file of the function, as in its decorator
MISSING = "???"
_DEEPEST = 8
FLAGS = re.compile(r"--(?:config-(?:name|path|dir)|multirun|cfg|(?:hydra-)?help|info|resolve|package|run|version)\b")
_OTHER_SOURCES = ("--config-dir", "-cd", "--multirun", "-m")


class Override(NamedTuple):
    """A word `optim.lr=0.1`: what stands before the name (`+` adds it), the name, and the text of the value."""

    sign: str
    name: str
    text: str


@dataclass(frozen=True)
class Composed:
    """The configuration that a function gets; `is_complete` unless something of it is unknown.

    `refused` are overrides of what it lacks; `missing` are values that must be given, and are not.
    """

    function: Function
    values: dict[str, Any]
    is_complete: bool
    refused: tuple[Override, ...] = ()
    missing: tuple[str, ...] = ()


def _main_function(program: Program) -> tuple[Module, Function, ast.Call] | None:
    """Return the function that Hydra calls with the configuration, and its decorator."""
    for module, function in program.of(*FUNCTIONS):
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and program.name_of(decorator.func, module) in HYDRA:
                return module, function, decorator
    return None


def compose(program: Program, words: Sequence[str], value_of: Callable[[ast.expr, Module], Any]) -> Composed | None:
    """Return the configuration of a program for the words of its command line; None if it has none of Hydra's.

    `value_of` gives the values of expressions, such as the folder `str(Path(__file__).parent / "configs")`.
    """
    found = _main_function(program)
    if found is None:
        return None
    module, function, decorator = found
    given = {keyword.arg: keyword.value for keyword in decorator.keywords}
    for name, value in zip(("config_path", "config_name"), decorator.args, strict=False):
        given.setdefault(name, value)
    path = _chosen(_CONFIG_PATH, words) or _text(given.get("config_path"))
    computed = given.get("config_path") if path is None else None
    if computed is not None and isinstance(value := value_of(computed, module), (str, PurePosixPath)):
        path = posixpath.relpath(str(value) or ".", posixpath.dirname(module.path) or ".")
    file = _chosen(_CONFIG_NAME, words) or _text(given.get("config_name"))
    is_old = path is not None and not file and path.endswith((".yaml", ".yml"))
    if path is not None and is_old:
        path, file = posixpath.split(path)
    if path is None or not file or _has_other_sources(program, words):
        return Composed(function, {}, is_complete=False)
    folder = posixpath.normpath(posixpath.join(posixpath.dirname(module.path), path))
    composer = _Composer(program, folder, list(_overrides(words)), is_old)
    composer.add(posixpath.splitext(file)[0] if is_old else file.removesuffix(".yaml"), "", 0)
    composer.apply()
    if _rewrites_words(program):  # `--local_rank=1` becomes `local_rank=1`
        names = (word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--"))
        composer.values.update(dict.fromkeys((name for name in names if name in composer.values), UNKNOWN))
    values = interpolated(composer.values, program.attribute_stores.__contains__)
    return Composed(function, values, composer.is_complete, tuple(composer.refused), tuple(_missing(values)))


def _rewrites_words(program: Program) -> bool:
    """Return whether the program sets the words of its command line, before Hydra reads them."""
    stores = program.attribute_stores.get("argv", ())
    return any(program.name_of(node, module) == "sys.argv" for module, node in stores)


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _chosen(option: re.Pattern[str], words: Sequence[str]) -> str:
    for index, word in enumerate(words):
        if found := option.fullmatch(word):
            return found[1] or "".join(words[index + 1 : index + 2])
    return ""


def _has_other_sources(program: Program, words: Sequence[str]) -> bool:
    """Return whether configurations may come from elsewhere: classes, other folders, several runs."""
    is_elsewhere = any(word.startswith(_OTHER_SOURCES) for word in words)
    return is_elsewhere or any("ConfigStore" in module.names for module in program.modules.values())


def _overrides(words: Sequence[str]) -> Iterator[Override]:
    for word in words:
        found = _OVERRIDE.fullmatch(word)
        if found is not None and not word.startswith("-") and (found[3] is not None or found[1] == "~"):
            yield Override(found[1] or "", found[2], found[3] or "")


@dataclass
class _Composer:
    program: Program
    folder: str
    overrides: list[Override]
    is_old: bool  # before Hydra 1.0, a group does not say where its values go
    values: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = True
    refused: list[Override] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    options: dict[str, Any] = field(default_factory=dict)  # of groups, that the defaults of a file override

    def add(self, name: str, group: str, depth: int) -> None:
        """Merge a file of a group, and those that its defaults name."""
        text = read_text(self.program, self._file(group, name))
        read = parse_text(text) if text else UNKNOWN
        if isinstance(read, list) and group and not self.is_old and not _PACKAGE.search(text):
            self.values[group] = read
            return
        if not isinstance(read, dict) or depth > _DEEPEST:
            self.is_complete = self.is_complete and read is None
            return
        package = _PACKAGE.search(text)
        place = (
            ""
            if self.is_old
            else group
            if package is None
            else package[1].replace("_global_", "").replace("_group_", group)
        )
        own = {key: value for key, value in read.items() if key != "defaults"}
        defaults = read.get("defaults") or []
        if not isinstance(defaults, list) or "searchpath" in str(own.get("hydra")):
            self.is_complete = False
            return
        self._take_overrides(defaults, group)
        if "_self_" not in defaults:
            defaults = ["_self_", *defaults] if self.is_old else [*defaults, "_self_"]
        if not depth:
            defaults = [*defaults, *self._added_groups()]
        for entry in defaults:
            if entry == "_self_":
                self._merge(own, place)
            else:
                self._add_default(entry, group, depth)

    def _added_groups(self) -> list[Any]:
        """Return the entries that the command line adds at the end of the defaults: `+experiment=small`."""
        added = [one for one in self.overrides if one.sign == "+" and self._is_folder(one.name)]
        for one in added:
            read = parse_text(read_text(self.program, self._file(one.name, one.text)))
            defaults = read.get("defaults") if isinstance(read, dict) else None
            self._take_overrides(defaults if isinstance(defaults, list) else [], one.name)
        return [{one.name: one.text} for one in added]

    def _take_overrides(self, defaults: list[Any], group: str) -> None:
        """Take the entries `override /optim: adam`: they choose for groups that files further below have."""
        for entry in defaults:
            for key, option in entry.items() if isinstance(entry, dict) else ():
                if str(key).startswith("override ") and "@" not in key:
                    self.options.setdefault(_group(str(key).removeprefix("override "), group), option)

    def _add_default(self, entry: Any, group: str, depth: int) -> None:
        if isinstance(entry, str):
            folder, _, name = _group(entry, group).rpartition("/")
            self.add(name, folder, depth + 1)
            return
        for key, option in entry.items() if isinstance(entry, dict) else ():
            name = str(key).removeprefix("optional ").strip()
            may_lack = str(key).startswith("optional ")
            if name.startswith(("override ", "hydra/")) or "@" in name:
                self.is_complete = self.is_complete and "@" not in name
                continue
            inner = _group(name, group)
            default = self.options.get(inner, option)
            chosen = next((one.text for one in self.overrides if one.name == inner), default)
            self.used.add(inner)
            for each in chosen if isinstance(chosen, list) else [chosen]:
                is_there = self._file(inner, str(each)) in self.program.configurations
                if each not in (None, "null") and (is_there or not may_lack):
                    self.add(str(each), inner, depth + 1)

    def _file(self, group: str, name: str) -> str:
        return posixpath.normpath(posixpath.join(self.folder, group, f"{name.removesuffix('.yaml')}.yaml"))

    def _merge(self, own: Mapping[str, Any], place: str) -> None:
        target = self.values
        for part in filter(None, re.split("[./]", place)):
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                self.is_complete = False
                return
        merge(target, own)

    def apply(self) -> None:
        """Apply the overrides of single values."""
        for one in self.overrides:
            if one.name.split(".")[0] == "hydra" or one.name in self.used:
                continue
            if one.sign == "~" or "/" in one.name or "@" in one.name or self._is_folder(one.name):
                if not one.sign and "@" not in one.name and self.is_complete:
                    self.refused.append(one)
                else:
                    self.is_complete = False
                continue
            *above, last = one.name.split(".")
            target: Any = self.values
            for part in above:
                target = target.get(part) if isinstance(target, dict) else None
            if isinstance(target, dict) and (last in target or one.sign):
                target[last] = parse_text(one.text)
            elif not one.sign:
                self.refused.append(one)
            else:
                self.is_complete = False

    def _is_folder(self, group: str) -> bool:
        start = posixpath.join(self.folder, group) + "/"
        return any(path.startswith(start) for path in self.program.configurations)


def _group(name: str, group: str) -> str:
    """Return the path that a file of a group names, from there or, with `/`, from the folder of all."""
    return posixpath.normpath(posixpath.join("/", group, name.strip())).strip("/")


def _missing(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the names of the values that must be given, and are not."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _missing(value, f"{above}{key}.")
        elif value == MISSING:
            yield f"{above}{key}"
