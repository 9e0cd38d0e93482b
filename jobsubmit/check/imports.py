"""Compare the modules that the code imports with those that are uploaded."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

from jobsubmit.bundle.ignore import how_to_bring_back
from jobsubmit.bundle.model import Bundle, LeftOut
from jobsubmit.check.code import Code
from jobsubmit.check.program.module import FUNCTIONS, MAIN, Module, imported_names, origin, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.reading import (
    ADDS_TO_PATH,
    find_module,
    folders_of,
    modules_named_in,
    named_folders,
    spelled_out,
)
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding, Level

_OURS = ("jobsubmit",)
_OWN_PLACES = ("__file__", "sys.path[0]", "getcwd()")  # folders near them that are not uploaded are not on the nodes
_OF_BUILDS = re.compile(r"^_|version|cuda|cpp|ext|ops|lib|pb2|native|kernel|jit|grpc|C$", re.IGNORECASE)
_MAKES_FILES = re.compile(r"\b(?:cp|mv|ln|rsync|tar|unzip|make|cmake|ninja|git|wget|curl)\s|setup\.py|build")
_OBJECTS = frozenset(["self", "cls", "args", "cfg", "config", "opt", "params", "hparams", "model", "namespace", "obj"])
_LONGEST_CHAIN = 8  # of modules that import all names of another one
_ADDS_NAMES = frozenset(["setattr", "__setattr__", "globals"])
_SOME = 3  # modules that one finding names
_Found: TypeAlias = "Finding | _NotUploaded"


def check_imports(code: Code, bundle: Bundle, setup: str) -> Iterator[Finding]:
    """Yield the local modules that are imported but not uploaded; third-party packages are not checked.

    What one rule leaves out is one finding, and so is a package that does not exist. Where the `setup` makes or copies
    files, a module that is not there is none.
    """
    search = ImportSearch(code, bundle, setup)
    found = [
        one
        for module in code.program.modules.values()
        for node in module.of(ast.Import, ast.ImportFrom)
        if not may_fail(node, module) and (_is_of_start(node, module) or not is_in_branch(node, module))
        for one in _of_import(search, node, module)
    ]
    found += _of_configurations(code, search)
    found += _looked_up(code, search)
    others: dict[str, Finding] = {}
    left_out: dict[LeftOut, dict[str, _NotUploaded]] = {}
    for one in found:
        if isinstance(one, _NotUploaded):
            left_out.setdefault(one.left_out, {}).setdefault(one.path, one)
        else:
            others.setdefault(one.text, one)
    yield from others.values()
    for modules in left_out.values():
        yield _not_uploaded(list(modules.values()))


def _of_import(search: ImportSearch, node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[_Found]:
    """Yield what an import lacks: where it may not be executed, only files that are left out, or as a warning."""
    is_sure = search.code.reached.is_sure(node, module)
    is_asked = is_sure or _is_looked_up(search.code, node, module)
    if not is_asked and not _may_be_needed(search.code, node, module):
        return
    for finding in search.of(node, module):
        if isinstance(finding, _NotUploaded):
            yield finding._replace(is_sure=is_sure)
        elif is_asked:
            yield finding if is_sure else replace(finding, level="warning")


def _looked_up(code: Code, search: ImportSearch) -> Iterator[Finding]:
    """Yield an error where the job asks a local module for a name that it lacks: `models.__dict__[args.model]`."""
    attributes = [(module, node) for module, node in code.program.of(ast.Attribute) if node.attr == "modules"]
    sets_modules = any(code.program.name_of(node, module) == "sys.modules" for module, node in attributes)
    if sets_modules or not code.names.isdisjoint(_ADDS_NAMES):
        return
    for module, node in code.program.of(ast.Subscript, ast.Call):
        match node:
            case ast.Subscript(value=ast.Attribute(value=owner, attr="__dict__"), slice=key, ctx=ast.Load()):
                pass
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, key]) if not isinstance(key, ast.Constant):
                pass
            case _:
                continue
        home = code.program.modules.get(code.program.name_of(owner, module))
        if home is None or home.is_skimmed or not code.reached.is_sure(node, module) or may_fail(node, module):
            continue
        if _is_asked_for(key, node, module):
            continue
        name = code.values.of(key, module)
        is_added = isinstance(name, str) and name in code.program.attribute_stores
        if isinstance(name, str) and not is_added and not search.may_define(home, name):
            text = f"{home.path} does not define {name}, which `{unparsed(key)}` names"
            yield Finding("error", "imports", module.where(node), text, search.similar(home, name))


def _is_asked_for(key: ast.expr, node: ast.AST, module: Module) -> bool:
    """Return whether a condition around a node is about the name that is looked up: `if name in models.__dict__:`."""
    tests = (above.test for above in module.above(node) if isinstance(above, (ast.If, ast.IfExp)))
    return any(unparsed(key) in unparsed(test) for test in tests)


def _of_configurations(code: Code, search: ImportSearch) -> Iterator[_NotUploaded]:
    """Yield the modules of the classes that a configuration of the arguments names: `class_path: app.data.Module`."""
    named = {word.partition("=")[2] or word for word in code.facts.argv}
    files = {path: source for path, source in code.program.configurations.items() if path in named}
    for name in dict.fromkeys(modules_named_in(files)):
        missing = None if find_module(name, search.program.roots, search.paths) else search.left_out(name)
        if missing is not None:
            yield _NotUploaded(name, search.file_of(name), next(iter(files)), missing)


def _may_be_needed(code: Code, node: ast.Import | ast.ImportFrom, module: Module) -> bool:
    """Return whether an import is in a method that something may call by way of an object: `exp.get_data_loader()`."""
    function = module.function_of(node)
    is_method = function is not None and isinstance(module.parents.get(function), ast.ClassDef)
    return is_method and function is not None and code.may_be_used(node, module) and function.name in code.names


def _is_looked_up(code: Code, node: ast.Import | ast.ImportFrom, module: Module) -> bool:
    """Return whether an import is in a function of which only a setting says whether it is called.

    `getattr(rewards, config.reward)()`, where the setting is not known.
    """
    function = module.function_of(node)
    if function is None or module.definitions.get(function.name) is not function:
        return False
    keys = [
        code.values.of(call.args[1], home)
        for home, call in code.calls("getattr")
        if len(call.args) > 1 and code.program.name_of(call.args[0], home) == module.name
    ]
    return any(key is UNKNOWN for key in keys)


class _NotUploaded(NamedTuple):
    """A module on this machine, in a file of the code directory that an ignore rule leaves out."""

    name: str
    path: str
    where: str
    left_out: LeftOut
    is_sure: bool = True


def _not_uploaded(modules: Sequence[_NotUploaded]) -> Finding:
    """Return the finding for modules that are left out by the same rule."""
    first, *others = modules
    path, reason, _ = first.left_out
    names = ", ".join(one.name for one in modules[:_SOME])
    more = len(modules) - _SOME
    if more > 0:
        text = f"modules {names} and {more} more are in the code directory but are not uploaded: {path} is {reason}"
    elif others:
        text = f"modules {names} are in the code directory but are not uploaded: {path} is {reason}"
    else:
        text = f"module {names} is in the code directory but is not uploaded: {path} is {reason}"
    hint = how_to_bring_back(first.path, first.left_out, *(one.path for one in others))
    level: Level = "error" if any(one.is_sure for one in modules) else "warning"
    return Finding(level, "imports", first.where, text, hint)


class ImportSearch:
    """What an import finds: among the files that are uploaded, in those that are left out, or elsewhere."""

    def __init__(self, code: Code, bundle: Bundle, setup: str = "") -> None:
        self.code, self.bundle, self.setup = code, bundle, setup
        self.is_added_to = _MAKES_FILES.search(setup) is not None
        self.program = code.program
        self.paths = self.program.paths
        self.folders = folders_of(self.paths)
        self.has_more_places = self.is_added_to or (
            "path" in code.names
            and any(
                _ends_in_path(node, module)
                and code.program.name_of(node, module) == "sys.path"
                and not self._is_among_ours(node, module)
                and self._is_before_imports(node, module)
                and code.reached.of(node, module)
                for module in code.program.modules.values()
                if any(name.partition(".")[0] == "sys" for name in module.aliases.values())
                for node in module.of(ast.Attribute, ast.Name)
            )
        )

    def _is_before_imports(self, node: ast.AST, module: Module) -> bool:
        """Return whether a use of sys.path may come before imports at the top: not in methods, or what `main` calls."""
        function = module.function_of(node)
        is_method = function is not None and isinstance(module.parents.get(function), ast.ClassDef)
        if function is None or not (is_method or module.definitions.get(function.name) is function):
            return True
        calls = self.program.calls_to(function, module)
        return not (calls or is_method) or any(_is_at_import(call, home) for home, call in calls)

    def _is_among_ours(self, node: ast.AST, module: Module) -> bool:
        """Return whether a use of sys.path adds a folder that is uploaded, by its name, or only looks into it."""
        method = module.parents.get(node)
        if isinstance(method, ast.Compare) or (isinstance(method, ast.Subscript) and isinstance(method.ctx, ast.Load)):
            return True
        call = module.parents.get(method) if isinstance(method, ast.Attribute) else None
        if not isinstance(call, ast.Call) or spelled(call.func) not in ADDS_TO_PATH:
            return False
        if any(folder.rstrip("/") in self.folders for folder in named_folders(call, module)):
            return True
        given = [node for arg in call.args[-1:] for node in (arg, *walk(arg))]
        inner = [node for node in given if isinstance(node, ast.expr)]
        parts = "\n".join(unparsed(one) for node in inner for one in spelled_out(node, module))
        return any(place in parts for place in _OWN_PLACES)

    @cached_property
    def packages_used(self) -> frozenset[str]:
        """Return the packages that modules of the program are in."""
        parts = (name.split(".") for name in self.program.modules)
        return frozenset(".".join(one[:end]) for one in parts for end in range(1, len(one)))

    @cached_property
    def required(self) -> str:
        """Return all files of requirements, in lower case."""
        names = ("pyproject.toml", "setup.py", "environment.yml")
        files = [file for file in self.bundle.files if "requirements" in file.path or file.path.endswith(names)]
        texts = [Path(file.source).read_text(errors="replace") for file in files]
        return "\n".join(texts).lower().replace("_", "-")

    def of(self, node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[_Found]:
        where = module.where(node)
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from self._relative(node, module, where)
            return
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for name in names:
            yield from self._absolute(name, module, where)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from self._member(node.module or "", alias.name, where)

    def packages(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        """Return the top names of an import that are neither the user's own nor Python's."""
        if isinstance(node, ast.ImportFrom):
            names = [] if node.level else [node.module or ""]
        else:
            names = [alias.name for alias in node.names]
        tops = {name.partition(".")[0] for name in names}
        others = (top for top in tops if top not in sys.stdlib_module_names and top not in _OURS)
        return [
            top
            for top in others
            if not self._is_local(top) and not self._is_folder(top)
            if not self.left_out(top) and not self._left_out_of_path(top)
        ]

    @cached_property
    def importers(self) -> Mapping[str, Sequence[tuple[Module, ast.Import | ast.ImportFrom]]]:
        """Return the imports that are executed of each module of the program."""
        found: dict[str, list[tuple[Module, ast.Import | ast.ImportFrom]]] = {}
        for home, node in self.program.of(ast.Import, ast.ImportFrom):
            names = self.program.modules.keys() & set(imported_names(node, home))
            for name in names if self.code.reached.of(node, home) else ():
                found.setdefault(name, []).append((home, node))
        return found

    def is_imported_by_choice(self, node: ast.AST, module: Module) -> bool:
        """Return whether an import at the top of a module is executed only if a condition has the module imported."""
        importers = self.importers.get(module.name, ()) if module.function_of(node) is None else ()
        return bool(importers) and all(is_in_branch(one, home) or may_fail(one, home) for home, one in importers)

    def _relative(self, node: ast.ImportFrom, module: Module, where: str) -> Iterator[_Found]:
        if module.name == MAIN and not module.home:
            dots = "." * node.level + (node.module or "")
            yield Finding(
                "error",
                "imports",
                where,
                f"`from {dots} import …` fails in the boot file: it runs as a script, outside any package",
                "import it without the dot: Python searches the boot file's folder",
            )
            return
        base = origin(node, module)
        if base and node.module:
            yield from self._absolute(base, module, where, is_local=True)
        for alias in node.names if base else ():
            full = f"{base}.{alias.name}"
            missing = None if self._is_module(full) else self.left_out(full)
            if missing and module.name == base:  # its own import would count as a definition
                yield _NotUploaded(full, self.file_of(full), where, missing)
            elif node.module:
                yield from self._member(base, alias.name, where)

    def _absolute(self, name: str, module: Module, where: str, *, is_local: bool = False) -> Iterator[_Found]:
        top = name.partition(".")[0]
        if find_module(name, self.program.roots, self.paths) or self._is_folder(name):
            return
        if missing := self.left_out(name):
            yield _NotUploaded(name, self.file_of(name), where, missing)
        elif missing := self._left_out_of_path(name):
            yield _NotUploaded(name, f"{missing.path}{name.partition('.')[0]}", where, missing)
        elif is_local or ("." in name and (self._is_local(top) or self._is_own_folder(top))):
            if not self.has_more_places and not self._is_made(name) and not self._is_built(name):
                text = f"module {self._first_missing(name)} does not exist in {self.bundle.root}"
                yield Finding("error", "imports", where, text, "correct its name")
        elif top not in sys.stdlib_module_names and "." not in name:
            yield from self._elsewhere(top, where)

    def _member(self, base: str, name: str, where: str) -> Iterator[_Found]:
        """Yield what is wrong with `from base import name` where name is a module that is not uploaded."""
        full = f"{base}.{name}"
        owner = self.program.modules.get(base)
        is_asked = owner is not None and name != "*" and not self._defines(full) and not self._is_module(full)
        if owner is not None and is_asked:
            if not self.left_out(full) and not (owner.is_package and self._may_be_made(base, name)):
                text = f"{owner.path} does not define {name}"
                yield Finding("error", "imports", where, text, self.similar(owner, name))
                return
        # A folder without __init__.py does not hide an installed package of the same name.
        is_folder = owner is None and base in self.packages_used and self._is_folder(base)
        is_folder = is_folder and self._is_own_folder(base.partition(".")[0])
        if is_folder and name != "*" and not self.has_more_places:
            if not (self._is_module(full) or self.left_out(full) or self._is_built(base)):
                text = f"module {full} does not exist in {self.bundle.root}"
                yield Finding("error", "imports", where, text, "correct its name")
                return
        if self._is_local(base.partition(".")[0]) and not find_module(full, self.program.roots, self.paths):
            if not self._defines(full) and (missing := self.left_out(full)):
                yield _NotUploaded(full, self.file_of(full), where, missing)

    def _may_be_made(self, base: str, name: str) -> bool:
        """Return whether the setup, or a compiler, may make a module: one of them, or its own name, says so."""
        if not self.is_added_to and not self._is_built(base):
            return False
        is_source = any(PurePosixPath(file.path).stem == name for file in self.bundle.files)
        is_named = re.search(rf"\b{re.escape(name)}\b", self.setup) is not None
        return is_source or is_named or _OF_BUILDS.search(name) is not None

    def _first_missing(self, name: str) -> str:
        """Return the first of a module and the packages above it that does not exist."""
        parts = name.split(".")
        above = (".".join(parts[:length]) for length in range(1, len(parts)))
        return next((one for one in above if not self._is_module(one)), name)

    def _is_module(self, full: str) -> bool:
        return bool(find_module(full, self.program.roots, self.paths)) or self._is_folder(full)

    def may_define(self, owner: Module, name: str) -> bool:
        """Return whether a name may be that of something in a module, or of a module in a package."""
        return self._defines(f"{owner.name}.{name}") or self._is_module(f"{owner.name}.{name}")

    def similar(self, owner: Module, name: str) -> str:
        """Return which name of a module may be meant."""
        import difflib

        top = [node.id for node in owner.of(ast.Name) if isinstance(node.ctx, ast.Store)]
        found = difflib.get_close_matches(name, [*owner.definitions, *owner.aliases, *top], 1)
        return f"use {found[0]}, or define {name}" if found else "correct the name, or define it in that module"

    def _is_local(self, top: str) -> bool:
        """Return whether a name is surely ours: a folder without __init__.py gives way to an installed package."""
        return bool(find_module(top, self.program.roots, self.paths))

    def _is_folder(self, name: str) -> bool:
        return any(root + name.replace(".", "/") in self.folders for root in self.program.roots)

    def _is_own_folder(self, top: str) -> bool:
        """Return whether a name is that of a folder with modules, and of no installed package."""
        return self._is_folder(top) and not _installed(top)

    def _defines(self, full: str, depth: int = 0) -> bool:
        """Return whether a name may be an attribute of the module above it."""
        owner = self.program.modules.get(full.rpartition(".")[0])
        if owner is None or depth > _LONGEST_CHAIN:
            return False
        name = full.rpartition(".")[2]
        if name in owner.names or name in owner.definitions or name in owner.aliases or name in owner.words:
            return True
        local = [star for star in owner.stars if star in self.program.modules]
        if len(local) < len(owner.stars) or "__getattr__" in owner.definitions or name.startswith("__"):
            return True
        return _sets_own_names(owner) or any(
            self._is_module(f"{star}.{name}") or self._defines(f"{star}.{name}", depth + 1) for star in local
        )

    def _is_made(self, name: str) -> bool:
        """Return whether the program may make a module, or says itself where to look for those of a package."""
        parts = name.split(".")
        above = (self.program.modules.get(".".join(parts[:length])) for length in range(1, len(parts)))
        return self._registers_modules or any("__path__" in one.names | one.words for one in above if one is not None)

    @cached_property
    def _registers_modules(self) -> bool:
        """Return whether a module is put into sys.modules by hand: `sys.modules["app.old"] = new`."""
        uses = [
            module.parents.get(node)
            for module, node in self.program.of(ast.Attribute)
            if node.attr == "modules" and self.program.name_of(node, module) == "sys.modules"
        ]
        is_stored = (isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) for one in uses)
        is_filled = (isinstance(one, ast.Attribute) and one.attr in ("setdefault", "update") for one in uses)
        return any(is_stored) or any(is_filled)

    def _is_built(self, name: str) -> bool:
        """Return whether a module may be compiled, from sources beside it."""
        tops = tuple(root + name.partition(".")[0] + "/" for root in self.program.roots)
        endings = (".pyx", ".so", ".pyd", "/setup.py", ".proto", ".cu", ".cpp", ".cc")
        return any(file.path.startswith(tops) and file.path.endswith(endings) for file in self.bundle.files)

    def left_out(self, name: str) -> LeftOut | None:
        """Return what left a module out that is on the disk."""
        path = self.file_of(name)
        return self.bundle.left_out_by(path) if path else None

    def file_of(self, name: str) -> str:
        """Return where a module is on the disk, or nothing; it need not be uploaded."""
        bases = [root + name.replace(".", "/") for root in self.program.roots]
        paths = [path for base in bases for path in (f"{base}.py", f"{base}/__init__.py")]
        root = str(self.bundle.root)
        return next((path for path in paths if os.path.lexists(f"{root}/{path}")), "")

    def _left_out_of_path(self, name: str) -> LeftOut | None:
        """Return the folder that is left out and has a module, where the code adds one of its name to sys.path."""
        top = name.partition(".")[0]
        for left in self.bundle.left_out if self.texts_of_path and not _installed(top) else ():
            folder = self.bundle.root / left.path
            is_added = left.rule and left.path.strip("/").rpartition("/")[2] in self.texts_of_path
            if is_added and ((folder / f"{top}.py").is_file() or any((folder / top).glob("*.py"))):
                return left
        return None

    @cached_property
    def texts_of_path(self) -> frozenset[str]:
        """Return the names in the texts of modules that change sys.path."""
        homes = [module for module, node in self.program.of(ast.Attribute) if spelled(node) == "sys.path"]
        texts = (node.value for home in homes for node in home.of(ast.Constant) if isinstance(node.value, str))
        return frozenset(part for text in texts for part in text.split("/") if part)

    def _is_required(self, top: str) -> bool:
        """Return whether a file of requirements names a package like this."""
        return top.lower().replace("_", "-") in self.required

    def _elsewhere(self, top: str, where: str) -> Iterator[Finding]:
        """Yield where a module that is not in the bundle lies on this machine, if it is the user's own."""
        boot_folder = self.program.roots[0]
        if self._is_required(top):
            return
        for folder in (Path(), Path("..")):
            path = _own_file(self.bundle.root, folder, top)
            if (folder == Path() and not boot_folder) or path is None or _installed(top):
                continue
            if self.has_more_places:
                return
            place = "beside the boot file" if folder == Path() else "in code_dir"
            hint = "set env: {PYTHONPATH: .}, or move it" if folder == Path() else "move it into the code directory"
            yield Finding("warning", "imports", where, f"module {top} is at {path}, not {place}", hint)
            return


