"""Durations and times, as people write and read them."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(value: object) -> int | None:
    """Return a duration in seconds: a whole number of them, or `90s`, `30m`, `12h`, `2d`; None for anything else."""
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,9})([smhd])", value)):
        return int(match[1]) * _SECONDS[match[2]]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse_time(text: str) -> float | None:
    """Return a time as ISO 8601 writes it, in seconds since the epoch; without a zone it is this machine's.

    None for any other text. Digits of a second may be as many as there are: the kubelet writes nine.
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?)(\.\d+)?(Z|[+-]\d\d:\d\d)?", text)
    if not found:
        return None
    whole, part, zone = found.groups("")
    try:
        moment = datetime.fromisoformat(whole)
        offset = datetime.fromisoformat(f"2000-01-01T00:00{zone.replace('Z', '+00:00')}").tzinfo
        return (moment.replace(tzinfo=offset) if offset else moment.astimezone()).timestamp() + float(part or 0)
    except (ValueError, OverflowError):
        return None


def time_text(seconds: float, timespec: str = "seconds") -> str:
    """Return a time (seconds since the epoch) with its date and this machine's offset, as ISO 8601 writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().isoformat(timespec=timespec)
