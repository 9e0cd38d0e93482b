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
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_DEEPEST = 4
_LISTS = re.compile(r"\b(?:r?glob|listdir|iterdir|scandir|walk)\(")
_OF_CHECKPOINT = re.compile(r"ckpt|checkpoint|resum|latest|snapshot", re.IGNORECASE)
_ENDINGS = re.compile(r"\.?(?:pt|pth|ckpt|chkpt|tar|pkl|bin|model)(?:\.tar)?$")
# Of libraries: they choose the names of files in a folder themselves.
_TO_FOLDERS = (*SAVING, "save_pretrained", "save_model", "async_save")
_PLACES = re.compile(r"%[-+0-9.]*[a-z]|\{[^{}]*\}")  # in a text that is formatted
_ANY = "\0"  # in a name, for what is not written down
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
    places = [(module, path) for module, _, path in places_saved_to(code)]
    saved = [name for module, path in places for name in _names_of(code, path, module)]
    if not saved or any(not name.strip(_ANY) for name in saved):
        return
    sought = list(_sought(code))
    if sought and not any(_may_be_same(one.name, name) for one in sought for name in saved):
        shown = ", ".join(dict.fromkeys(name.replace(_ANY, "*") for name in saved))
        yield Finding(
            "warning",
            "no-checkpoint",
            sought[0].module.where(sought[0].node),
            f"looks for checkpoints by {sought[0].text}, and they are saved as {shown}: a restart would find none",
            "look for the names that the checkpoints have",
        )


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
                yield _Sought(pattern, repr(pattern.replace(_ANY, "*")), call, module)


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
            found = ["".join(str(one.value) if isinstance(one, ast.Constant) else _ANY for one in values)]
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
    return found


def _of_variable(code: Code, name: ast.Name, module: Module, depth: int) -> list[str]:
    assigned = code.values.assigned(name, module)
    if assigned is not None:
        return _written(code, assigned, module, depth)
    function = module.function_of(name)
    if function is None or name.id not in parameters(function):
        return [_ANY]
    calls = [(home, call) for home, call in code.program.calls_to(function, module) if code.reached.of(call, home)]
    given = [(home, given_for(call, function, name.id)) for home, call in calls]
    return [text for home, one in given for text in _written(code, one, home, depth)] or [_ANY]


def _may_be_same(one: str, other: str) -> bool:
    """Return whether two names, in which `_ANY` stands for anything, may be the same: by their beginnings and ends."""
    if _ANY not in one and _ANY not in other:
        return one == other
    heads, tails = (one.partition(_ANY)[0], other.partition(_ANY)[0]), (one.rpartition(_ANY), other.rpartition(_ANY))
    ends = tuple(tail[2] for tail in tails)
    starts_alike = heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])
    return starts_alike and (ends[0].endswith(ends[1]) or ends[1].endswith(ends[0]))
