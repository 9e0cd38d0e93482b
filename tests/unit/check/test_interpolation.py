"""References in configurations of OmegaConf."""

from jobsubmit.check.program.interpolation import interpolated
from jobsubmit.check.program.operations import UNKNOWN

VALUES = {
    "size": 4,
    "data": {"batch": "${size}", "name": "a", "folder": "/data/${.name}/${size}", "up": "${..size}"},
    "listed": ["${data.name}", {"inner": "${data.batch}"}],
    "twice": "${data.batch}",
    "now": "${now:%Y}",
    "absent": "${data.none}",
    "missing": "${later}",
    "later": "???",
    "circle": "${circle}",
    "changed": "${rate}",
    "rate": 0.1,
    "mapping": "${data}",
}


def test_references_are_replaced_by_what_they_name() -> None:
    found = interpolated(VALUES, {"rate"}.__contains__)
    assert found["data"] == {"batch": 4, "name": "a", "folder": "/data/a/4", "up": 4}
    assert found["listed"] == ["a", {"inner": 4}]
    assert (found["twice"], found["rate"], found["later"]) == (4, 0.1, "???")
    assert found["mapping"] == found["data"]


def test_what_is_computed_or_may_change_is_not_known() -> None:
    found = interpolated(VALUES, {"rate"}.__contains__)
    assert all(found[name] is UNKNOWN for name in ("now", "absent", "missing", "circle", "changed"))
