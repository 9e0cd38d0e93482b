"""The names in the code that a job may execute, and the classes that are named there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.program.module import FUNCTIONS, Module, class_around
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.tree import walk


def names_in_use(reached: Reached) -> frozenset[str]:
    """Return every attribute, variable and text in what may be executed, and every word of modules only skimmed."""
    found: set[str] = set()
    for module in reached.program.modules.values():
        found |= module.words
        for node, name in _named(module):
            if name not in found and reached.of(_executed_with(node, module), module):
                found.add(name)
    while more := _beside(reached, found) - found:
        found |= more
    return frozenset(found)


def _named(module: Module) -> Iterator[tuple[ast.AST, str]]:
    yield from ((node, node.attr) for node in module.of(ast.Attribute))
    yield from ((node, node.id) for node in module.of(ast.Name))
    yield from ((node, node.value) for node in module.of(ast.Constant) if isinstance(node.value, str))


def _executed_with(node: ast.AST, module: Module) -> ast.AST:
    """Return what a name is executed with: of what stands beside `def`, the first statement of the function."""
    statement = next((above for above in module.above(node) if isinstance(above, ast.stmt)), node)
    return statement.body[0] if isinstance(statement, FUNCTIONS) else node


def _beside(reached: Reached, used: set[str]) -> set[str]:
    """Return what used names stand for: the heads and fields of classes, and names that an import calls otherwise."""
    program = reached.program
    classes = (owner for _, owner in program.of(ast.ClassDef) if owner.name in used)
    parts = (part for owner in classes for one in _head_and_fields(owner) for part in walk(one))
    found = {getattr(part, "attr", getattr(part, "id", getattr(part, "value", None))) for part in parts}
    aliases = (one for _, one in program.of(ast.alias) if one.asname in used)
    return {name for name in found if isinstance(name, str)} | {one.name.rpartition(".")[2] for one in aliases}


def _head_and_fields(owner: ast.ClassDef) -> Iterator[ast.AST]:
    yield from (*owner.bases, *owner.keywords, *owner.decorator_list)
    yield from (one for one in owner.body if not isinstance(one, FUNCTIONS))


def classes_in_use(reached: Reached) -> frozenset[str]:
    """Return the classes that are named outside of classes, or in one of these; and all that is named there."""
    inside: dict[str, set[str]] = {"": set()}
    for module, node in reached.program.of(ast.Name, ast.Attribute, ast.Constant):
        owner = class_around(node, module)
        name = owner.name if owner is not None and not owner.decorator_list else ""
        if not name and not reached.of(node, module):
            continue
        text = node.value if isinstance(node, ast.Constant) else getattr(node, "attr", getattr(node, "id", ""))
        inside.setdefault(name, set()).update([text] if isinstance(text, str) else ())
    inside[""] |= {word for module in reached.program.modules.values() for word in module.words}
    found, waiting = inside.pop(""), [*inside]
    while used := [name for name in waiting if name in found]:
        waiting = [name for name in waiting if name not in found]
        found = found.union(*(inside[name] for name in used))
    return frozenset(found)
