"""JSON that was written down, read back: in its form, or not at all.

A form is a type (`float` is any finite number), a tuple of forms of which one fits, a list with the form of each item,
or a mapping of names to forms; a name that ends in `?` may be left out, and names that are not listed may be there.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

_LARGEST = 1 << 63
_LATEST = 250_000_000_000  # seconds since the epoch; the year 9892: every calendar still knows it
TIME = "a time"

EVENT = {"t": TIME, "event": str}
EVENTS = {
    "step": {"step": str, "edge": str, "attempt": int},
    "state": {"state": str},
    "node_start": {"node": int, "pid": int},
    "node_exit": {"node": int, "code": int},
    "rank_start": {"node": int, "rank": int, "pid": int},
    "rank_exception": {"pid": int},
    "rank_asked_exit": {"pid": int, "code": int},
    "child_exit": {"pid": int, "code": int},
}  # type: dict[str, dict[str, Any]]

_FAULT = {"text": str, "t": TIME}
_FLAG = (bool, None)
_EVIDENCE = {"was_told?": _FLAG, "is_victim?": _FLAG, "is_leader?": _FLAG, "t?": (TIME, None)}
_FAILURE = {
    "evidence?": _EVIDENCE,
    "node": int,
    "rank": (int, None),
    "exit_code": (int, None),
    "signal": (int, None),
    "message": str,
    "quoted": str,
    "last_lines": [str],
    "words?": [str],
    "victims?": [int],
}
_RESTART = {
    "attempt": int,
    "reason": str,
    "fault": (_FAULT, None),
    "failed_at": TIME,
    "detected_at": TIME,
    "back_at": (TIME, None),
    "steps_lost": (int, None),
}
_RESIZE = {
    "what": str,
    "t": TIME,
    "node": (int, None),
    "nodes": (int, None),
    "before?": (int, None),
    "fault": (_FAULT, None),
    "back_at": (TIME, None),
}
_WATCHER = {"host": str, "boot": str, "pid_namespace": str, "dir": str}
STATUS = {
    "watcher?": _WATCHER,
    "state": str,
    "reason": str,
    "message": str,
    "failure?": (_FAILURE, None),
    "restarts?": [_RESTART],
    "resizes?": [_RESIZE],
    "started?": TIME,
    "ended?": TIME,
    "attempt?": int,
    "last_step?": (int, None),
    "port?": int,
    "checkpoint_dir?": str,
    "notes?": [str],
    "addresses?": [str],
}


def parsed(data: bytes) -> Any:
    """Return what JSON text says; raise ValueError where it is none, or says too much."""
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def mapping(data: bytes, form: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object of a form; raise ValueError saying what of it is wrong."""
    value = parsed(data)
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    wrong = misfit(value, form)
    if wrong is not None:
        raise ValueError("its field `%s` is missing or wrong" % wrong)
    return value


def misfit(value: dict[str, Any], form: dict[str, Any]) -> str | None:
    """Return the name of a field that is missing or has another form, or None."""
    for name, wanted in form.items():
        key = name.rstrip("?")
        if key not in value:
            if key == name:
                return key
        elif not fits(value[key], wanted):
            return key
    return None


def fits(value: Any, form: Any) -> bool:
    """Tell whether a value has a form."""
    if isinstance(form, tuple):
        return any(fits(value, one) for one in form)
    if isinstance(form, dict):
        return isinstance(value, dict) and misfit(value, form) is None
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(item, form[0]) for item in value)
    if form in (int, float, TIME):
        return _is_number(value, form)
    return value is None if form is None else isinstance(value, form)


def _is_number(value: Any, form: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if form is int else (int, float)):
        return False
    return 0 <= value < _LATEST if form == TIME else -_LARGEST < value < _LARGEST  # NaN is neither


def event(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, or None if it is cut off, damaged, or not in the form of its kind."""
    try:
        found = mapping(line, EVENT)
    except ValueError:
        return None
    form = EVENTS.get(found["event"])
    return found if form is None or misfit(found, form) is None else None
