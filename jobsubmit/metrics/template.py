"""Split a line of output into its numbers and the text around them, which is the same from step to step."""

from __future__ import annotations

import re
from typing import TypeAlias

Template: TypeAlias = tuple[str, ...]
"""The texts before, between and after the numbers of a line: one more than there are numbers."""

_NUMBER = re.compile(
    r"\s{0,40}(?<![A-Za-z0-9_.@])([-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?:nan|NaN|NAN|inf|Inf|INF|infinity|Infinity)(?![A-Za-z0-9_])))"
)
_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_BAR = re.compile(r"\|[^|]*\|(?=\s*\d)|\[[=>.\-# ]{5,}\]|[━╸╺╾█▉▊▋▌▍▎▏▓░■□#]{3,}[━╸╺╾█▉▊▋▌▍▎▏▓░■□#\s]*")
_PERCENT_BAR = re.compile(r"%\|[^|]*\|")
_PREFIX = re.compile(
    r"(?:\s*(?:"
    r"\[[A-Z]+:\d+ \w+:\d+ [\d-]+ [\d:,]+\]|"
    r"(?:INFO|WARNING|DEBUG|ERROR):[\w.]+:|\[\d+,\d+\]<std(?:out|err)>:|(?:ts|time|timestamp)=\S+(?=\s)|"
    r"[IWE]\d{4}(?=\s\d\d:)"  # glog
    r"|\[?\d{4}[-/.]\d\d?[-/.]\d\d?(?:[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?\]?(?![\w.%/])"
    r"|\[?\d\d[-/]\d\d(?:[-/]\d{2,4})?[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?![\w<,])"
    r"|\[?\b(?:DEBUG|INFO|WARN|WARNING|ERROR|NOTICE|CRITICAL|SUCCESS|TRACE)\b\]?:?"
    r"|\[(?:rank|Rank|RANK|GPU|gpu|worker|node|default|titan|pid)\s*:?\s*\d*\]:?"
    r"|[A-Za-z_]\w*(?:\.\w+)+:\d+(?=\s)|[a-z][a-z0-9.]*-[a-z0-9.-]+:\d{1,4}(?=\t)"
    r"|[a-z][a-z.-]*\d+:\d{1,4}(?=\t)|[A-Za-z_][\w.]*:\d+(?=\t(?:DEBUG|INFO|WARN|WARNING|ERROR)\b)"
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? \d\d? (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4}(?=\s)|"
    r"\d\d? (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d\d:\d\d(?=\s)"
    r"|\(\d+/\d+\)(?=\s+[A-Z]\w+)|[\w.]+:\w+:\d+\s+-(?=\s)|\d+(?=\s+[\w./]+\.(?:py|cc|cpp):\d+\])"
    r"|[\[(]?[\w./<>-]+\.(?:py|cc|cpp)[: ]+(?:line )?\d+(?::\w+)?[\])]?:?"
    r"|\[[\w.]+\]:|\[(?!val|eval|test|dev)[a-z]{2,}[\w.]*[a-z]\](?=\s)|\[\d{3,7}\](?=\s+(?:DEBUG|INFO|WARN|ERROR))|(?:root|mmengine|mmcv|__main__|absl|torchtitan|nemo_logger)\b:?|[-|:>](?=\s|\w)"
    r")\s*)+"
)
_TIMESTAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_CLOCK_FACE = r"(?:\d+ days?, )?\d+:\d\d(?::\d\d)?(?:[.,]\d+)?"
_CLOCK = re.compile(rf"(?<![A-Za-z0-9_.@])(?:({_TIMESTAMP})|{_CLOCK_FACE})(?![A-Za-z0-9_.:])")
_UNSIGNED = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_PLAIN_NUMBER = re.compile(rf"[-+]?{_UNSIGNED}")
_FILE = re.compile(r"\S+\.(?:ckpt|pth?|bin|safetensors|tar|pkl|json|ya?ml|png|csv)\b\S*")
LONGEST_LINE = 4000
"""Characters: what is longer is no line of progress."""
_PREFIX_STARTS = frozenset("0123456789[(IWEDNCtMTFS ")


def strip_colours(text: str) -> str:
    """Return a text without the codes that colour it or move the cursor."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def split_line(text: str) -> tuple[Template, list[float]]:
    """Return the template of a line and its numbers; colours and drawn bars are left out."""
    text = strip_colours(text)
    if "%|" in text:
        text = _PERCENT_BAR.sub("%|", text)
    elif not text.isascii() or "[=" in text or "[." in text:
        text = _BAR.sub(" ", text)
    if text[:1] in _PREFIX_STARTS and (prefix := _PREFIX.match(text)):
        text = text[prefix.end() :]
    if ":" in text:
        text = _CLOCK.sub("\2", text)
    if "." in text and ("/" in text or "=" in text):
        text = _FILE.sub(" ", text)
    pieces = _NUMBER.split(text)
    return tuple(pieces[::2]), [*map(value_of, pieces[1::2])]


def pattern_of(text: str) -> re.Pattern[str] | None:
    """Return a pattern that only lines with the template of this line match; its groups are the numbers of the line.

    It is the fast way to read a line that comes again and again. There is none if other digits could change the
    template. Not every line with the template matches: one with another sign or without a blank does not.
    """
    bare = _PERCENT_BAR.sub("%|", text)
    prefix = _PREFIX.match(bare) if bare[:1] in _PREFIX_STARTS else None
    start = prefix.end() if prefix else 0
    clocks = [_TIMESTAMP if found[1] else _CLOCK_FACE for found in _CLOCK.finditer(bare[start:])]
    rest = _CLOCK.sub("\2", bare[start:])
    if "\x1b" in text or "\2" in text or (bare == text and _BAR.search(text)) or _FILE.search(rest):
        return None
    parts, end = [re.sub(r"\d+", _same_digits, re.escape(bare[:start]))], 0
    for found in _NUMBER.finditer(rest):
        literal, blanks, number = rest[end : found.start()], found.start(1) - found.start(), found[1]
        joins = rest[found.end() : found.end() + 1] in (".", "e", "E") or (literal in (",", ":") and not blanks)
        if joins or not _PLAIN_NUMBER.fullmatch(number):
            return None
        sign = re.escape(number[0]) if number[0] in "+-" else ""
        parts += [re.escape(literal), r"\s{1,40}" if blanks else "", f"({sign}{_UNSIGNED})"]
        end = found.end()
    whole = "".join([*parts, re.escape(rest[end:])])
    whole = "".join(map("".join, zip(whole.split("\2"), [*clocks, ""], strict=True)))
    pattern = re.compile(whole.replace(r"%\|", r"%\|[^|]*\|"))
    return pattern if pattern.fullmatch(text) else None


def _same_digits(found: re.Match[str]) -> str:
    return rf"\d{{{len(found[0])}}}"


def value_of(number: str) -> float:
    """Return the value of a printed number."""
    return float(number.replace(",", "") if "," in number else number)