def _is_at_import(node: ast.AST, module: Module) -> bool:
    """Return whether something is executed while its module is imported."""
    above = list(module.above(node))
    is_in_main = any(isinstance(one, ast.If) and "__name__" in unparsed(one.test) for one in above)
    return not is_in_main and not any(isinstance(one, FUNCTIONS) for one in above)


def _own_file(root: Path, folder: Path, top: str) -> Path | None:
    """Return the file of a module or a package in a folder, if it has one."""
    paths = (folder / f"{top}.py", folder / top / "__init__.py")
    return next((path for path in paths if (root / path).is_file()), None)


@cache
def _installed(top: str) -> bool:
    """Return whether a package of this name is installed here: then it is taken to be meant."""
    names = (top, f"{top}.py", f"{top}.so")
    is_there = any((folder / name).exists() for folder in _places_of_packages() for name in names)
    return is_there or (_has_packages_elsewhere() and top in _packages_here())


@cache
def _places_of_packages() -> Sequence[Path]:
    return [Path(folder) for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))]


@cache
def _has_packages_elsewhere() -> bool:
    """Return whether packages are installed that stay in their own folders, as `pip install -e` has it."""
    return any(any(folder.glob(name)) for folder in _places_of_packages() for name in ("__editable__*", "*.egg-link"))


