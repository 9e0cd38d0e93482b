"""The boot file and the local modules that it imports, read from the files of a bundle."""

from __future__ import annotations

import ast
import itertools
import posixpath
import re
import string
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from pathlib import Path, PurePosixPath

from jobsubmit.bundle.model import Bundle
from jobsubmit.check.program.module import (
    MAIN,
    Module,
    classes_named,
    defined,
    imported_names,
    origin,
    spelled,
    unparsed,
)
from jobsubmit.check.program.program import LONGEST_CONFIGURATION, MOST_CONFIGURATIONS, Program
from jobsubmit.check.program.tree import fields_with_nodes, walk

# Modules that start processes, declare arguments, train, or load and save are read first, up to so many bytes: before
# others, those with more of these names. Then those with one of them, and the rest, if fewer bytes were read by then.
# Of others, only the imports.
_MOST_OF_FIRST, _MOST_OF_ONE_NAME, _MOST_OF_OTHERS = 500_000, 300_000, 200_000
# Bytes of those that train themselves, and were not read whole so far: of all, and of each.
_MOST_OF_REST, _LONGEST_OF_REST = 20_000, 30_000
_MOST_MODULES, _LONGEST_WAY = 2000, 3
_OF_FIRST = frozenset(
    (
        *("init_process_group", "init_distributed", "init_device_mesh", "init_rpc", "set_device", "spawn"),
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "CUDA_VISIBLE_DEVICES"),
        *("add_argument", "ArgumentParser", "parse_args", "parse_known_args", "argv", "click", "typer", "fire", "absl"),
        *("hydra", "tyro", "import_module", "__import__", "spec_from_file_location", "makedirs", "mkdir"),
        *("DataLoader", "Sampler", "DistributedSampler", "sampler", "set_epoch", "backward"),
        *("DDP", "FSDP", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"),
        *("save", "all_reduce", "all_gather", "broadcast", "barrier", "cuda"),
    )
)
_TRAINS = (
    b"init_process_group",
    b".backward(",
    b"set_epoch(",
    b"DistributedSampler",
    b"DistributedDataParallel",
    b"DDP(",
)
_IMPORT = re.compile(rb"^(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(?:\([^)]*\)|(?:[^\n\\]|\\\r?\n)*)", re.MULTILINE)
_LETTERS = (string.ascii_letters + string.digits + "_").encode()
_ONLY_LETTERS = bytes(byte if byte in _LETTERS else ord(" ") for byte in range(256))
_LISTS = re.compile(r"listdir|scandir|iterdir|glob\(|iter_modules|walk_packages")
_LARGEST = 4 << 20
_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml")
_SETTINGS = (".txt", ".cfg", ".conf", ".ini")  # they may be configurations, if they are short
_CHANGES_PATH = (b"sys.path", b"setup_root(", b"autorootcwd")
_IMPORTS_BY_NAME = frozenset(
    ("hydra", "jsonargparse", "LightningCLI", "import_module", "instantiate_from_config", "get_obj_from_str")
)
_CLASS_NAME = re.compile(
    rb"^[\s-]*(?:_target_|target|class_path|class|obj|cls|type|name):\s*['\"]?(([A-Za-z_][\w.]*)\.\w+)", re.MULTILINE
)
_IMPORTS_FILES = frozenset(("import_module", "__import__", "spec_from_file_location", "SourceFileLoader"))
# Modules of torch, and those that hand on what they define: people import it from either.
_OTHER_PLACES = {
    "torch.multiprocessing.spawn": "torch.multiprocessing",
    "torch.distributed.distributed_c10d": "torch.distributed",
    "torch.nn.parallel.distributed": "torch.nn.parallel",
}
INSTALLED_FROM = ("", "src/")  # packages of the code that the nodes may have installed (pip install -e .)
_SAME_PATH = ("str", "fspath", "abspath", "realpath", "Path", "resolve", "absolute", "as_posix", "expanduser")
ADDS_TO_PATH = ("sys.path.insert", "sys.path.append")


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
    bundle: Bundle,
    boot_file: str,
    more_roots: tuple[str, ...] = (),
    *,
    is_module: bool = False,
    words: Iterable[str] = (),
    started_in: str = "",
) -> Program | None:
    """Read the boot file and all that it imports locally; None where the boot file is not Python.

    With `is_module`, it is started as `python -m`: imports begin in the code directory, not in its own folder. A file
    that one of its arguments names, in `words`, is read where the program imports files by computed names.
    `started_in` is the folder below the code directory that it is started in.
    """
    paths = frozenset(file.path for file in bundle.files if file.path.endswith(".py"))
    sources = {file.path: file.source for file in bundle.files if file.path in paths and file.size < _LARGEST}
    if boot_file not in sources:
        return None
    configurations = {file.path: file.source for file in bundle.files if file.path.endswith(_CONFIGURATIONS)}
    texts = [file for file in bundle.files if file.path.endswith(_SETTINGS) and file.size <= LONGEST_CONFIGURATION]
    configurations |= {file.path: file.source for file in texts}
    folder = PurePosixPath(boot_file).parent.as_posix()
    roots = ("" if folder == "." or is_module else f"{folder}/", *more_roots)
    root = next((one for one in more_roots if one and boot_file.startswith(one)), "") if is_module else ""
    package = folder.removeprefix(root.rstrip("/")).strip("/")
    home = package.replace("/", ".") if is_module and package != "." else ""
    named = tuple(sorted({path for word in words for path in _files_named(word)} & paths - {boot_file}))
    program = _Reader(boot_file, home, paths, sources, configurations, roots, named).program()
    return None if program is None else replace(program, folder=started_in)


