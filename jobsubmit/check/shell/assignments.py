"""Assignments of a shell: of texts and arrays, with `export`, and `unset`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobsubmit.check.shell.state import Shell
from jobsubmit.check.shell.words import array_of, text_of, value_of

if TYPE_CHECKING:
    from tree_sitter import Node


def assign(node: Node, shell: Shell) -> None:
    """Follow an assignment, also of an array, to an element of one, or to the end of what is there."""
    target, operator = node.named_children[0], text_of(node.children[1])
    value_node = node.child_by_field_name("value")
    name = text_of(target if target.type == "variable_name" else target.named_children[0])
    if target.type == "subscript":
        shell.assign(name, f"${name}")
    elif value_node is not None and value_node.type == "array":
        array = array_of(value_node, shell)
        is_added = operator == "+=" and name in shell.variables
        shell.assign(name, [*shell.elements(name), *array] if is_added else array)
    else:
        value = value_of(value_node, shell) if value_node is not None else ""
        if operator == "+=" and name in shell.variables:
            value = shell.value(name) + value
        shell.assign(name, value)


def declare(node: Node, shell: Shell) -> None:
    words = [text_of(child) for child in node.named_children if child.type == "word"]
    is_exported = text_of(node.children[0]) == "export" or any(word.startswith("-") and "x" in word for word in words)
    for child in node.named_children:
        if child.type == "variable_assignment":
            assign(child, shell)
            name = text_of(child.named_children[0])
        elif child.type == "variable_name":
            name = text_of(child)
        else:
            continue
        if is_exported:
            shell.exported.add(name)


def unset(node: Node, shell: Shell) -> None:
    for child in node.named_children:
        shell.variables.pop(text_of(child), None)
        shell.unset.add(text_of(child))