@cache
def _packages_here() -> frozenset[str]:
    """Return the modules of the packages that are installed here: reading them takes a second."""
    import importlib.metadata

    return frozenset(importlib.metadata.packages_distributions())


def _sets_own_names(module: Module) -> bool:
    """Return whether a module may set its own names by what is computed: `globals()[name] = …`, `exec(…)`."""
    for call in module.of(ast.Call):
        name, above = spelled(call.func), module.parents.get(call)
        if name in ("exec", "__import__"):
            return True
        if name in ("globals", "locals", "vars") and not call.args:
            is_read = isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Load)
            if not is_read and getattr(above, "attr", "") not in ("get", "keys", "items", "values"):
                return True
        function = module.function_of(call)
        own = parameters(function) & _OBJECTS if function is not None else ()
        if name == "setattr" and call.args and spelled(call.args[0]).partition(".")[0] not in own:
            return True  # it may be that of `sys.modules[__name__]`
    return False


def _ends_in_path(node: ast.Attribute | ast.Name, module: Module) -> bool:
    """Return whether a name may mean `sys.path`, by its last part: most do not, and need not be looked up."""
    last = node.attr if isinstance(node, ast.Attribute) else module.aliases.get(node.id, "").rpartition(".")[2]
    return last == "path"


def may_fail(node: ast.AST, module: Module) -> bool:
    """Return whether the program goes on if an import fails."""
    inside: ast.AST = node
    for above in module.above(node):
        if isinstance(above, ast.Try) and inside not in above.orelse:
            return True
        inside = above
    return False


def _is_of_start(node: ast.AST, module: Module) -> bool:
    """Return whether an import is executed where the file is started: right below `if __name__ == "__main__":`."""
    return node in module.of_own_start and sum(isinstance(above, ast.If) for above in module.above(node)) == 1


def is_in_branch(node: ast.AST, module: Module) -> bool:
    """Return whether an import is for type checkers, or depends on a condition."""
    return any(isinstance(above, ast.If) for above in module.above(node))
