"""Words of a shell's text → what the shell makes of them: variables, arrays, sums and outputs of a few commands."""

from __future__ import annotations

import codecs
import fnmatch
import posixpath
import re
from typing import TYPE_CHECKING

from jobsubmit.check.shell.state import Shell
from jobsubmit.check.shell.texts import HERE, computed, is_open

if TYPE_CHECKING:
    from tree_sitter import Node

# `${NAME…}`: an indirection or a length, the name, an index, and an operator.
_BRACES = re.compile(r"\$\{([!#]?)(\w+|[@*#])(?:\[([^\]]*)\])?(:?[-=+?]|##?|%%?|//?|:|\^\^?|,,?)?", re.DOTALL)
_ALL = ("@", "*")
_PIECES = re.compile(r"(?:\$\([^()]*(?:\([^()]*\)[^()]*)*\)|\S)+")  # between spaces, but not those of an unknown output
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")


def text_of(node: Node) -> str:
    return node.text.decode(errors="replace") if node.text else ""


def words_of(node: Node, shell: Shell) -> list[str]:
    """Return the words that a word of the text becomes: none, one or several."""
    words: list[str] = []
    current: str | None = None
    for part, is_split in _parts(node, shell):
        if not is_split:
            for index, text in enumerate(part):
                if index:
                    words.append(current or "")
                current = text if index else (current or "") + text
            continue
        text = "".join(part)
        pieces = _PIECES.findall(text)
        if text[:1].isspace() and current is not None:
            words.append(current)
            current = None
        for index, piece in enumerate(pieces):
            if index:
                words.append(current or "")
                current = None
            current = (current or "") + piece
        if pieces and text[-1:].isspace():
            words.append(current or "")
            current = None
    return words if current is None else [*words, current]


def value_of(node: Node, shell: Shell) -> str:
    """Return the text that an assignment or a test makes of a word: it is not split."""
    return "".join(" ".join(part) for part, _ in _parts(node, shell))


def array_of(node: Node, shell: Shell) -> list[str]:
    return [word for child in node.named_children if child.type != "comment" for word in words_of(child, shell)]


def _parts(node: Node, shell: Shell) -> list[tuple[list[str], bool]]:
    """Return texts of which a word consists, each as a list of words, and whether spaces in it separate words."""
    if node.type in ("concatenation", "command_name"):
        return [part for child in node.children for part in _parts(child, shell)]
    if node.type in _EXPANSIONS:
        values = _expanded(node, shell)
        return [(values, len(values) == 1)]
    return [(_quoted(node, shell) if node.type == "string" else [_literal(node)], False)]


def _literal(node: Node) -> str:
    """Return the text of a word without variables."""
    text = text_of(node)
    match node.type:
        case "raw_string":
            return text[1:-1]
        case "ansi_c_string":
            return codecs.decode(text[2:-1], "unicode_escape")
        case "brace_expression" | "process_substitution":
            return f"$({text})"
    return re.sub(r"^~(?=/|$)", "$HOME", re.sub(r"\\(.)", r"\1", text.replace("\\\n", "")))


def _quoted(node: Node, shell: Shell) -> list[str]:
    """Return the words of a text in double quotes: one, but for "$@" and the elements of an array."""
    words = [""]
    end = node.start_byte + 1
    source, start = text_of(node).encode(), node.start_byte
    for child in [one for one in node.children if one.type in _EXPANSIONS]:
        words[-1] += _unescaped(source[end - start : child.start_byte - start])
        values = _expanded(child, shell)
        if len(values) != 1 and len(node.children) == 3:  # noqa: PLR2004 - the quotes, and what is between them
            return values
        first, *more = values or [""]
        words[-1] += first
        words += more
        end = child.end_byte
    words[-1] += _unescaped(source[end - start : len(source) - 1])
    return words


def _unescaped(text: bytes) -> str:
    return re.sub(r'\\([$`"\\\n])', lambda found: found[1].strip("\n"), text.decode(errors="replace"))


def _expanded(node: Node, shell: Shell) -> list[str]:
    """Return what stands for an expansion: several words only for arrays and arguments."""
    text = text_of(node)
    match node.type:
        case "simple_expansion":
            name = text[1:]
            return shell.elements(name) if name in _ALL else [shell.value(name)]
        case "arithmetic_expansion":
            inner = text[3:-2] if text.startswith("$((") else text[2:-1]
            return [computed(inner, shell.value)]
        case "command_substitution":
            return [_output(node, shell)]
    return _in_braces(node, text, shell)


