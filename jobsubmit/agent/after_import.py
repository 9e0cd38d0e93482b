"""Run an action right after a module was imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, TypeAlias

    Action: TypeAlias = Callable[[ModuleType], None]


def after_import(actions: dict[str, Action], failed: Callable[[str], None]) -> None:
    """Run an action on each named module: now if it is loaded, else after its import; `failed` gets the errors."""

    def guarded(action: Action) -> Action:
        def act(module: ModuleType) -> None:
            try:
                action(module)
            except Exception as error:
                failed("%s is not as expected (%s: %s)" % (module.__name__, type(error).__name__, error))

        return act

    waiting = {name: guarded(action) for name, action in actions.items()}
    for name in [name for name in waiting if name in sys.modules]:
        waiting.pop(name)(sys.modules[name])
    if waiting:
        sys.meta_path.insert(0, _Watcher(waiting))


class _Watcher:
    def __init__(self, waiting: dict[str, Action]) -> None:
        self.waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:  # those before it were asked already
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._act_after(spec.loader, name)
                return spec
        return None

    def _act_after(self, loader: Any, name: str) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            action = self.waiting.pop(name, None)  # only now: who looks for a spec need not import
            if action is not None:
                action(module)
            if not self.waiting and self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = exec_module
