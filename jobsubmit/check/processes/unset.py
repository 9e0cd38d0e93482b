"""Variables and fields that only some processes set, and others read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.program.module import Module
from jobsubmit.common.finding import Finding


def check_unset(code: Code) -> Iterator[Finding]:
    """Yield an error where a process reads what only another one has set."""
    for one in code.followed:
        for node, module in one.unset.items():
            other = next((each for each in code.followed if _has_set(each, node)), None)
            store = _store_of(code, node, module)
            if other is None or store is None or _may_be_set(one, store):
                continue
            where = store[0].where(store[1])
            name, error = ast.unparse(node), "AttributeError" if isinstance(node, ast.Attribute) else "NameError"
            yield Finding(
                "error",
                "unset",
                module.where(node),
                f"rank {one.process.rank} reads {name}, which only some ranks set ({where}): {error}",
                f"set {name} on every rank, or read it only where it is set",
            )
            return


def _has_set(one: Followed, node: ast.expr) -> bool:
    """Return whether a process reads something that it has set."""
    return node in one.values and node not in one.unset


def _store_of(code: Code, node: ast.Name | ast.Attribute, module: Module) -> tuple[Module, ast.expr] | None:
    """Return where a variable or a field is set."""
    if isinstance(node, ast.Attribute):
        return next(iter(code.program.attribute_stores.get(node.attr, ())), None)
    stores = module.stores.get((module.scope_of(node), node.id), ())
    return (module, stores[0]) if stores else None


def _may_be_set(one: Followed, store: tuple[Module, ast.expr]) -> bool:
    """Return whether a process may set something in a function of which not all calls were followed."""
    return store[0].function_of(store[1]) in one.skipped
