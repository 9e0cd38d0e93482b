"""Find what a dotted name stands for in the libraries that are installed: `transformers.Trainer`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

FindPackage: TypeAlias = Callable[[str], Path | None]
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_DEEPEST = 12  # modules that hand on a name
_BLOCKS = (ast.If, ast.Try, ast.With)
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# A module with one of these may have names that its statements do not show.
_MAKES_NAMES = re.compile(r"\b(?:__getattr__|globals\(\)|vars\(\)|setattr|sys\.modules|exec\()")
# `def name`, `class name`, `name = …` and `from … import (name, …)` without indentation.
_DEFINED_PLAINLY = re.compile(r"^(?:(?:async )?def |class )(\w+)|^(\w+)(?:: [^=\n]+)? = ", re.MULTILINE)
_IMPORTED_PLAINLY = re.compile(r"^from [\w.]+ import (?:\(([^()]*)\)|([^\n(\\#]+)$)", re.MULTILINE)
_IS_LAZY = re.compile(r"\b_LazyModule\(")  # of transformers: it has what its modules define
_MADE_IN_C = re.compile(r"torch\.cuda\.\w+Tensor")
_DEFINES = re.compile(r"^[ \t]*(?:(?:class|def)[ \t]+(\w+)|(\w+)[ \t]*(?::[^=\n]+)?=)", re.MULTILINE)


@dataclass(frozen=True)
class Found:
    """A function or a class, and the module that defines it."""

    node: Definition
    home: InstalledModule


@dataclass(frozen=True, eq=False)
class InstalledModule:
    """One file of an installed library."""

    name: str
    path: Path
    text: str

    @property
    def package(self) -> str:
        """Return the package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @cached_property
    def is_lazy(self) -> bool:
        """Return whether it is one of transformers that imports what is asked for."""
        return _IS_LAZY.search(self.text) is not None

    @cached_property
    def may_have_more(self) -> bool:
        """Return whether it may have names that its statements do not show."""
        return _MAKES_NAMES.search(self.text) is not None

    @cached_property
    def _plain_names(self) -> frozenset[str]:
        defined = {word for pair in _DEFINED_PLAINLY.findall(self.text) for word in pair}
        lists = [part.split() for pair in _IMPORTED_PLAINLY.findall(self.text) for part in ",".join(pair).split(",")]
        return frozenset(defined | {words[-1] for words in lists if words})

    def surely_has(self, name: str) -> bool:
        """Return whether a name is bound in the plainest way, which its text shows before it is parsed."""
        return name in self._plain_names

    @cached_property
    def tree(self) -> ast.Module:
        """Return its statements; none if this Python does not understand them."""
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError):
            return ast.Module(body=[], type_ignores=[])

    @cached_property
    def bindings(self) -> dict[str, list[ast.AST]]:
        """Return the statements that bind each name; `*` stands for what the module imports with a star."""
        found: dict[str, list[ast.AST]] = {}
        for statement in _statements(self.tree.body):
            for name in _bound(statement):
                found.setdefault(name, []).append(statement)
        return found

    def imported_from(self, statement: ast.ImportFrom) -> str:
        """Return the module that a statement imports from."""
        if not statement.level:
            return statement.module or ""
        parts = self.package.split(".")
        base = ".".join(parts[: len(parts) - statement.level + 1])
        return f"{base}.{statement.module}" if statement.module else base