@dataclass
class _Reader:
    boot_file: str
    home: str
    paths: frozenset[str]
    sources: Mapping[str, str]
    configurations: Mapping[str, str]
    roots: tuple[str, ...]
    named: tuple[str, ...] = ()  # files that the arguments name
    modules: dict[str, Module] = field(default_factory=dict)
    broken: dict[str, SyntaxError] = field(default_factory=dict)
    not_found: dict[str, None] = field(default_factory=dict)
    boot_names: set[str] = field(default_factory=set)
    by_text: dict[str, list[str]] = field(default_factory=dict)
    length: int = 0  # of what was read whole
    data: dict[str, bytes] = field(default_factory=dict)
    words: dict[str, frozenset[str]] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)

    def program(self) -> Program | None:
        waiting = [(0, 0, MAIN, self.boot_file)]
        found_so_far = itertools.count(1)
        while waiting and len(self.modules) < _MOST_MODULES:
            _, _, name, path = heappop(waiting)
            for imported in dict.fromkeys(self._read(name, path) if name not in self.modules else ()):
                found = find_module(imported, self.roots, self.paths)
                if not found:
                    self.not_found[imported] = None
                elif found == self.boot_file:
                    self.boot_names.add(imported)
                elif imported not in self.modules:
                    heappush(waiting, (-self._weight(found), next(found_so_far), imported, found))
        if MAIN not in self.modules:
            return None
        self._read_training()
        not_read = (name for name in self.not_found if find_module(name, INSTALLED_FROM, self.paths))
        return Program(
            boot=self.modules[MAIN],
            modules=self.modules,
            roots=self.roots,
            paths=self.paths,
            broken=self.broken,
            unread=frozenset(not_read) - self.modules.keys(),
            configurations=self.configurations,
            sources=self.sources,
            boot_names=frozenset(self.boot_names),
            imported_by_text=self.by_text,
        )

    def _read_training(self) -> None:
        """Read the modules whole that train, and came after too much else."""
        length = self.length
        for name, module in [*self.modules.items()]:
            data = self._data(module.path) if module.is_skimmed else b""
            trains = len(data) < _LONGEST_OF_REST and any(word in data for word in _TRAINS)
            if trains and self.length < length + _MOST_OF_REST:
                self._read(name, module.path, is_whole=True)

    def _data(self, path: str) -> bytes:
        """Return the text of a file; raise KeyError or OSError where there is none."""
        if path not in self.data:
            self.data[path] = Path(self.sources[path]).read_bytes()
        return self.data[path]

    def _weight(self, path: str) -> int:
        """Return how much of a file has to do with training: files with more are read first."""
        if path not in self.weights:
            self.weights[path] = 0
            with suppress(KeyError, OSError):
                self.weights[path] = len(_OF_FIRST & self._words(path))
        return self.weights[path]

    def _most_before(self, path: str) -> int:
        """Return how many bytes may be read before a file that is read whole all the same."""
        return {0: _MOST_OF_OTHERS, 1: _MOST_OF_ONE_NAME}.get(self._weight(path), _MOST_OF_FIRST)

    def _words(self, path: str) -> frozenset[str]:
        """Return every name in a file, at least one; raise KeyError or OSError where there is no file."""
        if path not in self.words:
            self.words[path] = frozenset(["pass", *self._data(path).translate(_ONLY_LETTERS).decode().split()])
        return self.words[path]

    def _read(self, name: str, path: str, *, is_whole: bool = False) -> list[str]:
        """Read a file; return the modules that it imports, or that others may, which were not found before."""
        try:
            data = self._data(path)
            is_skimmed = not is_whole and self.length > self._most_before(path)
            tree = _tree(data, path, is_skimmed=is_skimmed)
        except SyntaxError as error:
            self.broken[path] = error
            return []
        except (KeyError, ValueError, RecursionError, MemoryError, OSError):
            return []
        self.length += 0 if is_skimmed else len(data)
        module = _module(name, path, tree, self.home if name == MAIN else "")
        imports = self._found_now(module) if any(sign in data for sign in _CHANGES_PATH) else []
        if is_skimmed:
            module = replace(module, words=self._words(path))
        self.modules[name] = module
        for node in module.of(ast.Import, ast.ImportFrom):
            imports += imported_names(node, module)
        if b"class_name" in data or b"func_name" in data:
            given = (name for node in module.of(ast.Call, ast.Assign) for name in classes_named(node))
            imports += [one.rpartition(".")[0] for one in given if "." in one]
        if b"import_module" in data:
            self.by_text[name] = list(_imported_by_text(module, self.roots, self.paths))
            imports += [*_written_down(module), *self.by_text[name]]
        if not _IMPORTS_BY_NAME.isdisjoint(self._words(path)):
            imports += [one for one in self._of_configurations if find_module(one, self.roots, self.paths)]
        if not _IMPORTS_FILES.isdisjoint(self._words(path)):
            imports += self._of_arguments(data)
        return imports

    @cached_property
    def _of_configurations(self) -> list[str]:
        return list(dict.fromkeys(modules_named_in(self.configurations)))

    def _of_arguments(self, data: bytes) -> list[str]:
        """Return the modules of the files that the arguments name: from their own folders, if these are searched."""
        if b"sys.path" not in data:
            return [one.removesuffix(".py").replace("/", ".") for one in self.named]
        folders = (PurePosixPath(one).parent.as_posix() for one in self.named)
        more = ("" if folder == "." else f"{folder}/" for folder in folders)
        self.roots = tuple(dict.fromkeys((*self.roots, *more)))
        return [PurePosixPath(one).stem for one in self.named]

    def _found_now(self, module: Module) -> list[str]:
        """Add the roots that a module adds to sys.path; return the modules that may be there."""
        more = [one for one in _added_roots(module, folders_of(self.paths)) if one not in self.roots]
        self.roots = tuple(dict.fromkeys((*self.roots, *more)))
        return [*self.not_found] if more else []


