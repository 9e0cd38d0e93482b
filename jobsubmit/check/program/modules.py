"""The boot file and the local modules that it imports, as syntax trees."""

from __future__ import annotations

import ast
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from jobsubmit.bundle.model import Bundle

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MAIN = "__main__"
_MOST_MODULES = 2000
# Modules are read from the boot file on, until they are so many bytes: then only those whose words tell of the start,
# of processes and of data, and of those, too, no more than so many; of all others the imports.
_READ_WHOLE, _READ_MOST = 500_000, 800_000
_TELLS = re.compile(
    rb"distributed|argparse|ArgumentParser|add_argument|parse_args|parse_known|environ|getenv|set_device|\.cuda\(|cuda:"
    rb"|['\"]cuda|DataLoader|[Ss]ampler|\.spawn|multiprocessing|subprocess|sys\.argv|import_module|exec\(|set_epoch"
    rb"|init_rpc|all_reduce|get_rank|world_size|import (?:click|typer|fire|absl|hydra|tyro)|HfArgumentParser"
)
_IMPORT = re.compile(rb"^(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(?:\([^)]*\)|(?:[^\n\\]|\\\r?\n)*)", re.MULTILINE)
_WORD = re.compile(rb"[A-Za-z_]\w*")
_LARGEST = 4 << 20
_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml")
_MOST_CONFIGURATIONS, _LONGEST_CONFIGURATION = 500, 64 << 10
_IMPORTS_BY_NAME = re.compile(rb"^\s*(?:import|from)\s+(?:hydra|jsonargparse)\b|LightningCLI", re.MULTILINE)
_CLASS_NAME = re.compile(rb"^[\s-]*(?:_target_|class_path):\s*['\"]?([A-Za-z_][\w.]*)\.\w+", re.MULTILINE)
_INSTALLED_FROM = ("", "src/")  # packages of the code that the nodes may have installed (pip install -e .)
ADDS_TO_PATH = ("sys.path.insert", "sys.path.append")
EXITS = ("sys.exit", "exit", "quit", "os._exit")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NAMESPACES = (*_SCOPES, *_COMPREHENSIONS)
_LONGEST_CHAIN = 20
_READS = ("keys", "values", "items", "get", "copy", "index", "count", "join", "format", "startswith", "endswith")


