"""The reader's language. What translates is loaded for readers of another language than English only."""

from __future__ import annotations

import os
import re


def translate(message: str) -> str:
    """Return a message in the reader's language; in English if that has no translation of it."""
    chosen = language()
    if chosen == "en":
        return message
    from jobsubmit.common.translation import open_catalogue

    catalogue = open_catalogue(chosen)
    return "\n".join(catalogue.translate(line) or line for line in message.split("\n"))


def language() -> str:
    """Return the reader's language, as JOBSUBMIT_LANG or the locale names it: `zh`, or `en` for every other one."""
    names = ("JOBSUBMIT_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    chosen = next((value for name in names if (value := os.environ.get(name))), "")
    return "zh" if re.match("zh(?![a-z])", chosen, re.IGNORECASE) else "en"