def _files_named(word: str) -> Iterator[str]:
    """Yield the Python files that an argument may name, as a file or as a module: `--config=configs.small`."""
    value = word.rpartition("=")[2]
    if value.endswith(".py"):
        yield posixpath.normpath(value)
    elif "/" in value or "." in value:
        yield posixpath.normpath(f"{value.replace('.', '/')}.py")
        yield posixpath.normpath(f"{value}.py")


def _tree(data: bytes, path: str, *, is_skimmed: bool) -> ast.Module:
    """Return the tree of a file, of one that is skimmed with its imports only; raise as parse() does."""
    if is_skimmed:
        with suppress(SyntaxError):  # a line of a text may look like an import
            return parse(_only_imports(data), path)
    return parse(data, path)


def _written_down(module: Module) -> Iterator[str]:
    """Yield the modules that calls name in whole: `import_module("app.train")`. They may be found later."""
    for call in module.of(ast.Call):
        named = call.args[0] if call.args and spelled(call.func).endswith("import_module") else None
        if isinstance(named, ast.Constant) and isinstance(named.value, str) and not named.value.startswith("."):
            yield named.value


def _imported_by_text(module: Module, roots: Iterable[str], paths: Iterable[str]) -> Iterator[str]:
    """Yield the modules that a text may name of which a part is computed: `import_module(f"app.{name}.train")`.

    Where a loop goes through the files of the module's own folder, these are all modules in it.
    """
    calls = [call for call in module.of(ast.Call) if spelled(call.func).endswith("import_module") and call.args]
    patterns = [pattern for call in calls if (pattern := _pattern_of(call.args[0], _package_of(call, module)))]
    if any(_goes_through_folder(call, module) for call in calls):
        package = module.name if module.is_package else module.name.rpartition(".")[0]
        patterns += [rf"{re.escape(package)}\.\w+"] if package else []
    for path, root in itertools.product(sorted(paths) if patterns else (), roots):
        name = path.removeprefix(root).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if path.startswith(root) and any(re.fullmatch(pattern, name) for pattern in patterns):
            yield name


