"""Models inside DistributedDataParallel: who is called in training, the wrapper or what is in it, and whose state."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobsubmit.check.interpreter.memory import ClassValue, External, Record
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.operations import UNKNOWN

_INNER = "module"
_STATES = ("state_dict", "load_state_dict")


class Use(NamedTuple):
    """A call of a model, or of its state, by the `name` of its method; of the wrapper, or of what is in it."""

    name: str
    call: ast.Call
    module: Module
    is_strict: bool = True
    given: Any = None  # the state that is loaded, if it is known whose it is
    is_outer: bool = False  # a model may be wrapped after its use


@dataclass
class Wrapper:
    """A wrapper, with the model that is in it, and how both are used."""

    made: Record
    inner: Any
    uses: list[Use] = field(default_factory=list)

    def calls(self, name: str, *, is_outer: bool) -> list[Use]:
        return [use for use in self.uses if use.name == name and use.is_outer is is_outer]


@dataclass
class Wrappers:
    """All wrappers that were made; `early` are uses of models that may be wrapped later."""

    every: list[Wrapper] = field(default_factory=list)
    early: list[tuple[Any, Use]] = field(default_factory=list)
    mixed: list[Use] = field(default_factory=list)  # models that load the state of another one's wrapper

    def wrap(self, made: Record, name: str, args: list[Any], keywords: dict[str, Any]) -> None:
        """Remember a wrapper; others may be made in the same place, in another pass of a loop."""
        if not name.endswith("DistributedDataParallel"):
            return
        inner = args[0] if args else keywords.get("module", UNKNOWN)
        made.content[_INNER] = inner
        known = [use for model, use in self.early if model is inner and isinstance(inner, Record)]
        self.every.append(Wrapper(made, inner, known))

    def is_outside(self, model: Any) -> bool:
        """Return whether a model is known, and is neither a wrapper nor in one."""
        is_known = isinstance(model, Record) and isinstance(model.kind, ClassValue)
        return is_known and bool(self.every) and not any(model is one.made or model is one.inner for one in self.every)

    def use(self, model: Any, is_of_attribute: bool, use: Use) -> None:
        """Remember a use of a model; `is_of_attribute` if it is `wrapper.module`, whatever that is."""
        source = use.given.content[OWNER] if isinstance(use.given, Record) and use.given.kind == STATE else None
        is_of_wrapper = source is not None and any(source is one.made for one in self.every)
        if is_of_wrapper and use.is_strict and _is_plain(model):
            self.mixed.append(use)
        for one in self.every:
            if model is one.made:
                one.uses.append(use._replace(is_outer=not is_of_attribute))
                return
            if isinstance(model, Record) and model is one.inner:
                one.uses.append(use)
                return
        if isinstance(model, Record) and not isinstance(model.kind, External):
            self.early.append((model, use))


STATE = External("torch.nn.Module.state_dict")  # what state_dict() returns, with the model that it is of
OWNER = "[owner]"


def _is_plain(model: Any) -> bool:
    """Return whether a model is one of the program's, or of a library's, and no wrapper."""
    return isinstance(model, Record) and not (
        isinstance(model.kind, External) and model.kind.name.endswith("DistributedDataParallel")
    )


def is_state(name: str) -> bool:
    return name in _STATES
