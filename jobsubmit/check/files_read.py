"""The files that the code, its arguments and its configurations name."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath

from jobsubmit.check.arguments import Word
from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.configuration import parse_text, read_text
from jobsubmit.check.program.functions import value_in_each_call
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.python_configuration import read_python_configuration
from jobsubmit.check.program.variables import values_of_field

ANY = "*"
IS_INPUT = re.compile(
    r"data|vocab|conf|cfg|train|val|test|input|corpus|file|token|dict|label|init|pretrain|weights|yaml|setting|hyp\b|meta"
)
IS_OUTPUT = re.compile(r"out|save|log|result|cache|dump")
_MADE_BY_RUNS = re.compile(rf"{IS_OUTPUT.pattern}|ckpt|checkpoint|history|metric|state|\.(?:pyc?|so)$")
IS_CONFIGURATION = re.compile(r"\.(?:ya?ml|json|toml|ini|cfg|conf|py|txt|csv)$")
# Functions that read a file → the position and the names of the argument that is its path.
_FILE_NAMES = (
    "file",
    "filename",
    "path",
    "fname",
    "name",
    "f",
    "filepath_or_buffer",
    "io",
    "fp",
    "path_or_buf",
    "root",
)
READERS = frozenset(
    [
        *("open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "tarfile.open", "zipfile.ZipFile"),
        *(
            f"numpy.{name}"
            for name in ("memmap", "load", "loadtxt", "genfromtxt", "fromfile", "lib.format.open_memmap")
        ),
        *("torch.load", "torch.jit.load", "torch.from_file", "torchaudio.load", "torchvision.io.read_image"),
        *(f"pandas.read_{name}" for name in ("csv", "table", "json", "pickle", "parquet", "excel", "hdf", "feather")),
        *("PIL.Image.open", "h5py.File", "safetensors.torch.load_file", "safetensors.safe_open", "cv2.imread"),
        *("omegaconf.OmegaConf.load", "joblib.load", "scipy.io.loadmat", "sqlite3.connect", "soundfile.read"),
        *("datasets.load_from_disk", "torchvision.datasets.ImageFolder", "os.listdir", "os.scandir", "runpy.run_path"),
    ]
)
_TESTS = frozenset(["os.path.exists", "os.path.isfile", "os.path.isdir"])
_TESTING_METHODS = ("exists", "is_file", "is_dir")
_READING_METHODS = ("open", "read_text", "read_bytes", "iterdir")
_WITH_MODE = ("open", "memmap", "File", "open_memmap")
# Their argument that is the file of a module.
_READ_MODULES = {
    "importlib.util.spec_from_file_location": "location",
    "importlib.machinery.SourceFileLoader": "path",
    "imp.load_source": "pathname",
}
_MOST_SETTINGS = 500


def paths(code: Code, words: Sequence[Word]) -> Iterator[tuple[str, str]]:
    """Yield where a file is named that is read or may be, and its path, in which `*` stands for what is not known."""
    yield from paths_read(code)
    yield from _merged(code)
    yield from _kept(code)
    yield from _named(code, words)
    yield from paths_configured(code, words)


def paths_read(code: Code) -> Iterator[tuple[str, str]]:
    """Yield where a file is read and its path, in which `*` stands for what is not known."""
    for module, call, name in code.reached.calls:
        node = file_of(call, name) or _demanded(call, name, module)
        if node is not None and is_reading(code, call, name, module):
            path = path_of(code, node, module)
            each = value_in_each_call(code.values, node, module) if ANY in path else ()
            for known in [str(one) for one in each if isinstance(one, (str, PurePosixPath))] or [path]:
                yield module.where(call), known


def _merged(code: Code) -> Iterator[tuple[str, str]]:
    """Yield where yacs reads settings from a file, and its path: `cfg.merge_from_file("settings.yaml")`."""
    for module, call in code.program.calls_of_attribute.get("merge_from_file", ()):
        if call.args and code.reached.of(call, module):
            yield module.where(call), path_of(code, call.args[0], module)


def _kept(code: Code) -> Iterator[tuple[str, str]]:
    """Yield where a variable of a module or class is a file beside the code, and its path: `Path(__file__).parent / …`.

    Whatever it is given to reads it, unless its name says that it is written.
    """
    for module, node in code.program.of(ast.Assign):
        name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
        if name not in code.names_in_use or module.function_of(node) is not None or IS_OUTPUT.search(name.lower()):
            continue
        path = code.values.of(node.value, module) if "__file__" in unparsed(node.value) else None
        is_file = isinstance(path, (str, PurePosixPath)) and PurePosixPath(path).suffix
        if is_file and not _MADE_BY_RUNS.search(str(path)) and not _is_asked_for(code, name):
            yield module.where(node), str(path)


def _is_asked_for(code: Code, name: str) -> bool:
    """Return whether the code looks whether a file exists that a variable names: it may do without."""
    calls = [call for _, call, whole in code.program.calls if whole in _TESTS and call.args]
    named = [call.args[0] for call in calls]
    methods = (node for _, node in code.program.of(ast.Attribute) if node.attr in _TESTING_METHODS)
    return any(spelled(node).rpartition(".")[2] == name for node in (*named, *(one.value for one in methods)))


def _named(code: Code, words: Sequence[Word]) -> Iterator[tuple[str, str]]:
    """Yield the arguments, and the defaults of those that are not given, whose names say that a file is read."""
    for word in words:
        value = word.value
        if word.field and (not word.name or IS_INPUT.search(word.name) or IS_CONFIGURATION.search(value)):
            yield word.field, value
    given = {word.name for word in words}
    for option in code.options:
        if (
            isinstance(option.default, (str, PurePosixPath))
            and not given & set(option.names)
            and IS_INPUT.search(option.names[-1])
        ):
            yield option.where, str(option.default)


def paths_configured(code: Code, words: Sequence[Word]) -> Iterator[tuple[str, str]]:
    """Yield the data that the configurations name which the arguments name."""
    named = (word.value for word in words)
    for path in (one for one in named if one.endswith((".yaml", ".yml", ".json", ".py"))):
        if path.endswith(".py"):
            settings = read_python_configuration(code.program, path)
        else:
            settings = parse_text(read_text(code.program, path), "json" if path.endswith(".json") else "yaml")
        for key, value in islice(_leaves(settings), _MOST_SETTINGS):
            is_set_again = any(f"{key.rpartition('.')[2]}=" in word.text for word in words)
            may_be_read = IS_INPUT.search(key.lower()) or IS_CONFIGURATION.search(value)
            if may_be_read and not is_set_again and not IS_OUTPUT.search(key.lower()):
                yield path, value


def _leaves(settings: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in a configuration, each with the keys that lead to it."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            yield from _leaves(value, f"{key}.{name}")
    elif isinstance(settings, str) and settings and not settings.startswith("/"):
        yield key, settings


def file_of(call: ast.Call, name: str) -> ast.expr | None:
    """Return the path of the file that a call opens or reads; None for any other call."""
    if name in READERS:
        named = (argument(call, keyword) for keyword in _FILE_NAMES)
        return call.args[0] if call.args else next((node for node in named if node is not None), None)
    if name in _READ_MODULES:
        return argument(call, _READ_MODULES[name], 1)
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READING_METHODS:
        return call.func.value
    if isinstance(call.func, ast.Attribute) and call.func.attr == "from_pretrained" and call.args:
        return call.args[0]
    return None


def _demanded(call: ast.Call, name: str, module: Module) -> ast.expr | None:
    """Return the path without which the program ends: `assert os.path.exists(path)`, `if not path.is_dir(): raise`."""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _TESTING_METHODS and not call.args
    if name not in _TESTS and not is_method:
        return None
    above = module.parents.get(call)
    if isinstance(above, ast.Assert):
        is_demanded = call is above.test
    else:
        branch = module.parents.get(above) if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not) else None
        is_demanded = isinstance(branch, ast.If) and above is branch.test and isinstance(branch.body[0], ast.Raise)
    if not is_demanded:
        return None
    return call.func.value if is_method and isinstance(call.func, ast.Attribute) else next(iter(call.args), None)


def is_reading(code: Code, call: ast.Call, name: str, module: Module) -> bool:
    """Return whether a call that may open a file opens it to read."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else name
    if method not in _WITH_MODE:
        return True
    is_method = name not in READERS
    position = 0 if is_method else 2 if name.endswith("memmap") else 1
    mode = argument(call, "mode", position)
    value = code.values.of(mode, module) if mode is not None else "r"
    return isinstance(value, str) and not set(value) & set("wax") and not hides_arguments(call)


