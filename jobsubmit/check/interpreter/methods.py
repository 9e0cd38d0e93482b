"""What the methods of texts and containers return, and what they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.files import read_file
from jobsubmit.check.interpreter.memory import Container, Own, boxed, plain
from jobsubmit.check.interpreter.scaling import carrier_in
from jobsubmit.check.interpreter.signals import Raised
from jobsubmit.check.program.operations import UNKNOWN, Several, lifted
from jobsubmit.check.program.yacs import decoded

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

_LONGEST_TEXT = 100_000
_OF_TEXT = frozenset(
    [
        *("startswith", "endswith", "lower", "upper", "strip", "lstrip", "rstrip", "split", "rsplit", "replace"),
        *("partition", "rpartition", "title", "capitalize", "isdigit", "isnumeric", "count", "find", "removeprefix"),
        *("removesuffix", "splitlines", "swapcase", "isidentifier", "isalpha"),
    ]
)


def method_of_text(run: Calls, text: Any, name: str, args: list[Any]) -> Any:
    """Return what a method of a text returns."""
    if name == "join" and isinstance(text, str):
        items = run.items(args[0]) if args else None
        are_texts = items is not None and all(isinstance(one, str) for one in items)
        return text.join(items) if are_texts and sum(map(len, items)) <= _LONGEST_TEXT else UNKNOWN  # type: ignore[arg-type]
    given = [plain(one) for one in args]
    if any(one is UNKNOWN for one in given):
        return UNKNOWN
    if name == "format" and isinstance(text, str):
        return lifted(text.format, *given) if "{" in text and ":" not in text else UNKNOWN
    if name not in _OF_TEXT:
        return UNKNOWN
    given = [tuple(one) if isinstance(one, list) else one for one in given]
    result = lifted(lambda one, *rest: getattr(one, name)(*rest), text, *given)
    return boxed(result) if isinstance(result, list) else result


def method_of_container(run: Calls, owner: Container, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return what a method of a list, a mapping or a set returns; what changes it is known, or what it holds is not."""
    if isinstance(owner.content, dict):
        args = [UNKNOWN if isinstance(one, Own) else one for one in args]
    kind = _OF_MAPPING if isinstance(owner.content, dict) else _OF_LIST
    known = kind.get(name)
    if known is not None:
        return known(run, owner, args, keywords)
    return UNKNOWN


