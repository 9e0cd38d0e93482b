"""Render pages: `report --html` as one file without script, and the parts that `jobsubmit ui` shows."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup, escape

from jobsubmit.common.durations import time_text
from jobsubmit.common.language import language, translate
from jobsubmit.common.resources import TEMPLATES
from jobsubmit.report.model import Comparison, Paper, Report
from jobsubmit.report.view import view_comparison, view_job

_FOLDER = TEMPLATES / "page"
_SPACE = re.compile(r"\n\s*\n+")
_STYLES = re.compile(r"\x1b\[([0-9;]{0,40})m")
_OTHER_CODES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FIRST_COLOUR, _LAST_COLOUR, _FIRST_BRIGHT, _LAST_BRIGHT, _BOLD = 30, 37, 90, 97, 1


@cache
def page_environment() -> jinja2.Environment:
    """Return the environment of all pages: every value is escaped, and `| t` is the reader's language."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["t"] = _translated
    environment.filters["spelled"] = spelled
    environment.globals["language"] = language
    return environment


def render(template: str, **values: Any) -> str:
    """Return a page or a part of one."""
    text = page_environment().get_template(template).render(**values)
    return _SPACE.sub("\n", text).encode("utf-8", "replace").decode()  # half a sign, as JSON may hold it


def _translated(text: str) -> str:
    """Return a text in the reader's language: a word of a page, else a message."""
    chosen = language()
    if chosen == "en":
        return text
    words = _words_of_pages(chosen)
    if text in words:
        return words[text]
    found, first = translate(text), re.split(r" \(|: ", text)[0]
    return words[first] + found.removeprefix(first) if first in words and found.startswith(first) else found


@cache
def _words_of_pages(chosen: str) -> Mapping[str, str]:
    from jobsubmit.common.translation import open_catalogue

    return open_catalogue(chosen, "page.po").exact


@cache
def style() -> str:
    """Return the style sheet of all pages."""
    return (_FOLDER / "style.css").read_text(encoding="utf-8")


def render_page(
    reports: Sequence[Report],
    comparisons: Sequence[Comparison] = (),
    *,
    version: str,
    logs: Sequence[Paper] = (),
    events: str = "",
) -> str:
    """Return the page of a job, or of two jobs and their comparison, as one file; every text in it is escaped."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return render(
        "report.html.j2",
        title=" and ".join(report.record.id for report in reports),
        views=[view_job(report) for report in reports],
        comparison=view_comparison(reports, comparisons) if len(reports) > 1 else None,
        logs=logs,
        events=events,
        style=Markup(style()),  # noqa: S704 - a file of ours
        style_digest=digest,
        version=version,
        written=time_text(time.time()),
    )


def spelled(text: str) -> Markup:
    """Return a line of output as HTML: its colours as classes, other control characters as text."""
    if "\r" in text:
        text = text.rstrip("\r").rpartition("\r")[2]  # a bar that was drawn again
    found, classes = [], ""
    for place, piece in enumerate(_STYLES.split(text)):
        if place % 2:
            classes = _classes_after(classes, piece)
        elif piece:
            shown = escape(_OTHER_CODES.sub(_named, piece))
            found.append(Markup('<span class="{}">{}</span>').format(classes, shown) if classes else shown)
    return Markup("").join(found)


def _named(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _classes_after(classes: str, codes: str) -> str:
    kept = set(classes.split())
    for code in (int(code or 0) for code in codes.split(";")):
        if code == 0:
            kept.clear()
        elif code == _BOLD:
            kept.add("bold")
        elif _FIRST_COLOUR <= code <= _LAST_COLOUR or _FIRST_BRIGHT <= code <= _LAST_BRIGHT:
            kept = {name for name in kept if name == "bold"} | {f"c{code % 10}"}
        else:
            break  # 38;5;n and the like
    return " ".join(sorted(kept))
