"""Whether a restart looks for checkpoints by the names that the code saves them under."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jobsubmit.check.checkpoints.paths import SAVING, places_saved_to
from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters
from jobsubmit.common.finding import Finding

_DEEPEST = 4
_LISTS = re.compile(r"\b(?:r?glob|listdir|iterdir|scandir|walk)\(")
_OF_CHECKPOINT = re.compile(r"ckpt|checkpoint|resum|latest|snapshot", re.IGNORECASE)
_ENDINGS = re.compile(r"\.?(?:pt|pth|ckpt|chkpt|tar|pkl|bin|model)(?:\.tar)?$")
# Of libraries: they choose the names of files in a folder themselves.
_TO_FOLDERS = (*SAVING, "save_pretrained", "save_model", "async_save")
_PLACES = re.compile(r"%[-+0-9.]*[a-z]|\{[^{}]*\}")  # in a text that is formatted
_ANY, _NUMBER = "\0", "\1"  # in a name, for what is not written down, and for a number that is not
_IS_NUMBER = re.compile(r"\{(?:[^{}]*:0?\d+d?|[\w.]*(?:epoch|step|iter\w*)(?: \+ 1)?)\}")
ASK_FOR_FILES = ("os.path.exists", "os.path.isfile")
_ASK_FOR_THIS = ("exists", "is_file")  # methods of paths
_MOVES = (
    *("os.replace", "os.rename", "os.link", "os.symlink", "shutil.move"),
    *("shutil.copy", "shutil.copy2", "shutil.copyfile"),
)
_MOVES_THIS = ("rename", "replace", "symlink_to", "hardlink_to")  # methods of paths
_COMMANDS = ("os.system", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen")
_OPEN = re.compile(f"[{_ANY}{_NUMBER}]")
_SAME = ("str", "pathlib.Path", "os.path.abspath", "os.path.join", "pathlib.PurePath")


class _Sought(NamedTuple):
    """What the code looks for: a name, in which `_ANY` stands for anything, and the place that says so."""

    name: str
    text: str
    node: ast.AST
    module: Module


def sought_under_other_names(code: Code) -> Iterator[Finding]:
    """Yield a warning where all that looks for a checkpoint asks for names that no checkpoint is saved under."""
    if any(_saves_to_folder(code, call, name) for _, call, name in code.reached.calls):
        return
    places = [*((module, path) for module, _, path in places_saved_to(code)), *_moved_to(code)]
    saved = [name for module, path in places for name in _names_of(code, path, module)]
    if not saved or any(not name.strip(_ANY) for name in saved):
        return
    sought = list(_sought(code))
    if sought and not any(_may_be_same(one.name, name) for one in sought for name in saved):
        shown = ", ".join(dict.fromkeys(_OPEN.sub("*", name) for name in saved))
        yield Finding(
            "warning",
            "no-checkpoint",
            sought[0].module.where(sought[0].node),
            f"looks for checkpoints by {sought[0].text}, and they are saved as {shown}: a restart would find none",
            "look for the names that the checkpoints have",
        )


def _moved_to(code: Code) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the paths to which files are moved or copied, or at which a link to one is made; of a command, itself."""
    for module, call, name in code.reached.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in _MOVES and len(call.args) > 1:
            yield module, call.args[1]
        elif method in _MOVES_THIS and len(call.args) == 1 and isinstance(call.func, ast.Attribute):
            yield module, call.func.value if method.endswith("_to") else call.args[0]
        elif name in _COMMANDS:
            yield module, call


def _saves_to_folder(code: Code, call: ast.Call, name: str) -> bool:
    """Return whether a library saves a checkpoint, and names its files itself."""
    last = getattr(call.func, "attr", name.rpartition(".")[2])
    is_own = last in code.program.methods or code.program.definition(name) is not None
    return last in _TO_FOLDERS and not is_own


def _sought(code: Code) -> Iterator[_Sought]:
    for module, call, name in code.reached.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        given = call.args[:1]
        if method == "endswith" and _looks_for_checkpoints(call, module):
            for ending in _texts(code, given, module):
                yield _Sought(f"{_ANY}{ending}", f"the ending {ending!r}", call, module)
        elif name in ("glob.glob", "glob.iglob") or method in ("glob", "rglob"):
            for pattern in _patterns(code, given, module):
                yield _Sought(pattern, repr(_OPEN.sub("*", pattern)), call, module)
        elif name in ASK_FOR_FILES or method in _ASK_FOR_THIS:
            path = call.func.value if isinstance(call.func, ast.Attribute) and not given else next(iter(given), None)
            for file in _files_asked_for(code, path, module):
                yield _Sought(file, repr(file), call, module)


def _files_asked_for(code: Code, path: ast.expr | None, module: Module) -> list[str]:
    """Return the names of a checkpoint whose existence is asked for, if nothing is loaded by any other name."""
    names = _names_of(code, path, module) if path is not None and _OF_CHECKPOINT.search(unparsed(path)) else []
    is_known = all(not _OPEN.search(one) and _ENDINGS.search(one) for one in names)
    loads = [(home, call.args[0]) for home, call, name in code.reached.calls if name == "torch.load" and call.args]
    loaded = [one for home, given in loads for one in _names_of(code, given, home)] if names and is_known else []
    return names if loaded and all(one in names for one in loaded) else []


def _looks_for_checkpoints(call: ast.Call, module: Module) -> bool:
    """Return whether a function lists a folder, and is about checkpoints."""
    function = module.function_of(call)
    text = unparsed(function) if function is not None else ""
    return _LISTS.search(text) is not None and _OF_CHECKPOINT.search(text) is not None


