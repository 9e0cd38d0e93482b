"""Durations and times, as people write and read them."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"(\d{4}-?\d\d-?\d\d(?:[Tt ][\d:]+)?)(?:[.,](\d+))?(?:([Zz])|([+-]\d\d):?(\d\d)?)?")


def parse_duration(value: object) -> int | None:
    """Return a duration in seconds: a whole number of them, or `90s`, `30m`, `12h`, `2d`; None for anything else."""
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,9})([smhd])", value)):
        return int(match[1]) * _SECONDS[match[2]]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse_time(text: str) -> float | None:
    """Return a time as ISO 8601 writes it, in seconds since the epoch; without a zone it is this machine's.

    None for any other text. Digits of a second may be as many as there are: the kubelet writes nine.
    """
    found = _TIME.fullmatch(text)
    if not found:
        return None
    whole, part, utc, hours, minutes = found.groups("")
    try:
        moment = datetime.fromisoformat(whole)
        if utc or hours:
            zone = datetime.fromisoformat(f"2000-01-01T00:00{hours or '+00'}:{minutes or '00'}").tzinfo
            moment = moment.replace(tzinfo=zone)
        return moment.timestamp() + float(f"0.{part}")
    except (ValueError, OverflowError):
        return None


def time_text(seconds: float, timespec: str = "seconds") -> str:
    """Return a time (seconds since the epoch) with its date and this machine's offset, as ISO 8601 writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().isoformat(timespec=timespec)


def age_text(seconds: float) -> str:
    """Return how long ago something was, in one unit: `8s`, `5m`, `3h`, `12d`."""
    for unit, length in sorted(_SECONDS.items(), key=lambda item: -item[1]):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "0s"
