"""The words of a command line: split as a shell does, without secrets, and as hyperparameters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from jobsubmit.errors import UsageError

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SECRET = re.compile(r"(?i)(^|_)(api_?key|key|token|secret|password|passwd)($|_)")
_EXPORTED = re.compile(r"--export=.*")
_CONTINUED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\(?:\r?\n|\s*\Z)|\\.""", re.DOTALL)
_NAME = re.compile(r"--[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def split_command(text: str) -> list[str]:
    """Return the words of a command, which a backslash may continue on the next line; raise UsageError."""
    try:
        return shlex.split(_in_one_line(text))
    except ValueError as error:
        raise UsageError(f"the command: {error}", "check the quotes: it is split like a shell command") from None


def _in_one_line(text: str) -> str:
    """Return a command without the backslashes at the ends of its lines, outside of quotes."""
    return _CONTINUED.sub(lambda found: "" if re.fullmatch(r"\\(?:\r?\n|\s*)", found[0]) else found[0], text)


def hide_secrets(text: str) -> str:
    """Return a command line on one line, with `…` for each value that looks like a secret."""
    shown: list[str] = []
    rest = split_command(text)
    while rest:
        word = rest.pop(0)
        name, _, value = word.partition("=")
        count = _words_of_secret(word, rest)
        is_assigned = bool(ASSIGNMENT.fullmatch(word) and _SECRET.search(name))
        is_exported = bool(_EXPORTED.fullmatch(word) and any(map(_SECRET.search, re.split("[,=]", value))))
        is_secret = count is not None or is_assigned or is_exported
        shown.append(f"{name}=…" if is_secret and value else shlex.quote(word))
        shown += ["…"] * (count or 0)
        del rest[: count or 0]
    line = " ".join(shown)
    return " ".join((line if "…" in line else _in_one_line(text)).split())


def is_secret_name(name: str) -> bool:
    """Return whether a variable seems to hold a secret, by its name."""
    return _SECRET.search(name) is not None


def without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return words without the options that hold secrets, and a note of each."""
    kept: list[str] = []
    notes: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        count = _words_of_secret(word, rest)
        if count is None:
            kept.append(word)
            continue
        name = word.partition("=")[0]
        notes.append(f"{name}: dropped, it looks like a secret: pass it as a variable in `secrets`")
        del rest[:count]
    return kept, notes


def _words_of_secret(word: str, rest: Sequence[str]) -> int | None:
    """Return how many words after an option that holds a secret are its value; None for another word."""
    name, separator, value = word.partition("=")
    following = [] if separator else _until_option(rest)[:1]
    is_secret = word.startswith("-") and _SECRET.search(name.lstrip("-").replace("-", "_"))
    is_text = isinstance(_typed(value or "".join(following) or "0"), str)
    return len(following) if is_secret and is_text else None


def arguments_in(words: Sequence[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return hyperparameters, further words, and what to look at; an option with several values stays as it is."""
    hyperparameters: dict[str, Any] = {}
    args: list[str] = []
    notes: list[str] = []
    first_plain = len(words)  # the position of the first word that is neither an option nor its only value
    index = 0
    while index < len(words):
        word = words[index]
        name, separator, value = word.partition("=")
        following = _until_option(words[index + 1 :])
        index += 1
        is_new = _NAME.fullmatch(name) and name.removeprefix("--") not in hyperparameters
        if not is_new:
            has_value = word.startswith("-") and not separator and len(following) == 1
            first_plain = first_plain if word.startswith("-") else min(first_plain, index - 1)
            args += [word, *following] if has_value else [word]
            index += has_value
        elif separator:
            hyperparameters[name.removeprefix("--")] = _typed(value)
        elif len(following) == 1:
            hyperparameters[name.removeprefix("--")] = _typed(following[0])
            index += 1
        elif not following:
            hyperparameters[name.removeprefix("--")] = {"flag": True}
        else:
            args += [word, *following]
            if any(one.endswith((".py", ".sh")) for one in following[1:]):  # what follows a program is its own
                first_plain = min(first_plain, index)
            index += len(following)
            notes.append(f"{name} is followed by {len(following)} words: kept unchanged in args")
    if hyperparameters and any(_NAME.fullmatch(word.partition("=")[0]) for word in words[first_plain:]):
        note = "an argument precedes an option, so all are in args: change them there, not with --set"
        return {}, list(words), [*notes, note]
    return hyperparameters, args, notes


def _until_option(words: Sequence[str]) -> list[str]:
    found = []
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[\d.].*", word):
            break
        found.append(word)
    return found


def _typed(text: str) -> Any:
    """Return a number where it is spelled as such in the shortest way, else the text."""
    if re.fullmatch(r"-?(0|[1-9]\d{0,17})", text):
        return int(text)
    if re.fullmatch(r"-?(0|[1-9]\d*)\.\d*[1-9]", text) and str(float(text)) == text:
        return float(text)
    return text