def _goes_through_folder(call: ast.Call, module: Module) -> bool:
    """Return whether a call is in a loop of a function, or a module, that lists the folder of its own file."""
    above = list(module.above(call))
    is_looped = any(isinstance(one, (ast.For, ast.ListComp, ast.SetComp, ast.DictComp)) for one in above)
    text = unparsed(module.scope_of(call)) if is_looped else ""
    return _LISTS.search(text) is not None and ("__file__" in text or "__path__" in text)


def _package_of(call: ast.Call, module: Module) -> str:
    """Return the package that a name with a dot before it is looked for in: `import_module("." + name, "app")`."""
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    match given[:1]:
        case [ast.Constant(value=str(name))]:
            return name
        case [ast.Name(id="__package__" | "__name__")]:
            return module.name if module.is_package else module.name.rpartition(".")[0]
    return ""


def _pattern_of(text: ast.expr, package: str = "") -> str:
    """Return a pattern for a text of which a part is computed; empty if no part with a dot is written down."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        parts = [text.left, text.right]
    written = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if not any("." in one and one != "." for one in written) and not (package and written[:1] == ["."]):
        return ""
    found = "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+" for part in parts)
    return re.escape(package) + found if package and found.startswith(r"\.") else found


def modules_named_in(configurations: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules that configurations may name: alone, or with a class, `_target_: package.module.Class`."""
    for path, source in itertools.islice(configurations.items(), MOST_CONFIGURATIONS):
        if not path.endswith((".yaml", ".yml")):
            continue
        with suppress(OSError), Path(source).open("rb") as stream:
            for found in _CLASS_NAME.finditer(stream.read(LONGEST_CONFIGURATION)):
                yield found[2].decode()
                yield found[1].decode()


def folders_of(paths: Iterable[str]) -> frozenset[str]:
    """Return every folder that contains one of the paths."""
    return frozenset(path[: end.start()] for path in paths for end in re.finditer("/", path))


def _added_roots(module: Module, folders: frozenset[str]) -> Iterator[str]:
    """Yield the folders of the code that a module may add to sys.path, whatever its own folder is taken for.

    A folder that is named is looked for beside the module and above it; where none is named, it is one of these.
    """
    if "autorootcwd" in module.aliases.values():
        yield ""
    for call in module.of(ast.Call):
        if spelled(call.func).endswith("rootutils.setup_root") and any(_adds_to_path(one) for one in call.keywords):
            yield ""
        if spelled(call.func) in ADDS_TO_PATH:
            is_start = any("getcwd" in unparsed(given) for given in call.args)  # a job starts in the code directory
            named = [""] if is_start else named_folders(call, module)
            yield from (folder for folder in named or _above(module) if folder.rstrip("/") in folders or not folder)


