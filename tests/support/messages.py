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
_PROSE = re.compile(r"[A-Za-z]{2,}\W* (?:\S+ )*\W*[a-z]{2,}")
_VALUE = re.compile(r"%(?:\.\d+)?[sdrf]|\{\w*\}")
# Comments, lines that nodes print, programs, and regular expressions.
_NO_MESSAGE = re.compile(r"#|jobsubmit: |--\{|\s*import |from \w+\||.*(?:\(\?|\\d)")
_QUOTED = re.compile(r"`[^`]*`")
# Shown in English only: help, examples, and descriptions of fields, which the reference pages hold too.
_HELP_CALLS = {"Option", "Argument", "Field", "Command", "Typer", "add_argument", "ArgumentParser", "compile"}
_HELP_FILES = {"cli/commands.py", "cli/topics.py", "cli/help.py", "spec/json_schema.py", "agent/node_contract.py"}


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
    found: dict[tuple[str, str], list[str]] = {}
    for text in texts():
        if not (text.is_help or text.template.endswith("\n") or _NO_MESSAGE.match(text.template)):
            for line in filter(_is_prose, map(str.strip, text.template.split("\n"))):
                found.setdefault((line, text.plural), []).append(text.where)
    return found


def _is_prose(template: str) -> bool:
    return _PROSE.search(_QUOTED.sub("xx", template)) is not None


def _texts_below(node: ast.AST, file: str, is_help: bool) -> Iterator[Text]:
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "counted" and (noun := _string(node.args[1])):
            yield Text(f"{{number}} {noun}", f"{{number}} {noun}s", f"{file}:{node.lineno}", is_help)
        is_help = is_help or called in _HELP_CALLS
        if called == "_Row":  # of the table of failures: a pattern, its meaning and a hint
            for argument in node.args[1:]:
                yield from _texts_below(argument, file, is_help)
            return
    template = _template(node)
    if template is not None:
        if _is_prose(template):
            yield Text(_named(template), "", f"{file}:{getattr(node, 'lineno', 0)}", is_help)
        return
    for child in ast.iter_child_nodes(node):
        if not _is_docstring(child):
            yield from _texts_below(child, file, is_help)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _template(node: ast.AST) -> str | None:
    """Return a string as a template, whatever builds it: f-string, `+`, `%` or format; None for what is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if re.search(r"\{\d\}", node.value) else _escaped(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_value(part) if _string(part) is None else _escaped(str(_string(part))) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _template(node.left), _template(node.right)
        if left is None and right is None:
            return None
        return (_value(node.left) if left is None else left) + (_value(node.right) if right is None else right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and (text := _string(node.left)) is not None:
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


def update(file: Path) -> None:
    """Bring a catalogue up to date: keep what is translated, add what is new, drop what is gone."""
    from babel.messages import pofile
    from babel.messages.catalog import Catalog

    with file.open("rb") as stream:
        old = pofile.read_po(stream)
    new = Catalog(locale=old.locale, project="jobsubmit", header_comment=old.header_comment, fuzzy=False)
    new.mime_headers = old.mime_headers
    for (template, plural), places in messages().items():
        known = old.get(template)
        names = [place.rpartition(":")[0] for place in places]
        new.add(
            (template, plural) if plural else template,
            known.string if known else ("" if not plural else ("",)),
            locations=[(name, 0) for name in sorted(set(names))],
        )
    with file.open("wb") as stream:
        pofile.write_po(stream, new, width=0, omit_header=False, sort_output=False)


if __name__ == "__main__":
    for one in CATALOGUES:
        update(one)
