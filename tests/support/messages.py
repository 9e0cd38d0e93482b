"""The texts that users may see, read from the source, and the catalogues of their translations.

`python tests/support/messages.py` brings each catalogue up to date: new messages come in without a translation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jobsubmit"
CATALOGUES = sorted((PACKAGE / "locale").glob("*/LC_MESSAGES/jobsubmit.po"))
_PROSE = re.compile(r"(?:[A-Za-z]{2,}|\ba)\W* (?:\S+ )*\W*[a-z]{2,}")
_WORD = re.compile(r"(?:^|(?<=[ (]))(?:[a-z]{4,}|run|see|set|use|add)(?=[ ,;)]|: |:?$)")
_VALUE = re.compile(r"%(?:\.\d+)?[sdrf]|\{\w*\}")
# Comments, lines that nodes print, programs, and regular expressions.
_NO_MESSAGE = re.compile(
    r"#|<|python3 -I|Value error, |jobsubmit: |jobsubmit logs |bash /dev|exec |status code: |bold |--\{|from \w+\|"
    r"|\s*import \w+(?:\.\w+)*[,;|]"
    r"|\[[A-Z][a-z]\]|pip install |most recent|Traceback|Extension modules|During handling|The above exc"
    r"|create job.yaml|\{TORCHRUN\}"
    r"|.*(?:\(\?|\\d|\(\.\*|\[\^)"
)
# Commands, markup, the beginning of a name.
_NO_MESSAGE_EITHER = re.compile(r"<|jobsubmit (?:report )?\{|stacks of ?$")
# Torch's texts, a table of options, names.
_NO_MESSAGES_IN = ("agent/rank_reporter.py", "agent/sigv4.py", "check/program/training_arguments.py", "__init__.py")
_PAGE_TEXT = re.compile(r"""(?:'([^'\n]+)'|"([^"\n]+)") \| t\b""")
_QUOTED = re.compile(r"`[^`]*`")
# Shown in English only: help, examples, and descriptions of fields, which the reference pages hold too.
_HELP_CALLS = {"Option", "Argument", "Field", "Command", "Typer", "add_argument", "ArgumentParser", "compile"}
_HELP_FILES = {"cli/commands.py", "cli/topics.py", "cli/help.py", "spec/json_schema.py", "agent/node_contract.py"}


_WORDS = ("error", "warning", "hint", "note", "next", "cannot tell", "meaning", "lost")
# What argparse and click say; the code only passes it on.
_OF_LIBRARIES = (
    "{option}: invalid choice: {value} (choose from {choices})",
    "{option}: invalid {kind} value: {value}",
    "{option}: ignored explicit argument {value}",
    "{option}: expected one argument",
    "{option}: expected at least one argument",
    "argument {option}: {problem}",
    "invalid choice: {value} (choose from {choices})",
    "invalid {kind} value: {value}",
    "expected one argument",
    "the following arguments are required: {names}",
    "unrecognized arguments: {names}",
    "No such command {name}. Did you mean {names}?",
    "No such command {name}",
    "No such option: {option}",
    "Possible options: {names}",
    "Missing argument {name}.",
    "Missing option {name}.",
    "Option {option} requires an argument.",
    "Got unexpected extra argument ({names})",
    "Got unexpected extra arguments ({names})",
    "Got unexpected extra argument(s) ({names})",
    "Invalid value for {option}: {problem}",
    "{value} is not a valid integer.",
    "{value} is not one of {choices}.",
    "Input should be a valid integer, unable to parse string as an integer",
    "Input should be greater than or equal to {number}",
    "Input should be less than or equal to {number}",
    "No closing quotation",
    "No such file or directory",
    "Is a directory",
    "Not a directory",
    "Permission denied",
)
_UNITS = ("bytes", "characters", "ranks", "hours", "variables", "files")
LABELS = (*_WORDS, *_UNITS)


class Text(NamedTuple):
    """A text of the source: as a template for str.format, its plural, where it stands, and whether it is help."""

    template: str
    plural: str
    where: str
    is_help: bool


def texts() -> Iterator[Text]:
    """Yield the texts of the package that users may see, in the order of files and lines."""
    for file in sorted(PACKAGE.rglob("*.py")):
        name = str(file.relative_to(PACKAGE))
        tree = ast.parse(file.read_text(encoding="utf-8"))
        yield from _texts_below(tree, name, name in _HELP_FILES)


def messages() -> dict[tuple[str, str], list[str]]:
    """Return the texts that are translated (template, plural) with their places."""
    found: dict[tuple[str, str], list[str]] = {(text, ""): ["cli/console.py:1"] for text in (*LABELS, *_OF_LIBRARIES)}
    for text in texts():
        is_other = text.where.startswith(_NO_MESSAGES_IN) or _NO_MESSAGE.match(text.template)
        is_other = is_other or _NO_MESSAGE_EITHER.match(text.template)
        if not (text.is_help or is_other or text.template.endswith("\n")):
            for line in map(str.strip, text.template.split("\n")):
                if not (text.plural or _is_prose(line)):
                    continue
                found.setdefault((line, text.plural), []).append(text.where)
    return found