def _texts(code: Code, given: Sequence[ast.expr], module: Module) -> list[str]:
    """Return the endings of checkpoints that are asked for, all of which are known: one text, or a tuple of them."""
    parts = [part for one in given for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
    values = [code.values.of(part, module) for part in parts]
    return [one for one in values if isinstance(one, str) and _ENDINGS.match(one)] if values else []


def _patterns(code: Code, given: Sequence[ast.expr], module: Module) -> list[str]:
    """Return the names of checkpoints that a pattern asks for."""
    names = [name.replace("*", _ANY) for one in given for name in _names_of(code, one, module)]
    about = " ".join(map(unparsed, given)) + getattr(given and module.function_of(given[0]), "name", "")
    is_plain = all(name.strip(_ANY) and not re.search(r"[?\[]", name) for name in names)
    is_sought = _OF_CHECKPOINT.search(about) is not None and all(_ENDINGS.search(name) for name in names)
    return names if is_plain and is_sought else []


def _names_of(code: Code, path: ast.expr, module: Module) -> list[str]:
    """Return the names of the files that a path may mean, each with `_ANY` for what is not written down."""
    return [text.rpartition("/")[2] for text in _written(code, path, module, 0)]


def _written(code: Code, node: ast.AST | None, module: Module, depth: int) -> list[str]:
    """Return the texts that an expression may be."""
    value = code.values.of(node, module) if node is not None else None
    if isinstance(value, str):
        return [value]
    if node is None or depth > _DEEPEST:
        return [_ANY]
    found = [_ANY]
    match node:
        case ast.JoinedStr(values=values):
            found = ["".join(str(one.value) if isinstance(one, ast.Constant) else _filled(one) for one in values)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = (_written(code, one, module, depth + 1) for one in (left, right))
            found = ["".join(pair) for pair in itertools.product(*sides)]
        case ast.BinOp(op=ast.Div(), right=right):
            found = [f"{_ANY}/{text}" for text in _written(code, right, module, depth + 1)]
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            found = [_PLACES.sub(_ANY, text)]
        case ast.Call(func=ast.Attribute(attr="format", value=ast.Constant(value=str(text)))):
            found = [_PLACES.sub(_ANY, text)]
        case ast.Call(args=[*_, last]) if code.program.name_of(node.func, module) in _SAME:
            found = [f"{_ANY}/{text}" for text in _written(code, last, module, depth + 1)]
        case ast.Name():
            found = _of_variable(code, node, module, depth + 1)
        case ast.Attribute():
            found = _of_field(code, node, depth + 1)
    return found


def _filled(part: ast.expr) -> str:
    """Return what stands for a computed part of a text."""
    return _NUMBER if _IS_NUMBER.fullmatch(unparsed(ast.JoinedStr([part]))[2:-1]) else _ANY


def _of_field(code: Code, field: ast.Attribute, depth: int) -> list[str]:
    """Return the texts that the program sets a field to, if no argument of the job may set it."""
    stores = code.program.attribute_stores.get(field.attr, ())
    stores = [(home, store) for home, store in stores if code.reached.of(store, home)]
    is_given = any(word.lstrip("-").partition("=")[0].replace("-", "_") == field.attr for word in code.facts.argv)
    texts = [text for home, store in stores for text in _written(code, assigned_to(store, home), home, depth)]
    return [text for text in texts if text] if texts and not is_given else [_ANY]


def _of_variable(code: Code, name: ast.Name, module: Module, depth: int) -> list[str]:
    assigned = code.values.assigned(name, module)
    if assigned is not None:
        return _written(code, assigned, module, depth)
    if items := _items_of_loop(name, module):
        return [text for one in items for text in _written(code, one, module, depth)]
    function = module.function_of(name)
    if function is None or name.id not in parameters(function):
        return [_ANY]
    calls = [(home, call) for home, call in code.program.calls_to(function, module) if code.reached.of(call, home)]
    given = [(home, given_for(call, function, name.id)) for home, call in calls]
    return [text for home, one in given for text in _written(code, one, home, depth)] or [_ANY]


def _items_of_loop(name: ast.Name, module: Module) -> list[ast.expr]:
    """Return what a variable of a loop goes through: a list that is written down, and what is appended to it."""
    loop = next(
        (one for one in module.above(name) if isinstance(one, ast.For) and spelled(one.target) == name.id), None
    )
    source = loop.iter if loop is not None else None
    if isinstance(source, (ast.List, ast.Tuple)):
        return source.elts
    if not isinstance(source, ast.Name):
        return []
    stores = module.own_stores.get((module.scope_of(source), source.id), ())
    lists = [assigned_to(store, module) for store in stores]
    if not lists or not all(isinstance(one, ast.List) for one in lists):
        return []
    calls = (one for one in walk(module.scope_of(source)) if isinstance(one, ast.Call))
    added = [one.args[0] for one in calls if spelled(one.func) == f"{source.id}.append" and one.args]
    return [item for one in lists if isinstance(one, ast.List) for item in one.elts] + added


def _may_be_same(one: str, other: str) -> bool:
    """Return whether two names, in which `_ANY` stands for anything, may be the same: by their beginnings and ends."""
    if not _OPEN.search(one) or not _OPEN.search(other):
        fixed, pattern = (other, one) if _OPEN.search(one) else (one, other)
        escaped = re.escape(pattern).replace(_ANY, ".*").replace(_NUMBER, r"\d+")
        return re.fullmatch(escaped, fixed) is not None
    heads = [_OPEN.split(name)[0] for name in (one, other)]
    ends = [_OPEN.split(name)[-1] for name in (one, other)]
    starts_alike = heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])
    return starts_alike and (ends[0].endswith(ends[1]) or ends[1].endswith(ends[0]))
