"""Whether a class of the program may put the parameters of its objects on a GPU by itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from jobsubmit.check.program.module import FUNCTIONS, unparsed
from jobsubmit.check.program.tree import walk

_PLACES = re.compile(r"cuda\(|\.to\(|\bdevice\b|to_device|from_pretrained|cuda\.|['\"]cuda")
_MOVES_OWN = re.compile(r"\bself(?:\.\w+)*\.(?:to|cuda|to_empty)\(")
_GOES_THROUGH = re.compile(r"\bself(?:\.\w+)*\.(?:children|modules|parameters|named_\w+|_?apply)\(")
MOVES = re.compile(r"\.(?:to|cuda|to_empty)\(")
_MAKES = ("__init__", "__new__", "__post_init__", "__init_subclass__", "setup", "build")
_USES = ("forward", "__call__")


@lru_cache(maxsize=10_000)
def may_place_parameters(*classes: ast.ClassDef) -> bool:
    """Return whether making an object of a class, together with those above it, may put its parameters on a GPU.

    What only a call of the object executes does not count: `device = x.device` in `forward`. Other methods count if
    they move what the object has.
    """
    making, using = _called_from(classes, _MAKES), _called_from(classes, _USES)
    others = [one for one in _methods(classes) if one not in making and one not in using]
    beside = [one for owner in classes for one in owner.body if not isinstance(one, FUNCTIONS)]
    if any(_PLACES.search(unparsed(one)) for one in (*making, *beside)):
        return True
    texts = list(map(unparsed, others))
    return any(_MOVES_OWN.search(text) or (_GOES_THROUGH.search(text) and MOVES.search(text)) for text in texts)


def _called_from(classes: Sequence[ast.ClassDef], names: Iterable[str]) -> list[ast.stmt]:
    """Return the methods of some names, and those that they name."""
    methods = _methods(classes)
    waiting, found = [*names], list[ast.stmt]()
    while waiting:
        name = waiting.pop()
        new = [one for one in methods if one.name == name and one not in found]
        found += new
        waiting += [node.attr for one in new for node in walk(one) if isinstance(node, ast.Attribute)]
    return found


def _methods(classes: Sequence[ast.ClassDef]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for owner in classes for one in owner.body if isinstance(one, FUNCTIONS)]