# What pages get as values: the names of phases, figures and origins. Longer ones are messages.
_PAGE_LABELS = (
    *("bundle", "check", "upload", "queue", "fetch", "inputs", "start-up", "training", "checkpoint", "exit", "hang"),
    *("other", "fault", "failure", "exposed", "goodput", "forward", "epoch", "total time"),
    *("handle", "submitted", "commit", "branch", "code", "digest", "nodes", "checkpoints"),
)


def page_texts() -> set[str]:
    """Return the texts of pages: those before `| t` in the templates, and short labels."""
    found: set[str] = set(_PAGE_LABELS)
    for file in (ROOT / "templates/page").glob("*.j2"):
        found.update(a or b for a, b in _PAGE_TEXT.findall(file.read_text(encoding="utf-8")))
    return found


def _is_prose(template: str) -> bool:
    """Return whether a text has words for people beside its values: two, or a long one."""
    own = _VALUE.sub("\0", _QUOTED.sub("\0", template))
    return _PROSE.search(own) is not None or ("\0" in own and _WORD.search(own) is not None)


def _texts_below(node: ast.AST, file: str, is_help: bool) -> Iterator[Text]:
    is_help = is_help and not isinstance(node, ast.Raise)
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "counted" and (noun := _string(node.args[1])):
            yield Text(f"{{number}} {noun}", f"{{number}} {noun}s", f"{file}:{node.lineno}", is_help)
        is_help = is_help or called in _HELP_CALLS
        if called == "KnownFailure":  # a pattern, its meaning and a hint
            for argument in node.args[1:]:
                yield from _texts_below(argument, file, is_help)
            return
    template = _template(node)
    if template is not None:
        if _is_prose(template):
            yield Text(_named(template), "", f"{file}:{getattr(node, 'lineno', 0)}", is_help)
        if isinstance(node, ast.Constant):
            return
    for child in ast.iter_child_nodes(node):
        if not (_is_docstring(child) or (template is not None and _string(child) is not None)):
            yield from _texts_below(child, file, is_help)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _template(node: ast.AST) -> str | None:
    """Return a string as a template, whatever builds it: f-string, `+`, `%` or format; None for what is no string."""
    match node:
        case ast.Constant(value=str(text)):
            return text if re.search(r"(?<![{$])\{(?:\d|[a-z]+)\}", text) else _escaped(text)
        case ast.JoinedStr(values=parts):
            return "".join(_value(part) if _string(part) is None else _escaped(str(_string(part))) for part in parts)
        case ast.BinOp(op=ast.Add()):
            sides = [(side, _template(side)) for side in (node.left, node.right)]
            return None if sides[0][1] is sides[1][1] is None else "".join(t or _value(side) for side, t in sides)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return re.sub(r"\{[^{}]*\}", "{value}", text)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _VALUE.sub("{value}", text)
    return None


def _string(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _value(node: ast.AST) -> str:
    """Return a value's place, named as what it is."""
    if isinstance(node, ast.FormattedValue):
        return _value(node.value)
    name = "value"
    if isinstance(node, ast.Name):
        name = node.id.strip("_")
    elif isinstance(node, ast.Attribute):
        name = node.attr.strip("_")
    return f"{{{name}}}"


def _named(template: str) -> str:
    """Return a template in which each value has a name of its own."""
    seen: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        seen[name] = seen.get(name, 0) + 1
        return f"{{{name}}}" if seen[name] == 1 else f"{{{name}_{seen[name]}}}"

    return re.sub(r"(?<!\{)\{(\w+)\}", number, template)


def translations(file: Path) -> dict[str, str]:
    """Return what is translated in a catalogue, plurals under both forms."""
    from babel.messages import pofile

    with file.open("rb") as stream:
        found = [(one.id, one.string) for one in pofile.read_po(stream, abort_invalid=True) if one.id]
    pairs = [(ids if isinstance(ids, tuple) else (ids,), text) for ids, text in found]
    return {str(one): text if isinstance(text, str) else text[0] for ids, text in pairs for one in ids if text}


def update(file: Path) -> None:
    """Bring a catalogue up to date: keep what is translated, add what is new, drop what is gone."""
    from babel.messages import pofile
    from babel.messages.catalog import Catalog

    with file.open("rb") as stream:
        old = pofile.read_po(stream)
    new = Catalog(old.locale, header_comment=old.header_comment, project="jobsubmit", version="", fuzzy=False)
    new.creation_date, new.revision_date = old.creation_date, old.revision_date
    for (template, plural), places in messages().items():
        known = old.get(template)
        names = sorted({place.rpartition(":")[0] for place in places})
        text = known.string if known else ("",) if plural else ""
        new.add((template, plural) if plural else template, text, locations=[(name, 0) for name in names])
    with file.open("wb") as stream:
        pofile.write_po(stream, new, width=0)


if __name__ == "__main__":
    for one in CATALOGUES:
        update(one)