def path_of(code: Code, node: ast.expr, module: Module, depth: int = 0) -> str:
    """Return the path that an expression is, with `*` for each part that is not known."""
    value = code.values.of(node, module)
    if isinstance(value, (str, PurePosixPath)):
        return str(value)
    if depth > 10:  # noqa: PLR2004 - so deep no path is spelled out
        return ANY
    parts: list[ast.expr] = []
    join = ""
    match node:
        case ast.Call() if code.program.name_of(node.func, module) in ("os.path.join", "pathlib.Path"):
            parts, join = node.args, "/"
        case ast.Call() if code.program.name_of(node.func, module) in ("str", "os.fspath") and len(node.args) == 1:
            parts = node.args
        case ast.BinOp(op=ast.Div()):
            parts, join = [node.left, node.right], "/"
        case ast.BinOp(op=ast.Add()):
            parts = [node.left, node.right]
        case ast.JoinedStr():
            parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        case ast.Attribute():
            values = values_of_field(code.program, node.attr)
            named = [one for home, one in values if PurePosixPath(home.path).stem in " ".join(code.facts.argv)]
            texts = {one.value for one in named if isinstance(one, ast.Constant) and isinstance(one.value, str)}
            return texts.pop() if len(texts) == len(values) == 1 else ANY
        case ast.Name() if (assigned := code.values.assigned(node, module)) is not None:
            parts = [] if isinstance(assigned, ast.Constant) else [assigned]  # something else may set it
    return join.join(path_of(code, part, module, depth + 1) for part in parts) if parts else ANY


def located(code: Code, path: str) -> str:
    """Return where a path is, from the code directory; as it is if its beginning is not known or is elsewhere."""
    is_elsewhere = not path or path.startswith((ANY, "~"))
    return posixpath.normpath(path) if is_elsewhere else code.program.located(path)