def _get(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    key, default = args[0], args[1] if len(args) > 1 else keywords.get("default")
    if key is UNKNOWN or isinstance(key, Container):
        return UNKNOWN
    if isinstance(key, Several):
        return UNKNOWN
    if key in owner.content:
        return owner.content[key]
    return UNKNOWN if owner.is_open else default


def _pop(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    found = _get(run, owner, args, keywords)
    if len(args) == 1 and found is None and args[0] not in owner.content:
        if run.tries:
            raise Raised("KeyError")
        return UNKNOWN
    run.memory.touch(owner)
    if args[0] is not UNKNOWN:
        owner.content.pop(args[0], None)
    else:
        owner.is_open = True
    return found


def _set_default(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    key = args[0]
    if key is UNKNOWN:
        run.memory.touch(owner)
        owner.is_open = True
    if key is UNKNOWN or (key not in owner.content and owner.is_open):
        return UNKNOWN
    if key not in owner.content:
        run.set_item(owner, key, args[1] if len(args) > 1 else None)
    return owner.content[key]


def _update(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> None:
    for one in args:
        run.update(owner, one)
    run.memory.touch(owner)
    owner.content.update(keywords)


def _merge(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Merge mappings, and those in them, as yacs and OmegaConf do."""
    for one in args:
        if isinstance(one, Container) and isinstance(one.content, dict):
            merge(run, owner, one)
        else:
            forget(run, owner)
    return owner


def forget(run: Calls, owner: Container) -> None:
    """Forget what a mapping holds: entries that are not known were added."""
    run.memory.touch(owner)
    owner.is_open = True
    owner.content.update(dict.fromkeys(owner.content, UNKNOWN))


def merge(run: Calls, target: Container, added: Container) -> None:
    """Set the entries of a mapping in another one, and those of the mappings in it."""
    run.memory.touch(target)
    target.is_open = target.is_open or added.is_open
    for key, value in added.content.items():
        held = target.content.get(key)
        if isinstance(held, Container) and isinstance(value, Container) and isinstance(held.content, dict):
            if isinstance(value.content, dict):
                merge(run, held, value)
                continue
        target.content[key] = value


def _merge_from_file(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> None:
    read = read_file(run, args[0], "yaml")
    is_based = isinstance(read, Container) and any(key in read.content for key in ("_BASE_", "_base_", "BASE"))
    _merge(run, owner, [UNKNOWN if is_based else _with_literals(read)], {})


def _with_literals(value: Any) -> Any:
    """Return the settings of a file, whose texts may be literals of Python: `STEPS: (60, 80)`."""
    if isinstance(value, Container) and isinstance(value.content, dict):
        value.content.update((key, _with_literals(one)) for key, one in list(value.content.items()))
        return value
    return boxed(decoded(value)) if isinstance(value, str) else value


def _merge_from_list(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> None:
    items = run.items(args[0])
    if items is None or len(items) % 2:
        _merge(run, owner, [UNKNOWN], {})
        return
    for name, value in zip(items[::2], items[1::2], strict=True):
        *above, last = str(name).split(".")
        target: Any = owner
        for part in above:
            target = run.attribute(target, part)
        run.set_item(target, last, _with_literals(value))


def deep_copied(value: Any) -> Any:
    """Return a copy of a container, and of those in it."""
    if not isinstance(value, Container):
        return value
    held = value.content
    copied: Any
    if isinstance(held, dict):
        copied = {key: deep_copied(one) for key, one in held.items()}
    else:
        copied = type(held)(deep_copied(one) for one in held)
    return Container(copied, is_open=value.is_open, by_attribute=value.by_attribute)


def _values(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    made = Container([*owner.content.values()], is_open=owner.is_open)
    made.own = owner.own
    return made


def _append(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> None:
    run.memory.touch(owner)
    if isinstance(owner.content, list):
        owner.content.append(args[0])
        owner.own = owner.own or carrier_in(args[0])
    else:
        owner.is_open = True


def _extend(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> None:
    run.memory.touch(owner)
    items = run.items(args[0])
    if items is None or not isinstance(owner.content, list):
        owner.is_open = True
    else:
        owner.content.extend(items)


def _change(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Forget what a list holds: a method has changed it."""
    run.memory.touch(owner)
    owner.content.clear()
    owner.is_open = True
    return UNKNOWN


def _index(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    held, wanted = plain(owner), plain(args[0])
    return held.index(wanted) if isinstance(held, list) and wanted in held else UNKNOWN


def _pop_item(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    if owner.is_open or not owner.content or (args and type(args[0]) is not int):
        return _change(run, owner, args, keywords)
    run.memory.touch(owner)
    return owner.content.pop(*args)


_Known = Callable[["Calls", Container, list[Any], dict[str, Any]], Any]


def _copy(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    return Container(owner.content.copy(), is_open=owner.is_open, by_attribute=owner.by_attribute)


def _clone(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    return deep_copied(owner)


def _itself(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> Any:
    return owner


def _clear(run: Calls, owner: Container, args: list[Any], keywords: dict[str, Any]) -> None:
    run.memory.touch(owner)
    owner.content.clear()


_OF_MAPPING: Mapping[str, _Known] = {
    "get": _get,
    "pop": _pop,
    "setdefault": _set_default,
    "update": _update,
    "keys": lambda run, owner, args, keywords: Container([*owner.content], is_open=owner.is_open),
    "values": _values,
    "items": lambda run, owner, args, keywords: Container([*owner.content.items()], is_open=owner.is_open),
    "copy": _copy,
    "clone": _clone,
    "to_dict": _clone,
    "toDict": _clone,
    "freeze": lambda run, owner, args, keywords: None,
    "defrost": lambda run, owner, args, keywords: None,
    "set_new_allowed": lambda run, owner, args, keywords: None,
    "merge_from_file": _merge_from_file,
    "merge_from_list": _merge_from_list,
    "merge_from_other_cfg": _merge,
    "merge_from_dict": _merge,
    "merge_with": _merge,
    "__getitem__": lambda run, owner, args, keywords: run.item(owner, args[0]),
    "__setitem__": lambda run, owner, args, keywords: run.set_item(owner, args[0], args[1]),
    "__setattr__": lambda run, owner, args, keywords: run.set_item(owner, args[0], args[1]),
    "__contains__": lambda run, owner, args, keywords: run.contains(owner, args[0]),
    "clear": _clear,
}
_OF_LIST: Mapping[str, _Known] = {
    "append": _append,
    "add": _append,
    "extend": _extend,
    "copy": _copy,
    "index": _index,
    "pop": _pop_item,
    **dict.fromkeys(("insert", "remove", "sort", "reverse", "clear", "update", "discard"), _change),
}
