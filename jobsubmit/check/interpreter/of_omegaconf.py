"""The configurations that OmegaConf makes of files, words and dataclasses.

Source: OmegaConf 2.3, "Creating" and "OmegaConf.merge()".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.files import read_file
from jobsubmit.check.interpreter.mappings import by_attribute
from jobsubmit.check.interpreter.memory import ClassValue, Container, Record, boxed, plain
from jobsubmit.check.interpreter.methods import deep_copied, merge
from jobsubmit.check.program.configuration import parse_text
from jobsubmit.check.program.operations import UNKNOWN

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls


def value_of_omegaconf(run: Calls, method: str, args: list[Any]) -> Any:
    if method == "load":
        return _without_computed(by_attribute(read_file(run, args[0], "yaml")))
    if method == "create":
        held = args[0] if args else Container({})
        held = boxed(parse_text(held)) if isinstance(held, str) else held
        return _without_computed(by_attribute(deep_copied(_as_mapping(run, held))))
    if method == "structured":
        return by_attribute(_as_mapping(run, args[0]))
    if method in ("from_cli", "from_dotlist"):
        words = plain(args[0]) if args else [*run.facts.argv]
        return _of_words(words)
    if method == "merge":
        made = Container({}, by_attribute=True)
        for one in args:
            held = _as_mapping(run, one)
            if not isinstance(held, Container):
                return UNKNOWN
            merge(run, made, deep_copied(held))
        return by_attribute(made)
    if method in ("to_container", "to_object"):
        return deep_copied(args[0])
    if method == "is_missing":
        return UNKNOWN
    if method == "select" and isinstance(args[1], str):
        held = args[0]
        for part in args[1].split("."):
            held = run.attribute(held, part) if isinstance(held, Container) and part in held.content else UNKNOWN
        return held
    if method == "update" and isinstance(args[1], str):
        *above, last = args[1].split(".")
        held = args[0]
        for part in above:
            held = run.attribute(held, part)
        run.set_attribute(held, last, args[2])
    return None if method.startswith(("set_", "register", "resolve", "update")) else UNKNOWN


def _as_mapping(run: Calls, value: Any) -> Any:
    """Return the fields of a dataclass, or of an object made of it, as a mapping."""
    if isinstance(value, ClassValue):
        value = run.call(value, [], {})
    if isinstance(value, Record) and isinstance(value.kind, ClassValue):
        return Container({name: _as_mapping(run, one) for name, one in value.content.items()}, by_attribute=True)
    return value


def _without_computed(value: Any) -> Any:
    if isinstance(value, Container) and isinstance(value.content, dict):
        value.content.update({key: _without_computed(one) for key, one in value.content.items()})
        return value
    return UNKNOWN if isinstance(value, str) and "${" in value else value


def _of_words(words: Any) -> Any:
    """Return the mapping that words such as `train.lr=0.1` make."""
    if words is UNKNOWN:
        return UNKNOWN
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = str(word).partition("=")
        *above, last = name.split(".")
        target = found
        for part in above:
            target = target.setdefault(part, {})
        target[last] = parse_text(text) if sign else None
    return boxed(found, by_attribute=True)


def as_dict(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    held = _as_mapping(run, args[0])
    return deep_copied(held) if isinstance(held, Container) else UNKNOWN
