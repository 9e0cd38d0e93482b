"""Values of a configuration that refer to others: `${data.batch_size}`, `${.name}`, `out/${name}`.

Source: OmegaConf 2.3, "Config node interpolation": a path begins at the top or, with dots, beside the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobsubmit.check.program.operations import UNKNOWN

_REFERENCE = re.compile(r"\$\{\s*(\.*)([\w-]+(?:\.[\w-]+)*)\s*\}")
_DEEPEST = 10  # references to references
_MISSING = "???"


def interpolated(values: Mapping[str, Any], is_changed: Callable[[str], bool]) -> dict[str, Any]:
    """Return a configuration without references; what is computed otherwise, such as `${now:%Y}`, is UNKNOWN.

    So is what refers to a key that `is_changed`: the program may set it before it reads the reference.
    """

    def resolved(value: Any, above: Sequence[str], depth: int) -> Any:
        if isinstance(value, dict):
            return {key: resolved(one, (*above, str(key)), depth) for key, one in value.items()}
        if isinstance(value, list):
            return [resolved(one, (*above, str(place)), depth) for place, one in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        if whole := _REFERENCE.fullmatch(value):
            return referred(whole, above, depth)
        parts = [referred(one, above, depth) for one in _REFERENCE.finditer(value)]
        is_text = all(type(one) in (str, int, float) for one in parts) and "${" not in _REFERENCE.sub("", value)
        texts = iter(map(str, parts))
        return _REFERENCE.sub(lambda _: next(texts), value) if is_text else UNKNOWN

    def referred(reference: re.Match[str], above: Sequence[str], depth: int) -> Any:
        dots, names = reference[1], reference[2].split(".")
        path = [*above[: len(above) - len(dots)], *names] if dots else names
        found: Any = values
        for name in path:
            found = found.get(name, UNKNOWN) if isinstance(found, dict) else UNKNOWN
        is_unclear = found == _MISSING or depth > _DEEPEST or is_changed(path[-1])
        return UNKNOWN if is_unclear else resolved(found, path, depth + 1)

    return {key: resolved(value, (key,), 0) for key, value in values.items()}
