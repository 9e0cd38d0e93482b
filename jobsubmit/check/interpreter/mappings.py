"""Mappings whose entries are fields, as the classes of many libraries make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import Container

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

MAPPINGS = frozenset(
    [
        *("EasyDict", "edict", "AttrDict", "Munch", "DotDict", "ConfigDict", "CfgNode", "CN", "DictConfig", "Dict"),
        *("attrdict", "addict", "Config"),
    ]
)


def is_mapping(name: str) -> bool:
    """Return whether a class of a library is one of mappings."""
    last = name.rpartition(".")[2]
    return last in ("dict", "OrderedDict", "UserDict", "defaultdict") or last in MAPPINGS


def mapping_of(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the mapping that a class of a library makes of others and of keywords."""
    made = Container({}, by_attribute=True)
    for one in args:
        run.update(made, one)
    made.content.update(keywords)
    return by_attribute(made)


def by_attribute(value: Any) -> Any:
    """Return a mapping whose entries are fields, as are those of the mappings in it."""
    if isinstance(value, Container) and isinstance(value.content, dict):
        held = {key: by_attribute(one) for key, one in value.content.items()}
        return Container(held, is_open=value.is_open, by_attribute=True)
    return value
