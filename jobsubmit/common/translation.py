"""Messages in the reader's language, from gettext catalogues.

The code builds messages in English. They are translated where they are shown: a message that was built from a template
(an f-string) is recognized by the words around its values. All that is stored, sent or compared stays English.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import NamedTuple

_LOCALE = Path(__file__).parents[1] / "locale"
_CATALOGUES = {"zh": "zh_CN"}
_STRING = re.compile(r'(msgid_plural|msgid|msgstr(?:\[0\])?)? ?"(.*)"')
_ESCAPED = re.compile(r"\\(.)")
_JOINTS = ("  ", ": ", "; ", ", ", ". ")  # between the parts of a message that has no template as a whole


class Template(NamedTuple):
    """A message with values in it: the texts around them, and their names."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def letters(self) -> int:
        return sum(map(len, self.texts))

    def fits(self, message: str) -> bool:
        """Return whether the texts occur in their order: quick, and sure only that a message does not fit."""
        at = 0
        for text in self.texts:
            at = message.find(text, at)
            if at < 0:
                return False
            at += len(text)
        return message.startswith(self.texts[0]) and message.endswith(self.texts[-1])

    def values_in(self, message: str) -> Mapping[str, str] | None:
        """Return the values of a message that was built from this template; None if it was not."""
        found = self.fits(message) and re.fullmatch("(.*?)".join(map(re.escape, self.texts)), message, re.S)
        return dict(zip(self.names, found.groups(), strict=True)) if found else None

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the message for some values."""
        return self.texts[0] + "".join(
            values[name] + text for name, text in zip(self.names, self.texts[1:], strict=True)
        )


def parse_template(text: str) -> Template:
    """Return a template that is written as for str.format: `{name}` is a value, `{{` a brace."""
    texts, names = [""], []
    for literal, name, _, _ in Formatter().parse(text):
        texts[-1] += literal
        if name is not None:
            names.append(name)
            texts.append("")
    return Template(tuple(texts), tuple(names))


class Catalogue:
    """The translations of one language."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        pairs = [(parse_template(message), parse_template(text)) for message, text in messages.items()]
        self.exact = {message.texts[0]: text for message, text in pairs if not message.names}
        self.templates = sorted((pair for pair in pairs if pair[0].names), key=lambda pair: -pair[0].letters)

    def translate(self, message: str) -> str | None:
        """Return the translation of a message; of its parts, if it has none as a whole; None if nothing of it has."""
        stripped = message.strip()
        if not stripped:
            return None
        if (known := self._known(stripped)) is not None:
            return message.replace(stripped, known)
        for joint in filter(stripped.__contains__, _JOINTS):
            parts = [(part, self._known(part)) for part in stripped.split(joint)]
            if any(known for _, known in parts):
                shown = joint.join(known or self.translate(part) or part for part, known in parts)
                return message.replace(stripped, shown)
        return None

    def _known(self, message: str) -> str | None:
        if message in self.exact:
            return self.exact[message].texts[0]
        for template, translation in self.templates:
            if (values := template.values_in(message)) is not None:
                return translation.filled({name: self.translate(value) or value for name, value in values.items()})
        return None


def translate(message: str) -> str:
    """Return a message in the reader's language; in English if that has no translation of it."""
    catalogue = _catalogue(language())
    return "\n".join(catalogue.translate(line) or line for line in message.split("\n")) if catalogue else message


def language() -> str:
    """Return the reader's language, as JOBSUBMIT_LANG or the locale names it: `zh`, or `en` for every other one."""
    names = ("JOBSUBMIT_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    chosen = next((value for name in names if (value := os.environ.get(name))), "")
    return next((known for known in _CATALOGUES if re.match(rf"{known}(?![a-z])", chosen, re.I)), "en")


@cache
def _catalogue(chosen: str) -> Catalogue | None:
    if chosen not in _CATALOGUES:
        return None
    file = _LOCALE / _CATALOGUES[chosen] / "LC_MESSAGES/jobsubmit.po"
    return Catalogue(dict(read_catalogue(file.read_text(encoding="utf-8"))))


def read_catalogue(text: str) -> Iterator[tuple[str, str]]:
    """Yield each translated message of a catalogue (the text of a .po file) with its translation, plurals apart."""
    for entry in text.split("\n\n"):
        strings: dict[str, str] = {}
        name = ""
        for found in map(_STRING.fullmatch, entry.splitlines()):
            if found:
                name = found[1] or name
                strings[name] = strings.get(name, "") + _ESCAPED.sub(_escaped, found[2])
        translation = strings.get("msgstr") or strings.get("msgstr[0]")
        if translation and strings["msgid"] and "\n#, fuzzy" not in f"\n{entry}":
            for message in filter(None, (strings["msgid"], strings.get("msgid_plural"))):
                yield message, translation


def _escaped(found: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(found[1], found[1])
