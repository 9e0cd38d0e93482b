"""Classes and functions that a program registers by decorators, to look them up by a name later."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from jobsubmit.check.program.module import Definition, classes_named, spelled
from jobsubmit.check.program.program import LONGEST_CONFIGURATION, Program
from jobsubmit.check.program.tree import walk

_MOST_FILES = 20
_FILE = re.compile(r"(?<![\w./-])[\w./-]+\.(?:ya?ml|json|toml|py)\b")
_WORD = re.compile(r"[\w.+-]+")


@lru_cache(maxsize=1)
def registered(program: Program, words: tuple[str, ...]) -> Registered:
    """Return what of a program is registered, and chosen by these words of the command line."""
    return Registered(program, words)


@dataclass(frozen=True)
class Registered:
    """What of a program is registered, and chosen by the words of the command line, a configuration or a text.

    A text is one in the program, such as a default or `build("net")`: which of several it chooses is not known.
    """

    program: Program
    words: Sequence[str]

    def is_chosen(self, node: Definition) -> bool:
        """Return whether something is registered by a name that is asked for."""
        names = names_of(node)
        return bool(names) and not (names.isdisjoint(self._asked_for) and names.isdisjoint(self._texts))

    @cached_property
    def named_classes(self) -> Sequence[str]:
        """Return the whole names of classes of the program that are asked for: `target: models.net.Net`."""
        nodes = self.program.of(ast.Call, ast.Assign)
        words = {*self._asked_for, *(name for _, node in nodes for name in classes_named(node))}
        return sorted(word for word in words if "." in word and self.program.definition(word) is not None)

    @cached_property
    def _asked_for(self) -> frozenset[str]:
        """Return every word of the command line, and of the configurations that it leads to."""
        texts = [*self.words, *self.settings.splitlines()]
        return frozenset(word for text in texts for word in (text, *_WORD.findall(text)))

    @cached_property
    def settings(self) -> str:
        """Return the text of the configurations that are asked for."""
        return "\n".join(_text(self.program, path) for path in self._configurations())

    def _configurations(self) -> Iterable[str]:
        """Return the configurations that the words name, or else texts of the program, and those named in them.

        A file of Python is one only if a word or another configuration names it.
        """
        waiting = list(_files_in(self.program, self.words, ""))
        if not waiting:
            named = _files_in(self.program, sorted(self._texts), "")
            waiting = [path for path in dict.fromkeys(named) if path in self.program.configurations][:_MOST_FILES]
        for path in waiting:  # those that are added here, too
            named = _files_in(self.program, [_text(self.program, path)], posixpath.dirname(path))
            waiting += [one for one in named if one not in waiting and len(waiting) < _MOST_FILES]
        return waiting

    @cached_property
    def _texts(self) -> frozenset[str]:
        """Return the texts in the program, but for those in decorators."""
        in_decorators = {
            inner
            for _, node in self.program.of(ast.ClassDef, ast.FunctionDef)
            for decorator in node.decorator_list
            for inner in walk(decorator)
        }
        texts = (node for _, node in self.program.of(ast.Constant) if isinstance(node.value, str))
        return frozenset(node.value for node in texts if node not in in_decorators)


def names_of(node: Definition) -> frozenset[str]:
    """Return the names under which decorators register a class or function; none if they do not."""
    found: set[str] = set()
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if spelled(called).rpartition(".")[2].startswith("register"):
            texts = (inner.value for inner in walk(decorator) if isinstance(inner, ast.Constant))
            found |= {node.name, *(text for text in texts if isinstance(text, str))}
    return frozenset(found)


def _files_in(program: Program, texts: Iterable[str], folder: str) -> Iterator[str]:
    """Yield the files of the program that texts name, from a folder or from the code directory."""
    for text in texts:
        for name in _FILE.findall(text):
            for path in (posixpath.normpath(posixpath.join(folder, name)), posixpath.normpath(name)):
                if path in program.configurations or path in program.sources:
                    yield path
                    break


def _text(program: Program, path: str) -> str:
    with (
        suppress(OSError),
        Path(program.configurations.get(path) or program.sources[path]).open(errors="replace") as stream,
    ):
        return stream.read(LONGEST_CONFIGURATION)
    return ""