def _in_braces(node: Node, text: str, shell: Shell) -> list[str]:
    found = _BRACES.match(text)
    if found is None:
        return [f"${{{text[2:-1]}}}"]
    before, name, index, operator = found.groups()
    if before == "#":
        values = shell.elements(name) if index in _ALL else [shell.value(name)]
        is_known = not any(is_open(value) for value in values)
        length = len(values) if index in _ALL else len(values[0])
        return [str(length) if is_known else f"${name}"]
    if before == "!":
        name = shell.value(name)
        if not name.isidentifier():
            return [f"${{{text[2:-1]}}}"]
    values = shell.elements(name) if index in _ALL or name in _ALL else [_element(name, index, shell)]
    operands = [child for child in node.children if child.start_byte >= node.start_byte + found.end()][:-1]
    if operator is None:
        return values
    return _operated(operator, name, values, operands, shell)


def _element(name: str, index: str | None, shell: Shell) -> str:
    values = shell.elements(name) if index else [shell.value(name)]
    if not index or not index.lstrip("-").isdecimal() or any(value == f"${name}" for value in values):
        return values[0] if not index and values else f"${name}"
    return values[int(index)] if int(index) < len(values) else ""


def _operated(operator: str, name: str, values: list[str], operands: list[Node], shell: Shell) -> list[str]:
    """Return what `${NAME<operator>operand}` is."""
    operand = "".join(value_of(child, shell) for child in operands)
    if operator.lstrip(":") in ("-", "=", "?", "+"):
        return _with_default(operator, name, values, operand, shell)
    if operator == ":" and operand.isdecimal():
        if name == "@":
            return values[max(int(operand) - 1, 0) :]
        return values[int(operand) :] if name in shell.variables and len(values) > 1 else [values[0][int(operand) :]]
    if any(is_open(value) for value in (*values, operand)):
        return [f"${name}"]
    return [_changed(operator, value, operand) or f"${name}" for value in values]


def _with_default(operator: str, name: str, values: list[str], operand: str, shell: Shell) -> list[str]:
    """Return what `${NAME:-operand}` is, or `:=`, `:+` and `:?`: what nothing in the job sets is not set."""
    is_unset = not values if name in _ALL else shell.is_unset(name) or shell.is_likely_unset(name)
    if operator.endswith("+"):
        return [] if is_unset else [operand]
    if not is_unset or operator.endswith("?"):
        return values
    if operator.endswith("="):
        shell.assign(name, operand)
    return [operand]


def _changed(operator: str, value: str, operand: str) -> str:
    """Return a text with its beginning or end removed, or in other letters; empty for other operators."""
    if operator in ("^^", ",,"):
        return value.upper() if operator == "^^" else value.lower()
    sizes = range(len(value) + 1)
    if operator in ("#", "##"):
        ends = [size for size in sizes if fnmatch.fnmatchcase(value[:size], operand)]
        return value[(min(ends) if operator == "#" else max(ends)) if ends else 0 :]
    if operator in ("%", "%%"):
        starts = [size for size in sizes if fnmatch.fnmatchcase(value[size:], operand)]
        return value[: (max(starts) if operator == "%" else min(starts)) if starts else len(value)]
    return ""


def _output(node: Node, shell: Shell) -> str:
    """Return the output of commands that only compute with texts; `$(…)` for that of others."""
    inner = node.named_children[0] if len(node.named_children) == 1 else None
    commands = [inner] if inner is not None and inner.type != "list" else inner.named_children if inner else []
    here, output = shell.copy(), ""
    for command in commands:
        body = command.child_by_field_name("body") if command.type == "redirected_statement" else command
        words = [] if body is None or body.type != "command" else command_words(body, here)
        if words[:1] == ["cd"] and len(words) > 1:
            here.go_to(words[1])
            continue
        found = _printed(words, here)
        if found is None:
            return f"$({' '.join(text_of(node)[2:-1].split())})"
        output = found
    return output


def _printed(words: list[str], shell: Shell) -> str | None:
    match [word for word in words if word not in ("--", "-f", "-e", "-n")]:
        case ["pwd", *_]:
            return shell.folder
        case ["dirname", path]:
            return posixpath.dirname(path) or "."
        case ["basename", path, *suffixes]:
            return posixpath.basename(path).removesuffix("".join(suffixes))
        case ["realpath" | "readlink", path] if (found := shell.path(path)) is not None:
            return posixpath.join(HERE, found).rstrip("/")
        case ["echo", *texts] if texts:
            return " ".join(texts)
    return None


def command_words(command: Node, shell: Shell) -> list[str]:
    """Return the words of a command, without the assignments before it."""
    parts = [child for child in command.named_children if child.type not in ("variable_assignment", "comment")]
    parts = [part for part in parts if not part.type.endswith("redirect")]
    return [word for part in parts for word in words_of(part, shell)]