@dataclass(frozen=True, eq=False)
class Libraries:
    """The libraries for the Python of the nodes; `find` returns the folder of a package, or None if it is not known.

    Of a library whose version is not known, nothing is known: it may be a part of one, or made by hand.
    """

    find: FindPackage = lambda top: None
    _modules: dict[str, InstalledModule | None] = field(default_factory=dict)
    _words: dict[str, frozenset[str]] = field(default_factory=dict)

    def version(self, top: str) -> str:
        """Return the version of an installed library; empty if its metadata do not say so."""
        folder = self.find(top)
        return version_in(folder, top) if folder is not None else ""

    def module(self, name: str) -> InstalledModule | None:
        """Return a module by its name; None if it is not known, or not written in Python."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def lacks(self, name: str) -> bool:
        """Return whether a module surely does not have a name that is imported from it: `torch.utils.data.foo`."""
        owner, _, last = name.rpartition(".")
        module = self.module(owner) if owner else None
        if module is None:
            return False
        if module.surely_has(last) or _MADE_IN_C.fullmatch(name):
            return False
        if module.is_lazy:
            is_there = re.search(rf"\b{last}\b", module.text) or _has_file(module.path.parent, last)
            # Transformers 5 also has its tokenizers and image processors under the names with `Fast` that they had.
            words = {last, last.removesuffix("Fast")}
            return not is_there and words.isdisjoint(self._defined_in(name.partition(".")[0]))
        return not self._may_have(module, last)

    def lacks_module(self, name: str) -> bool:
        """Return whether there surely is no module of a name: `torch._six`."""
        owner, _, last = name.rpartition(".")
        above = self.module(owner) if owner else None
        if above is None:
            return bool(owner) and self.lacks_module(owner)
        is_file = above.path.name != "__init__.py"
        return (is_file or not _has_file(above.path.parent, last)) and not self._is_made(owner, last)

    def _is_made(self, owner: str, name: str) -> bool:
        """Return whether a package may make one of its modules as it is imported."""
        modules = [self.module(owner), self.module(owner.partition(".")[0])]
        folder = self.find(owner.partition(".")[0])
        texts = [module.text for module in modules if module is not None]
        if folder is not None and "lightning" in folder.name:  # it keeps the names of modules that it had once
            texts += [path.read_text("utf-8", "replace") for path in folder.rglob("_graveyard/*.py")]
        return any("__path__" in text or ("sys.modules" in text and name in text) for text in texts)

    def _defined_in(self, top: str) -> frozenset[str]:
        """Return the words that any module of a library defines."""
        if top not in self._words:
            folder = self.find(top)
            texts = (path.read_text("utf-8", "replace") for path in folder.rglob("*.py")) if folder is not None else ()
            self._words[top] = frozenset(word for text in texts for pair in _DEFINES.findall(text) for word in pair)
        return self._words[top]

    def definitions(self, name: str) -> list[Found] | None:
        """Return the functions or classes that a dotted name may stand for; None if it may be something else."""
        owner, _, last = name.rpartition(".")
        module = self.module(owner) if owner else None
        return None if module is None else self.named(last, module)

    def named(self, name: str, module: InstalledModule, depth: int = 0) -> list[Found] | None:
        """Return the functions or classes that a name of a module may stand for; None if it may be something else."""
        found: list[Found] = []
        statements = module.bindings.get(name) or list(self._stars(name, module))
        for statement in statements if depth < _DEEPEST else ():
            part: list[Found] | None = None
            if isinstance(statement, _DEFINED):
                part = [Found(statement, module)]
            elif isinstance(statement, ast.ImportFrom):
                original = next((one.name for one in statement.names if (one.asname or one.name) == name), name)
                source = self.module(module.imported_from(statement))
                part = None if source is None else self.named(original, source, depth + 1)
            elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
                part = self.named(statement.value.id, module, depth + 1)
            if part is None:
                return None
            found += part
        return found or None

    def _stars(self, name: str, module: InstalledModule) -> Iterator[ast.AST]:
        for statement, source in self._star_sources(module):
            if source is not None and (name in source.bindings or "*" in source.bindings):
                yield statement

    def _star_sources(self, module: InstalledModule) -> Iterator[tuple[ast.AST, InstalledModule | None]]:
        """Yield each import with a star, and the module that it imports from, if that is known."""
        for statement in module.bindings.get("*", ()):
            if isinstance(statement, ast.ImportFrom):
                yield statement, self.module(module.imported_from(statement))

    def _may_have(self, module: InstalledModule, name: str, depth: int = 0) -> bool:
        if module.surely_has(name) or depth > _DEEPEST:
            return True
        if name in module.bindings or module.may_have_more or not module.tree.body:
            return True
        if module.path.name == "__init__.py" and _has_file(module.path.parent, name):
            return True
        sources = (source for _, source in self._star_sources(module))
        return any(source is None or self._may_have(source, name, depth + 1) for source in sources)

    def _read(self, name: str) -> InstalledModule | None:
        top, *rest = name.split(".")
        folder = self.find(top)
        if folder is None or not self.version(top):
            return None
        inner = folder.joinpath(*rest)
        for path in (inner / "__init__.py", inner.with_suffix(".py") if rest else inner / "__init__.py"):
            try:
                return InstalledModule(name, path, path.read_text("utf-8"))
            except (OSError, ValueError):
                continue
        return None


def _has_file(folder: Path, name: str) -> bool:
    """Return whether a folder has a module or a package of a name, written in any language."""
    return (folder / name).is_dir() or any(folder.glob(f"{name}.*"))


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those in its conditions, but not those of functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, _BLOCKS):
            for inner in ast.iter_child_nodes(statement):
                if isinstance(inner, ast.stmt):
                    yield from _statements([inner])
                elif isinstance(inner, ast.ExceptHandler):
                    yield from _statements(inner.body)


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _DEFINED):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif not isinstance(statement, _BLOCKS):
        for part in _targets(statement):
            for inner in ast.walk(part):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.id


def _targets(statement: ast.stmt) -> Iterable[ast.AST]:
    """Return the parts of a statement that may bind names: of an assignment, not its value, which may be long."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AnnAssign) else [statement]


def version_in(folder: Path, top: str) -> str:
    """Return the version of the library in a folder; empty if its metadata do not say so."""
    known = list(folder.parent.glob(f"{top}-*.dist-info"))
    return known[0].name.removesuffix(".dist-info").rpartition("-")[2] if len(known) == 1 else ""
