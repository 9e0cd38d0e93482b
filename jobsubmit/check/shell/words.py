"""Words of a shell's text → what the shell makes of them: variables, arrays, sums and outputs of a few commands."""

from __future__ import annotations

import codecs
import fnmatch
import posixpath
import re
import shlex
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from jobsubmit.check.shell.parsing import parse_shell
from jobsubmit.check.shell.state import Shell
from jobsubmit.check.shell.texts import HERE, computed, is_open

if TYPE_CHECKING:
    from tree_sitter import Node

# `${NAME…}`: an indirection or a length, the name, an index, and an operator.
_BRACES = re.compile(r"\$\{([!#]?)(\w+|[@*#])(?:\[([^\]]*)\])?(:?[-=+?]|##?|%%?|//?|:|\^\^?|,,?)?", re.DOTALL)
_ALL = ("@", "*")
_REPLACES = re.compile(r"s([/|#,])([\w^$_ .,-]*)\1([^/|#,&\\]*)\1(g?);?")  # a plain pattern, and a text
_PIECES = re.compile(r"(?:\$\([^()]*(?:\([^()]*\)[^()]*)*\)|\S)+")  # between spaces, but not those of an unknown output
_LONGEST_COUNT = 1000
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
    plain = re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))
    return re.sub(r"^~(?=/|$)", "$HOME", plain)


def _quoted(node: Node, shell: Shell) -> list[str]:
    """Return the words of a text in double quotes: one, but for "$@" and the elements of an array."""
    words = [""]
    end = node.start_byte + 1
    source, start = node.text or b"", node.start_byte
    for child in [one for one in node.children if one.type in _EXPANSIONS]:
        begin = child.start_byte + _spaces_before(child)
        words[-1] += _unescaped(source[end - start : begin - start])
        values = _expanded(child, shell)
        if text_of(child) in ("$*", "${*}") or text_of(child).endswith("[*]}"):
            values = [" ".join(values)]
        if len(values) != 1 and len(node.children) == 3:  # noqa: PLR2004 - the quotes, and what is between them
            return values
        first, *more = values or [""]
        words[-1] += first
        words += more
        end = child.end_byte
    words[-1] += _unescaped(source[end - start : len(source) - 1])
    return words


def _spaces_before(node: Node) -> int:
    """Return how many spaces the parser counts to an expansion although they are before it: `"$A $B"`."""
    text = text_of(node)
    return len(text) - len(text.lstrip())


def _unescaped(text: bytes) -> str:
    plain = text.decode(errors="replace")
    return re.sub(r'\\([$`"\\\n])', lambda found: found[1].strip("\n"), plain)


def _expanded(node: Node, shell: Shell) -> list[str]:
    """Return what stands for an expansion: several words only for arrays and arguments."""
    text = text_of(node).lstrip()
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
    begin = node.start_byte + _spaces_before(node) + found.end()
    operands = [child for child in node.children if child.start_byte >= begin][:-1]
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
    here, output, text = shell.copy(), "", text_of(node).lstrip()
    inner = re.sub(r"\\([\\$`])", r"\1", text[1:-1]) if text.startswith("`") else text[2:-1]
    statements = parse_shell(inner).root_node.named_children if text.startswith("`") else node.named_children
    for command in _flat(statements):
        words = command_words(command, here) if command.type == "command" else []
        if words[:1] == ["cd"] and len(words) > 1:
            here.go_to(words[1])
            continue
        found = _printed(words, here, output)
        if found is None:
            return f"$({' '.join(re.sub('[()]', '', inner).split())})"
        output = found
    return output


def _flat(nodes: list[Node]) -> list[Node]:
    """Return the commands of lists and pipelines, in their order."""
    flat = []
    for node in nodes:
        body = node.child_by_field_name("body") if node.type == "redirected_statement" else None
        flat += _flat(node.named_children) if node.type in ("list", "pipeline") else _flat([body]) if body else [node]
    return flat


def _printed(words: list[str], shell: Shell, before: str) -> str | None:
    """Return what a command prints, that reads `before`; None if it is not known."""
    printed: str | None = None
    match [word for word in words if word not in ("--", "-f", "-e", "-n", "-P")]:
        case ["pwd", *_]:
            printed = shell.folder
        case ["dirname", path]:
            printed = posixpath.dirname(path) or "."
        case ["basename", path, *suffixes]:
            printed = posixpath.basename(path).removesuffix("".join(suffixes))
        case ["realpath" | "readlink", path] if (found := shell.path(path)) is not None:
            printed = posixpath.join(HERE, found).rstrip("/")
        case ["echo" | "printf", *texts] if texts:
            printed = " ".join(texts)
        case ["seq", *numbers]:
            printed = _counted(numbers)
        case ["getopt", *_]:
            printed = _sorted_options(words[1:])
        case ["eval", "echo", *texts]:
            printed = " ".join(shell.value(text[1:]) if text.startswith("$") else text for text in texts)
        case ["sed", script]:
            printed = _replaced(script, before)
    return printed


def _counted(numbers: list[str]) -> str | None:
    """Return what `seq [FIRST [STEP]] LAST` prints, unless that is long."""
    if not 0 < len(numbers) <= 3 or not all(re.fullmatch(r"-?\d+", one) for one in numbers):  # noqa: PLR2004
        return None
    first, step, last = {1: ("1", "1", *numbers), 2: (numbers[0], "1", *numbers[1:]), 3: tuple(numbers)}[len(numbers)]
    if int(step) == 0:
        return None
    found = range(int(first), int(last) + (1 if int(step) > 0 else -1), int(step))
    return "\n".join(map(str, found)) if len(found) <= _LONGEST_COUNT else None


def _sorted_options(words: list[str]) -> str | None:
    """Return what `getopt -o SHORT --long NAMES -- ARGUMENTS` prints: each option with its value, quoted."""
    if "--" not in words:
        return None
    at = words.index("--")
    given = dict(pairwise(words[:at]))
    names = ",".join(given.get(name, "") for name in ("-l", "--long", "--longoptions")).split(",")
    short = given.get("-o", given.get("--options", ""))
    takes = {f"--{name.rstrip(':')}": ":" in name for name in names if name}
    takes |= {f"-{letter}": following == ":" for letter, following in pairwise(f"{short} ") if letter != ":"}
    rest, options, others = words[at + 1 :], list[str](), list[str]()
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        if name not in takes:
            others.append(f"{name}{separator}{value}")
            continue
        options.append(name)
        if takes[name]:
            options.append(value if separator or not rest else rest.pop(0))
    return shlex.join([*options, "--", *others])


def _replaced(script: str, text: str) -> str | None:
    """Return what `sed` makes of a text by replacing a plain pattern; None for what else it can do."""
    found = _REPLACES.fullmatch(script)
    if found is None or is_open(text):
        return None
    with suppress(re.error):
        return re.sub(found[2], found[3], text, count=0 if found[4] else 1)
    return None


def command_words(command: Node, shell: Shell) -> list[str]:
    """Return the words of a command, without the assignments before it."""
    parts = [child for child in command.named_children if child.type not in ("variable_assignment", "comment")]
    parts = [part for part in parts if not part.type.endswith("redirect")]
    return [word for part in parts for word in words_of(part, shell)]
