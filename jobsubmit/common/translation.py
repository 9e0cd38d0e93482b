"""Messages in the reader's language, from gettext catalogues.

The code builds messages in English. They are translated where they are shown: a message that was built from a template
(an f-string) is recognized by the words around its values. All that is stored, sent or compared stays English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import NamedTuple

_LOCALE = Path(__file__).parents[1] / "locale"
_FOLDERS = {"zh": "zh_CN"}
_STRING = re.compile(r'(msgid_plural|msgid|msgstr(?:\[0\])?)? ?"(.*)"')
_ESCAPED = re.compile(r"\\(.)")
# Between the parts of a message; the commas in a list of quoted words are none.
_JOINT = r"^ +| {2,}|(?<=`)(?:, | or | and )(?=`)|(?:[:;.?]|,(?<!',)|,(?! ')) | ?\(|\)(?:$| )|[:;,.?] *$|^[:;,] *"
_WORDS_OF_JOINTS = {" or ": " 或 ", " and ": " 和 "}
_CHINESE_JOINTS = {",": "\uff0c", ";": "\uff1b", ":": "\uff1a", "?": "\uff1f", "(": "\uff08"}
_CHINESE, _SIGN = re.compile("[\u4e00-\u9fff]"), re.compile("[,;:?()\uff0c\uff1b\uff1a\uff1f\uff08\uff09]")
# They begin a message; elsewhere they may be words of another program.
_LABELS = re.compile(r"( *)(error|warning|hint|note|next|cannot tell|meaning|lost): ")
_NUMBER = re.compile(r"[\d,]+(?= )")
_KEY = re.compile(r"[a-z]_[a-z_]+$")  # of YAML that a message shows, as in `gpus_per_node: 8`
_PROSE = re.compile(r"(?<![\w'`/.-])[A-Za-z]{3,} [A-Za-z]{3,}(?![\w'`/.=-])")  # words that were not translated


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


class _Reading(NamedTuple):
    """A translation of a message, or of a part of it, and how many letters of the English it accounts for.

    `is_joined` if it is put together from the readings of parts.
    """

    letters: int
    text: str
    is_joined: bool = False


class Catalogue:
    """The translations of one language: `messages` have one form, `counted` (`{number} files`) begin with a number."""

    def __init__(self, messages: Mapping[str, str], counted: Mapping[str, str] | None = None) -> None:
        plain = (_without_label(message, text, messages) for message, text in messages.items())
        pairs = [(parse_template(_bare(message)), parse_template(_bare(text))) for message, text in plain]
        self.exact = {message.texts[0]: text.texts[0] for message, text in pairs if not message.names}
        self.templates = [pair for pair in pairs if pair[0].names and pair[0].letters]
        self.counted = {parse_template(key).texts[1]: parse_template(text) for key, text in (counted or {}).items()}
        self.readings: dict[str, _Reading] = {}

    def translate(self, message: str) -> str | None:
        """Return the translation of a message, or of the parts that have one; None if nothing of it has."""
        label = _LABELS.match(message)
        if label and (word := self.exact.get(label[2])):
            rest = message[label.end() :]
            return f"{label[1]}{word}\uff1a{self.translate(rest) or rest}"
        found = self._read(message)
        return _with_matching_brackets(found.text) if found.letters else None

    def _read(self, message: str) -> _Reading:
        """Return the reading that accounts for most of a message."""
        if message not in self.readings:
            self.readings[message] = _Reading(0, message)  # a part that is all of it has nothing to add
            self.readings[message] = max(
                (_Reading(0, message), *self._from_parts(message), *self._from_templates(message)),
                key=lambda reading: reading.letters,
            )
        return self.readings[message]

    def _read_value(self, value: str) -> _Reading:
        """Return the reading of a value; what another program says stays as it is, even if a part of it is known."""
        found = self._read(value)
        is_partial = found.is_joined or found.letters * 2 < len(value)
        return _Reading(0, value) if is_partial and _PROSE.search(found.text) else found

    def _from_templates(self, message: str) -> Iterator[_Reading]:
        if message in self.exact and not _is_label(message):
            yield _Reading(len(message), self.exact[message])
        if (number := _NUMBER.match(message)) and (text := self.counted.get(message[number.end() :])):
            yield _Reading(len(message), text.filled({text.names[0]: number[0]}))
        for template, translation in self.templates:
            if values := template.values_in(message):
                read = {name: self._read_value(value) for name, value in values.items()}
                if _takes_too_much(template, translation, values, read):
                    continue
                text_of = {name: reading.text for name, reading in read.items()}
                letters = template.letters + sum(reading.letters for reading in read.values())
                yield _Reading(letters, translation.filled(text_of))

    def _from_parts(self, message: str) -> Iterator[_Reading]:
        for joint in re.finditer(_JOINT, message):
            head, tail = self._read(message[: joint.start()]), self._read(message[joint.end() :])
            if "(" in joint[0] and _PROSE.search(_SIGN.split(head.text)[-1]):
                continue  # the brackets belong to what another program says
            yield _Reading(
                head.letters + tail.letters + len(_WORDS_OF_JOINTS.get(joint[0], "")),
                f"{head.text}{_joint(joint[0], head.text, tail.text)}{tail.text}",
                is_joined=True,
            )
        for space in re.finditer(" ", message):
            tail_text = message[space.end() :]
            if (words := self.exact.get(tail_text)) is None or _is_label(tail_text):
                continue
            head = self._read(message[: space.start()])
            if head.letters or " " not in head.text:
                text = f"{head.text}{_joint(' ', head.text, words)}{words}"
                yield _Reading(head.letters + len(tail_text), text, is_joined=True)


def _without_label(message: str, text: str, messages: Mapping[str, str]) -> tuple[str, str]:
    """Return a message and its translation without the label that both begin with: labels are translated apart."""
    label = _LABELS.match(message)
    start = f"{messages.get(label[2])}\uff1a" if label else ""
    return (message[label.end() :], text[len(start) :]) if label and text.startswith(start) else (message, text)


def _is_label(text: str) -> bool:
    return _LABELS.fullmatch(f"{text}: ") is not None


def _takes_too_much(
    template: Template, translation: Template, values: Mapping[str, str], read: Mapping[str, _Reading]
) -> bool:
    """Return whether the first value has words before it, as `error: `, which the translation would move as well."""
    first = template.names[0]
    is_moved = not template.texts[0] and (translation.texts[0] or translation.names[0] != first)
    return bool(is_moved and ": " in values[first] and read[first].letters)


def _joint(joint: str, head: str, tail: str) -> str:
    """Return what stands between two parts of a message: the Chinese sign if what it belongs to is Chinese."""
    if joint == " ":
        return "" if _CHINESE.match(head[-1:]) and _CHINESE.match(tail[:1]) else " "
    if joint in _WORDS_OF_JOINTS:
        return _WORDS_OF_JOINTS[joint]
    sign = joint.strip()
    if sign == "." and not tail and _CHINESE.search(_SIGN.split(head)[-1]):
        return ""  # messages end without a full stop
    if sign == ":" and _KEY.search(head):
        return joint
    if sign == "," and head.endswith("`") and tail.startswith("`"):
        return "、"
    before, after = _SIGN.split(head)[-1], _SIGN.split(tail)[0]
    is_chinese = _CHINESE.search({"(": after, ":": before, "?": before}.get(sign, before + after))
    return _CHINESE_JOINTS.get(sign, joint) if is_chinese else joint


def _with_matching_brackets(text: str) -> str:
    """Return a text in which each bracket that closes is as wide as the one that opens."""
    signs, open_signs = list(text), []
    for place, sign in enumerate(signs):
        if sign in "(\uff08":
            open_signs.append(sign)
        elif sign in ")\uff09" and open_signs:
            signs[place] = ")" if open_signs.pop() == "(" else "\uff09"
    return re.sub("\uff09 (?=[\u4e00-\u9fff])", "\uff09", "".join(signs))


def _bare(text: str) -> str:
    """Return a message without what joins it to one before or after."""
    text = text.strip().strip(":;,?\uff1a\uff1b\uff0c\uff1f").strip()
    return text[1:-1] if text[:1] in "(\uff08" and text[-1:] in ")\uff09" else text


@cache
def open_catalogue(language: str, name: str = "jobsubmit.po") -> Catalogue:
    """Return the catalogue of a language that has one: of messages, or of the words on pages (`page.po`)."""
    file = _LOCALE / _FOLDERS[language] / "LC_MESSAGES" / name
    return read_catalogue(file.read_text(encoding="utf-8"))


def read_catalogue(text: str) -> Catalogue:
    """Return the catalogue that is the text of a .po file."""
    messages: dict[str, str] = {}
    counted: dict[str, str] = {}
    for entry in text.split("\n\n"):
        strings: dict[str, str] = {}
        name = ""
        for found in map(_STRING.fullmatch, entry.splitlines()):
            if found:
                name = found[1] or name
                strings[name] = strings.get(name, "") + _ESCAPED.sub(_escaped, found[2])
        translation = strings.get("msgstr") or strings.get("msgstr[0]")
        if translation and strings["msgid"] and "\n#, fuzzy" not in f"\n{entry}":
            plural = strings.get("msgid_plural")
            (counted if plural else messages).update(
                dict.fromkeys((strings["msgid"], plural or strings["msgid"]), translation)
            )
    return Catalogue(messages, counted)


def _escaped(found: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(found[1], found[1])