def _adds_to_path(setting: ast.keyword) -> bool:
    """Return whether rootutils is asked to add the folder that it finds to sys.path."""
    return setting.arg == "pythonpath" and isinstance(setting.value, ast.Constant) and setting.value.value is True


def named_folders(call: ast.Call, module: Module) -> list[str]:
    """Return the folders that a change of sys.path may mean by the texts in it: beside the module, and above it.

    Where the only text is `..`, it is one of those above.
    """
    folders: list[str] = []
    for given in spelled_out(call.args[-1], module) if call.args else ():
        words = [node.value for node in walk(given) if isinstance(node, ast.Constant)]
        names = [name for word in words if isinstance(word, str) and (name := word.strip("./"))]
        folders += [f"{base}{name}/" for name in names for base in _above(module)]
        folders += _above(module) if ".." in words and not names else []
    return folders


def spelled_out(node: ast.expr, module: Module, depth: int = 0) -> Iterator[ast.expr]:
    """Yield an expression, or all that a variable is set to here, or that calls here give for a parameter."""
    node = _same_path(node)
    if not isinstance(node, ast.Name) or depth > _LONGEST_WAY:
        yield node
        return
    set_to = [one.value for one in module.of(ast.Assign) if getattr(one.targets[0], "id", "") == node.id]
    function = module.function_of(node)
    names = [arg.arg for arg in function.args.args] if function is not None else []
    if function is not None and node.id in names:
        calls = (call for call in module.of(ast.Call) if spelled(call.func) == function.name)
        place = names.index(node.id)
        set_to += [call.args[place] for call in calls if len(call.args) > place]
    for one in set_to:
        yield from spelled_out(one, module, depth + 1)


def _same_path(node: ast.expr) -> ast.expr:
    """Return the path that an expression only writes in another way: `str(path)`, `os.path.abspath(path)`."""
    match node:
        case ast.Call(func=function, args=[path]) if spelled(function).rpartition(".")[2] in _SAME_PATH:
            return _same_path(path)
        case ast.Call(func=ast.Attribute(value=path, attr=method), args=[]) if method in _SAME_PATH:
            return _same_path(path)
    return node


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


def _module(name: str, path: str, tree: ast.Module, home: str = "") -> Module:
    by_type, parents = _laid_out(tree)
    is_package = path.endswith("/__init__.py")
    bare = Module(path, name, tree, is_package, {}, (), {}, by_type, parents, home=home)
    imports: dict[str, list[tuple[ast.AST, str]]] = {}
    stars: list[str] = []
    for node in bare.of(ast.Import, ast.ImportFrom):
        base = origin(node, bare) if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if alias.name == "*":
                stars.append(base)
            elif isinstance(node, ast.ImportFrom):
                name = _OTHER_PLACES.get(base, base)
                imports.setdefault(alias.asname or alias.name, []).append((node, f"{name}.{alias.name}"))
            else:
                imports.setdefault(alias.asname or top, []).append((node, alias.name if alias.asname else top))
    aliases = {name: meanings[-1][1] for name, meanings in imports.items()}
    several = {name: meanings for name, meanings in imports.items() if len({meant for _, meant in meanings}) > 1}
    definitions = dict(defined(tree.body))
    return replace(bare, aliases=aliases, imports=several, stars=tuple(stars), definitions=definitions)


def _laid_out(tree: ast.Module) -> tuple[dict[type, list[ast.AST]], dict[ast.AST, ast.AST]]:
    """Return the nodes of a tree by their type, and the one that each is in."""
    by_type: dict[type, list[ast.AST]] = {}
    parents: dict[ast.AST, ast.AST] = {}
    waiting: list[ast.AST] = [tree]
    for node in waiting:
        by_type.setdefault(type(node), []).append(node)
        for name in fields_with_nodes(node._fields):
            value = getattr(node, name, None)
            for inner in value if type(value) is list else (value,):
                if isinstance(inner, ast.AST):
                    parents[inner] = node
                    waiting.append(inner)
    return by_type, parents