@dataclass(frozen=True, eq=False)
class Module:
    """One file: its tree, what its imports call things, and what it defines at its top.

    Of one that is `skimmed` the tree has its imports only, and `words` is every name in it.
    """

    path: str
    name: str
    tree: ast.Module
    is_package: bool
    aliases: Mapping[str, str] = field(repr=False)
    stars: tuple[str, ...] = field(repr=False)
    definitions: Mapping[str, Definition] = field(repr=False)
    by_type: Mapping[type, Sequence[ast.AST]] = field(repr=False)
    parents: Mapping[ast.AST, ast.AST] = field(repr=False)
    words: frozenset[str] = field(default=frozenset(), repr=False)
    home: str = ""  # of the boot file, the package that `python -m` starts it in

    @property
    def is_skimmed(self) -> bool:
        """Return whether only its imports were read."""
        return bool(self.words)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return every variable and function that it names."""
        return frozenset(node.id for node in self.of(ast.Name))

    @cached_property
    def with_calls(self) -> frozenset[ast.AST]:
        """Return the expressions in which something is called, or chosen between."""
        found: set[ast.AST] = set()
        for inner in self.of(ast.Call, ast.IfExp, ast.BoolOp):
            for node in itertools.chain([inner], self.above(inner)):
                if node in found or isinstance(node, ast.stmt):
                    break
                found.add(node)
        return frozenset(found)

    def of(self, *types: type[ast.AST]) -> Iterator[Any]:
        """Yield every node of some types, and of these only."""
        for kind in types:
            yield from self.by_type.get(kind, ())

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the innermost function that a node is in."""
        return next((above for above in self.above(node) if isinstance(above, FUNCTIONS)), None)

    def scope_of(self, node: ast.AST) -> Function | ast.Module:
        """Return the innermost function that a node is in, or else the module."""
        return self.function_of(node) or self.tree

    def called_as(self, function: Function) -> str:
        """Return the whole name by which a function is called: for what makes objects, the name of its class."""
        owner = self.parents.get(function)
        is_maker = function.name == "__init__" and isinstance(owner, ast.ClassDef)
        return f"{self.name}.{owner.name if is_maker else function.name}"  # type: ignore[union-attr] # it is a class

    @cached_property
    def stores(self) -> Mapping[tuple[ast.AST, str], Sequence[ast.Name]]:
        """Return the places that set each variable, by function (or the module's tree) and name."""
        found: dict[tuple[ast.AST, str], list[ast.Name]] = {}
        for node in self.of(ast.Name):
            if isinstance(node.ctx, (ast.Store, ast.Del)):
                functions = [above for above in self.above(node) if isinstance(above, FUNCTIONS)]
                for scope in (*functions, self.tree):
                    found.setdefault((scope, node.id), []).append(node)
        return found

    @cached_property
    def own_stores(self) -> Mapping[tuple[ast.AST, str], Sequence[ast.Name]]:
        """Return the places that set each variable of a function, or of the module's tree: none of inner scopes."""
        found: dict[tuple[ast.AST, str], list[ast.Name]] = {}
        elsewhere = {(self.function_of(node), name) for node in self.of(ast.Global) for name in node.names}
        for node in self.of(ast.Name):
            if isinstance(node.ctx, ast.Load):
                continue
            scope = next((above for above in self.above(node) if isinstance(above, _NAMESPACES)), self.tree)
            if not isinstance(scope, _COMPREHENSIONS):
                home = self.tree if (scope, node.id) in elsewhere else scope
                found.setdefault((home, node.id), []).append(node)
        return found

    @cached_property
    def functions(self) -> Mapping[str, Sequence[Function]]:
        """Return all functions by name, those inside others included."""
        found: dict[str, list[Function]] = {}
        for node in self.of(ast.FunctionDef, ast.AsyncFunctionDef):
            found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def assigned_calls(self) -> Mapping[str, Sequence[ast.Call]]:
        """Return the calls whose results are assigned to each variable."""
        found: dict[str, list[ast.Call]] = {}
        for node in self.of(ast.Assign):
            if isinstance(node.value, ast.Call):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(node.value)
        return found

    @cached_property
    def returning(self) -> frozenset[ast.AST]:
        """Return the nodes that may leave the function they are in."""
        found: set[ast.AST] = set()
        for node in self.of(ast.Return):
            found.add(node)
            found.update(itertools.takewhile(lambda above: not isinstance(above, _SCOPES), self.above(node)))
        return frozenset(found)

    @cached_property
    def exiting(self) -> frozenset[ast.AST]:
        """Return the nodes that may end the program."""
        exits = [call for call in self.of(ast.Call) if spelled(call.func) in EXITS]
        return frozenset(node for call in exits for node in (call, *self.above(call)))

    @cached_property
    def leaving(self) -> frozenset[ast.AST]:
        """Return the nodes that may leave the block they are in, each with those around it in the same function."""
        found: set[ast.AST] = set()
        exits = (call for call in self.of(ast.Call) if spelled(call.func) in EXITS)
        for node in itertools.chain(self.of(ast.Return, ast.Raise, ast.Break, ast.Continue), exits):
            found.add(node)
            found.update(itertools.takewhile(lambda above: not isinstance(above, _SCOPES), self.above(node)))
        return frozenset(found)

    @cached_property
    def mentioned(self) -> Mapping[ast.AST, Sequence[ast.Name]]:
        """Return the functions and classes that each statement names without calling them there."""
        found: dict[ast.AST, list[ast.Name]] = {}
        for node in self.of(ast.Name):
            parent = self.parents.get(node)
            is_used = (
                isinstance(parent, (ast.Attribute, ast.ClassDef, *FUNCTIONS)) or getattr(parent, "func", 0) is node
            )
            if (
                isinstance(node.ctx, ast.Load)
                and not is_used
                and (node.id in self.definitions or node.id in self.aliases)
            ):
                statement = next(above for above in self.above(node) if isinstance(above, ast.stmt))
                found.setdefault(statement, []).append(node)
        return found

    def where(self, node: ast.AST) -> str:
        """Return `train.py:12`."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node is in, from the inside out."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def package_of(self, level: int) -> str:
        """Return the package that so many dots of a relative import mean; empty where there is none."""
        parts = [*filter(None, self.home.split(".")), MAIN] if self.name == MAIN else self.name.split(".")
        up = level - 1 if self.is_package else level
        return ".".join(parts[: len(parts) - up]) if up < len(parts) else ""


@dataclass(frozen=True, eq=False)
class Program:
    """The modules that a boot file leads to; `roots` are the folders its imports are looked up in.

    `broken` are the files among them that are not Python, by path; `unread` are modules that are imported and are among
    the files, but in no root: the nodes may have them installed. `configurations` are the files with values, by path.
    """

    boot: Module
    modules: Mapping[str, Module]
    roots: tuple[str, ...]
    paths: frozenset[str] = field(repr=False)
    broken: Mapping[str, SyntaxError] = field(default_factory=dict, repr=False)
    unread: frozenset[str] = field(default=frozenset(), repr=False)
    configurations: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of(self, *types: type[ast.AST]) -> Iterator[tuple[Module, Any]]:
        """Yield every node of some types, with its module."""
        for module in self.modules.values():
            for node in module.of(*types):
                yield module, node

    @cached_property
    def calls(self) -> Sequence[tuple[Module, ast.Call, str]]:
        """Return every call, with the whole name of what is called."""
        return [(module, call, self.name_of(call.func, module)) for module, call in self.of(ast.Call)]

    @cached_property
    def calls_of(self) -> Mapping[str, Sequence[tuple[Module, ast.Call]]]:
        """Return the calls of each whole name."""
        found: dict[str, list[tuple[Module, ast.Call]]] = {}
        for module, call, name in self.calls:
            found.setdefault(name, []).append((module, call))
        return found

    @cached_property
    def stored_attributes(self) -> frozenset[str]:
        """Return the attributes that anything sets."""
        return frozenset(self.attribute_stores)

    @cached_property
    def attribute_stores(self) -> Mapping[str, Sequence[tuple[Module, ast.Attribute]]]:
        """Return the places that set each attribute, of any object."""
        found: dict[str, list[tuple[Module, ast.Attribute]]] = {}
        for module, node in self.of(ast.Attribute):
            if not isinstance(node.ctx, ast.Load):
                found.setdefault(node.attr, []).append((module, node))
        return found

    @cached_property
    def named_values(self) -> Mapping[str, Sequence[tuple[Module, ast.expr]]]:
        """Return the values that SimpleNamespace gets by each name: those of its attributes."""
        found: dict[str, list[tuple[Module, ast.expr]]] = {}
        for module, call, name in self.calls:
            for keyword in call.keywords if name.endswith("SimpleNamespace") else ():
                if keyword.arg is not None:
                    found.setdefault(keyword.arg, []).append((module, keyword.value))
        return found

    @cached_property
    def filled(self) -> frozenset[str]:
        """Return the variables whose containers are changed after they were made."""
        found: set[str] = set()
        for _, node in self.of(ast.Subscript, ast.Call, ast.AugAssign):
            target: ast.AST | None = None
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                target = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in _READS:
                target = node.func.value
            elif isinstance(node, ast.AugAssign):
                target = node.target
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, (ast.Name, ast.Attribute)):
                found.add(target.id if isinstance(target, ast.Name) else target.attr)
        return frozenset(found)

    @cached_property
    def is_dynamic(self) -> bool:
        """Return whether variables of modules may be set indirectly."""
        return any(name in ("exec", "globals", "setattr") for _, _, name in self.calls)

    @cached_property
    def inherited(self) -> frozenset[str]:
        """Return the names of the classes that others inherit from."""
        return frozenset(spelled(base).rpartition(".")[2] for _, node in self.of(ast.ClassDef) for base in node.bases)

    @cached_property
    def methods(self) -> Mapping[str, Sequence[tuple[Module, ast.ClassDef, Function]]]:
        """Return the methods of all classes at the top of modules, by their names."""
        found: dict[str, list[tuple[Module, ast.ClassDef, Function]]] = {}
        for module in self.modules.values():
            classes = [owner for owner in module.definitions.values() if isinstance(owner, ast.ClassDef)]
            for owner in classes:
                for item in owner.body:
                    if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        found.setdefault(item.name, []).append((module, owner, item))
        return found

    def name_of(self, node: ast.AST, module: Module) -> str:
        """Return the whole dotted name of an expression, such as torch.distributed.barrier; empty if it has none."""
        if isinstance(node, ast.Attribute):
            base = self.name_of(node.value, module)
            return f"{base}.{node.attr}" if base else ""
        if not isinstance(node, ast.Name):
            return ""
        if node.id in module.definitions:
            return f"{module.name}.{node.id}"
        if node.id in module.aliases:
            return self._followed(module.aliases[node.id])
        for star in module.stars:
            if star in self.modules and node.id in self.modules[star].definitions:
                return f"{star}.{node.id}"
            if star.startswith("torch"):
                return f"{star}.{node.id}"
        return node.id

    def _followed(self, name: str, depth: int = 0) -> str:
        """Return what a name of a local module means where that module imported it from elsewhere."""
        owner, _, last = name.rpartition(".")
        module = self.modules.get(owner)
        if module is None or last in module.definitions or last not in module.aliases or depth > _LONGEST_CHAIN:
            return name
        return self._followed(module.aliases[last], depth + 1)

    def definition(self, name: str) -> tuple[Module, Definition] | None:
        """Return the function or class of a local module that a whole name means."""
        owner, _, last = name.rpartition(".")
        module = self.modules.get(owner)
        return (module, module.definitions[last]) if module and last in module.definitions else None

    def called(self, call: ast.Call, module: Module) -> tuple[Module, Definition] | None:
        """Return what a call calls: a function or class by its name, or the only method of that name."""
        found = self.definition(self.name_of(call.func, module))
        if found is None and isinstance(call.func, ast.Attribute):
            methods = self.methods.get(call.func.attr, ())
            return (methods[0][0], methods[0][2]) if len(methods) == 1 else None
        return found

    def imports(self, *packages: str) -> bool:
        """Return whether any module imports one of these packages."""
        return any(
            name == package or name.startswith(f"{package}.")
            for module in self.modules.values()
            for name in (*module.aliases.values(), *module.stars)
            for package in packages
        )


def parsed(source: str | Path) -> ast.Module:
    """Return the tree of a file; raise SyntaxError, ValueError, RecursionError or OSError where there is none."""
    return parse(Path(source).read_bytes(), str(source))


def parse(data: bytes, name: str) -> ast.Module:
    """Return the tree of a text; raise SyntaxError, ValueError or RecursionError where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data, filename=name)


