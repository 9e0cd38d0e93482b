"""Do something with a module right after it was imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def after_import(actions: dict[str, Callable[[ModuleType], None]]) -> None:
    """Run an action on each named module: now, if it is there, else once it was imported."""
    waiting = {}
    for name, action in actions.items():
        if name in sys.modules:
            action(sys.modules[name])
        else:
            waiting[name] = action
    if waiting:
        sys.meta_path.insert(0, _Watcher(waiting))


class _Watcher:
    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self.waiting = waiting

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        action = self.waiting.pop(name, None)
        if action is None:
            return None
        if not self.waiting:
            sys.meta_path.remove(self)
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                _act_after(spec.loader, action)
                return spec
        return None


def _act_after(loader: Any, action: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        action(module)

    loader.exec_module = exec_module
