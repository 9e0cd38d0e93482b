"""The text of a shell → the commands that it executes, with the values that a node has for its variables.

Nothing is executed. A branch is followed if its condition may hold; what both branches leave differently is not known
after them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from jobsubmit.check.shell.assignments import assign, declare, unset
from jobsubmit.check.shell.commands import Broken, Commands, Continued, Exited, Left
from jobsubmit.check.shell.conditions import is_sum_true, is_true
from jobsubmit.check.shell.parsing import parse_shell
from jobsubmit.check.shell.state import Executed, Shell
from jobsubmit.check.shell.texts import is_open
from jobsubmit.check.shell.words import command_words, text_of, value_of, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_STEPS = 5_000
_MOST_PASSES = 50
_SEQUENCES = ("program", "do_group", "else_clause", "negated_command", "variable_assignments")
_ASSIGNS = ("variable_assignment", "variable_assignments", "declaration_command")
_TESTS = ("test_command", "list", "negated_command")


def follow_words(words: Sequence[str], shell: Shell) -> list[Executed]:
    """Return what is executed for the words of a command."""
    follower = _Follower()
    with suppress(Left):
        follower.execute(list(words), {}, shell, "command")
    return follower.executed


class _Follower(Commands):
    """Follows statements, and the shells that they start."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._by_type: dict[str, Callable[[Node, Shell], object]] = {
            **dict.fromkeys(_SEQUENCES, lambda node, shell: self._follow_all(node.named_children, shell)),
            "variable_assignment": assign,
            "declaration_command": declare,
            "unset_command": unset,
            "command": self._follow_command,
            "redirected_statement": self._follow_redirected,
            "compound_statement": self._follow_compound,
            "function_definition": self._define,
            "list": self._follow_list,
            "pipeline": self._follow_pipeline,
            "subshell": self._follow_inside,
            "if_statement": self._follow_if,
            "case_statement": self._follow_case,
            "for_statement": self._follow_for,
            "while_statement": self._follow_while,
            "c_style_for_statement": self._follow_counted,
        }

    def follow(self, node: Node, shell: Shell) -> None:
        """Follow a statement."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise Exited
        if node.type in ("command", *_ASSIGNS) and text_of(node).startswith("--"):
            self._follow_option(node, shell)
        elif node.type in self._by_type:
            self._by_type[node.type](node, shell)

    def _follow_all(self, nodes: Iterable[Node], shell: Shell) -> None:
        for node in nodes:
            if node.next_sibling is not None and node.next_sibling.type == "&":
                self._follow_inside(node, replace(shell, in_background=True))
            else:
                self.follow(node, shell)

    def _follow_inside(self, node: Node, shell: Shell) -> None:
        """Follow what is executed in a subshell: what it sets is lost."""
        inner = shell.copy()
        with suppress(Left):
            if node.type == "subshell":
                self._follow_all(node.named_children, inner)
            else:
                self.follow(node, inner)

    def _follow_redirected(self, node: Node, shell: Shell) -> None:
        body = node.child_by_field_name("body")
        pipes = [part for child in node.named_children for part in child.named_children if part.type == "pipeline"]
        if body is not None:
            self.follow(body, shell)
        for pipe in pipes:
            self._follow_inside(pipe, shell)

    def _follow_command(self, node: Node, shell: Shell) -> None:
        name = node.child_by_field_name("name")
        assignments = [child for child in node.named_children if child.type == "variable_assignment"]
        own = [child for child in assignments if name is None or not _is_line_between(child, name, node)]
        for child in assignments:
            if child not in own:
                assign(child, shell)
        inner = shell.copy()
        for child in own:
            assign(child, inner)
        given = {text_of(child.named_children[0]) for child in own}
        if words := command_words(node, shell):
            self.call(words, {name: inner.value(name) for name in given}, shell, _place(node, shell))

    def _follow_option(self, node: Node, shell: Shell) -> None:
        """Follow an option that stands where a command would: the parser takes `--lr=1` for an assignment."""
        line = parse_shell(f": {text_of(node)}").root_node.named_children[0]
        self.call(command_words(line, shell)[1:], {}, shell, _place(node, shell))

    def _follow_compound(self, node: Node, shell: Shell) -> None:
        """Follow `{ … }`, or a sum: `(( i++ ))`."""
        if not text_of(node).startswith("(("):
            self._follow_all(node.named_children, shell)
            return
        shell.compute(text_of(node)[2:-2])

    def _follow_pipeline(self, node: Node, shell: Shell) -> None:
        for child in node.named_children:
            self._follow_inside(child, shell)

    def _define(self, node: Node, shell: Shell) -> None:
        shell.functions[text_of(node.named_children[0])] = node.named_children[-1]

    def _holds(self, node: Node, shell: Shell) -> bool | None:
        """Return whether a command that is a condition succeeds, None if it is not known; follow it, too."""
        text = text_of(node)
        if node.type == "test_command":
            return is_true(node, shell)
        if node.type in ("binary_expression", "unary_expression") or text.startswith("(("):
            return is_sum_true(text.removeprefix("((").removesuffix("))"), shell)
        if node.type == "negated_command":
            found = self._holds(node.named_children[0], shell)
            return None if found is None else not found
        if node.type == "list":
            return self._follow_list(node, shell)
        if node.type == "command" and (holds := self._holds_by_words(node, shell)) is not None:
            return holds
        self.follow(node, shell)
        return True if node.type in _ASSIGNS else None

    def _holds_by_words(self, node: Node, shell: Shell) -> bool | None:
        """Return whether a command succeeds that is one of a shell's own, also as a variable or by `eval`."""
        words = command_words(node, shell)
        if words[:1] == ["eval"]:
            statements = parse_shell(" ".join(words[1:])).root_node.named_children
            return self._holds(statements[0], shell) if len(statements) == 1 else None
        return None if words not in (["true"], [":"], ["false"]) else words != ["false"]

    def _follow_list(self, node: Node, shell: Shell) -> bool | None:
        """Follow `a && b` or `a || b`, and return whether it succeeds. A program before && is expected to."""
        left, right = node.named_children[0], node.named_children[-1]
        is_and = any(child.type == "&&" for child in node.children)
        holds = self._holds(left, shell)
        if holds is None:
            expected = True if left.type not in _TESTS else _expected(left, shell)
            self._either([partial(self.follow, right), _do_nothing], shell, _same(expected, is_and))
            return None
        if holds is is_and:
            return self._holds(right, shell)
        return holds

    def _either(
        self, branches: Sequence[Callable[[Shell], object]], shell: Shell, is_first_expected: bool | None = None
    ) -> None:
        """Follow branches of which one is taken, and it is not known which; the one that is expected, if it goes on."""
        branches = branches if is_first_expected is not False else branches[::-1]
        ends, left = list[Shell](), list[Left]()
        for branch in branches:
            inner = shell.copy()
            inner.is_sure = False
            try:
                branch(inner)
                ends.append(inner)
            except Left as error:
                left.append(error)
            if ends and is_first_expected is not None:
                break
        if not ends:
            raise left[0]
        shell.merge(ends)
        if any(isinstance(error, Broken) for error in left):
            shell.is_sure = False

    def _follow_if(self, node: Node, shell: Shell) -> None:
        clauses = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
        self._follow_clauses([node, *clauses], shell)

    def _follow_clauses(self, clauses: list[Node], shell: Shell) -> None:
        """Follow the first of some clauses whose condition holds, or all that may be it."""
        if not clauses:
            return
        first, *rest = clauses
        body, holds = [child for child in first.named_children if child not in rest], None
        if first.type == "else_clause":
            self._follow_all(body, shell)
            return
        named = [child for child in first.children_by_field_name("condition") if child.is_named]
        conditions = named or body[:1]  # the parser does not name that of elif
        for condition in conditions:
            holds = self._holds(condition, shell)
        body = [child for child in body if child not in conditions and child.type != "elif_clause"]
        if holds is None:
            expected = _expected(conditions[-1], shell)
            self._either([partial(self._follow_all, body), partial(self._follow_clauses, rest)], shell, expected)
        elif holds:
            self._follow_all(body, shell)
        else:
            self._follow_clauses(rest, shell)

    def _follow_case(self, node: Node, shell: Shell) -> None:
        subject = node.child_by_field_name("value")
        value = value_of(subject, shell) if subject is not None else ""
        items = [child for child in node.named_children if child.type == "case_item"]
        for item in items:
            patterns = item.children_by_field_name("value")
            texts = [value_of(pattern, shell).strip("'\"") for pattern in patterns]
            if not is_open(value) and any(fnmatch.fnmatchcase(value, text) for text in texts):
                self._follow_all(item.named_children[len(patterns) :], shell)
                return
        if is_open(value):
            bodies = [item.named_children[len(item.children_by_field_name("value")) :] for item in items]
            self._either([*(partial(self._follow_all, body) for body in bodies), _do_nothing], shell)

    def _follow_for(self, node: Node, shell: Shell) -> None:
        name, body = text_of(node.named_children[0]), node.named_children[-1]
        values = [child for child in node.children_by_field_name("value") if child.is_named]
        words = [word for child in values for word in words_of(child, shell)] if values else list(shell.arguments)
        for word in words[:_MOST_PASSES]:
            shell.assign(name, f"${name}" if is_open(word) else word)
            if not self._pass(body, shell):
                break

    def _follow_while(self, node: Node, shell: Shell) -> None:
        """Follow a loop as long as its condition is known to hold, once if it may, or if nothing changes."""
        conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
        body = node.child_by_field_name("body")
        is_until = any(child.type == "until" for child in node.children)
        for _ in range(_MOST_PASSES):
            before = dict(shell.variables), list(shell.arguments)
            holds: bool | None = None
            for condition in conditions if node.type == "while_statement" else ():
                holds = self._holds(condition, shell)
            if body is None or (holds is not None and holds is is_until):
                return
            if holds is None:
                self._either([partial(self._pass, body), _do_nothing], shell)
                return
            if not self._pass(body, shell) or before == (shell.variables, shell.arguments):
                return

    def _follow_counted(self, node: Node, shell: Shell) -> None:
        """Follow `for ((i = 0; i < n; i++))` as long as its condition is known to hold, once if it may."""
        first, tests, changes = (
            [text_of(child) for child in node.children_by_field_name(name) if child.is_named]
            for name in ("initializer", "condition", "update")
        )
        body = node.child_by_field_name("body")
        for text in first:
            shell.compute(text)
        for _ in range(_MOST_PASSES):
            holds = is_sum_true(tests[-1], shell) if tests else None
            if body is None or holds is False:
                return
            if holds is None:
                self._either([partial(self._pass, body), _do_nothing], shell)
                return
            if not self._pass(body, shell):
                return
            for text in changes:
                shell.compute(text)

    def _pass(self, body: Node, shell: Shell) -> bool:
        """Follow a pass of a loop; return whether another one may follow."""
        try:
            self.follow(body, shell)
        except Continued:
            return True
        except Broken:
            return False
        return True


def _expected(condition: Node, shell: Shell) -> bool | None:
    """Return whether a test holds if no variable is set that nothing in the job sets."""
    return is_true(condition, replace(shell, supposes_unset=True)) if condition.type == "test_command" else None


def _same(holds: bool | None, is_and: bool) -> bool | None:
    return None if holds is None else holds is is_and


def _do_nothing(_: Shell) -> None:
    """Take a branch that is not there."""


def _is_line_between(before: Node, after: Node, whole: Node) -> bool:
    """Return whether a line ends between two parts of a command, as its parser does not see after some assignments."""
    text = (whole.text or b"")[before.end_byte - whole.start_byte : after.start_byte - whole.start_byte]
    return b"\n" in text.replace(b"\\\n", b"")


def _place(node: Node, shell: Shell) -> str:
    return shell.place or (f"{shell.file}:{node.start_point.row + 1}" if shell.file else "command")