def _only_imports(data: bytes) -> bytes:
    """Return a text with nothing but its unindented imports, each in its line."""
    kept = bytearray()
    end = 0
    for match in _IMPORT.finditer(data):
        kept += b"\n" * data.count(b"\n", end, match.start()) + match[0]
        end = match.end()
    return bytes(kept)


def load_program(
    bundle: Bundle, boot_file: str, more_roots: tuple[str, ...] = (), *, is_module: bool = False
) -> Program | None:
    """Read the boot file and all that it imports locally; None where the boot file is not Python.

    With `is_module`, it is started as `python -m`: imports begin in the code directory, not in its own folder.
    """
    paths = frozenset(file.path for file in bundle.files if file.path.endswith(".py"))
    sources = {file.path: file.source for file in bundle.files if file.path in paths and file.size < _LARGEST}
    if boot_file not in sources:
        return None
    configurations = {file.path: file.source for file in bundle.files if file.path.endswith(_CONFIGURATIONS)}
    folders = folders_of(paths)
    folder = PurePosixPath(boot_file).parent.as_posix()
    roots = ("" if folder == "." or is_module else f"{folder}/", *more_roots)
    home = folder.replace("/", ".") if is_module and folder != "." else ""
    modules: dict[str, Module] = {}
    broken: dict[str, SyntaxError] = {}
    unread: set[str] = set()
    waiting = [(MAIN, boot_file)]
    read = 0
    while waiting and len(modules) < _MOST_MODULES:
        name, path = waiting.pop(0)
        if name in modules:
            continue
        try:
            data = Path(sources[path]).read_bytes()
            is_skimmed = read > _READ_WHOLE and (read > _READ_MOST or not _TELLS.search(data))
            tree = parse(_only_imports(data) if is_skimmed else data, path)
        except SyntaxError as error:
            broken[path] = error
            continue
        except (KeyError, ValueError, RecursionError, MemoryError, OSError):
            continue
        read += 0 if is_skimmed else len(data)
        modules[name] = module = _module(name, path, tree, home if name == MAIN else "")
        if b"sys.path" in data:
            roots = tuple(dict.fromkeys((*roots, *_added_roots(module, folders))))
        if is_skimmed:
            words = frozenset(word.decode() for word in _WORD.findall(data))
            modules[name] = module = replace(module, words=words | {"pass"})
        imports = [name for node in module.of(ast.Import, ast.ImportFrom) for name in imported_names(node, module)]
        if _IMPORTS_BY_NAME.search(data):
            imports += _named_in(configurations)
        for imported in dict.fromkeys(imports):
            found = find_module(imported, roots, paths)
            if not found and find_module(imported, _INSTALLED_FROM, paths):
                unread.add(imported)
            if found and found != boot_file and imported not in modules:
                waiting.append((imported, found))
    if MAIN not in modules:
        return None
    missing = frozenset(unread - modules.keys())
    return Program(modules[MAIN], modules, roots, paths, broken, missing, configurations)


def _named_in(configurations: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules of the classes that configurations name: `_target_: package.module.Class`."""
    for path, source in itertools.islice(configurations.items(), _MOST_CONFIGURATIONS):
        if not path.endswith((".yaml", ".yml")):
            continue
        with suppress(OSError), Path(source).open("rb") as stream:
            for found in _CLASS_NAME.finditer(stream.read(_LONGEST_CONFIGURATION)):
                yield found[1].decode()


def folders_of(paths: Iterable[str]) -> frozenset[str]:
    """Return every folder that contains one of the paths."""
    return frozenset(path[: end.start()] for path in paths for end in re.finditer("/", path))


def _added_roots(module: Module, folders: frozenset[str]) -> Iterator[str]:
    """Yield the folders of the code that a module may add to sys.path, whatever its own folder is taken for.

    A folder that is named is looked for beside the module and above it; where none is named, it is one of these.
    """
    for call in module.of(ast.Call):
        if spelled(call.func) in ADDS_TO_PATH:
            named = named_folders(call, module)
            yield from (folder for folder in named or _above(module) if folder.rstrip("/") in folders or not folder)


def named_folders(call: ast.Call, module: Module) -> list[str]:
    """Return the folders that a change of sys.path may mean by the texts in it: beside the module, and above it."""
    words = [getattr(node, "value", "") for node in ast.walk(call.args[-1])] if call.args else []
    names = [word.strip("./") for word in words if isinstance(word, str)]
    return [f"{base}{name}/" for name in names for base in _above(module) if name]


def _above(module: Module) -> list[str]:
    return [f"{folder}/" if str(folder) != "." else "" for folder in PurePosixPath(module.path).parents]


def find_module(name: str, roots: tuple[str, ...], paths: frozenset[str]) -> str | None:
    """Return the file that a dotted name imports, if it is among the paths."""
    for root in roots:
        base = root + name.replace(".", "/")
        for path in (f"{base}/__init__.py", f"{base}.py"):
            if path in paths:
                return path
    return None


def imported_names(node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[str]:
    """Yield the dotted names of every module that an import may mean, packages above them first."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = origin(node, module)
        names = [base, *(f"{base}.{name}" for name in names)] if base else []
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def origin(node: ast.ImportFrom, module: Module) -> str:
    """Return the module that names are imported from, relative ones resolved; empty where that is nowhere."""
    if not node.level:
        return node.module or ""
    package = module.package_of(node.level)
    return ".".join(filter(None, [package, node.module])) if package else ""


def _module(name: str, path: str, tree: ast.Module, home: str = "") -> Module:
    by_type, parents = _laid_out(tree)
    is_package = path.endswith("/__init__.py")
    bare = Module(path, name, tree, is_package, {}, (), {}, by_type, parents, home=home)
    aliases: dict[str, str] = {}
    stars: list[str] = []
    for node in bare.of(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            base = origin(node, bare)
            for alias in node.names:
                if alias.name == "*":
                    stars.append(base)
                else:
                    aliases[alias.asname or alias.name] = f"{base}.{alias.name}"
    return replace(bare, aliases=aliases, stars=tuple(stars), definitions=dict(_defined(tree.body)))


def _laid_out(tree: ast.Module) -> tuple[dict[type, list[ast.AST]], dict[ast.AST, ast.AST]]:
    """Return the nodes of a tree by their type, and the one that each is in."""
    by_type: dict[type, list[ast.AST]] = {}
    parents: dict[ast.AST, ast.AST] = {}
    waiting: list[ast.AST] = [tree]
    for node in waiting:
        by_type.setdefault(type(node), []).append(node)
        for value in vars(node).values():
            for inner in value if type(value) is list else (value,):
                if isinstance(inner, ast.AST) and not isinstance(inner, ast.expr_context):
                    parents[inner] = node
                    waiting.append(inner)
    return by_type, parents


def returned_values(function: Function) -> list[ast.expr]:
    """Return the expressions that a function returns, with those of functions inside it."""
    return [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]


def spelled(node: ast.AST) -> str:
    """Return a dotted name as it is written, or nothing for what is none; ast.unparse takes a hundred times as long."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    """Yield the functions and classes of a module, those in its branches included."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for name in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from _defined(handler.body)
