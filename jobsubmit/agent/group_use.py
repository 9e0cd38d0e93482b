"""What a process does with torch's process groups: when it joins one, how large that is, and whether it uses one."""

from __future__ import annotations

import sys

from .after_import import after_import

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BACKEND = 3  # its place among the arguments of torch's _new_process_group_helper


class GroupUse:
    """Watches the process groups of this process.

    `join` gets the size of the first one, or 0 if it is not known, also where torch is not as expected. `watch` gets
    the backend of each new group until it returns True.

    Each group of Gloo and NCCL counts its collectives, also those that C++ calls, such as DDP's. Only Gloo counts what
    is sent and received.
    """

    def __init__(self, join: Callable[[int], None], watch: Callable[[object], bool]) -> None:
        self._join, self._watch = join, watch
        self._has_joined = False
        self._has_exchanged: bool | None = False
        actions = {
            "torch.distributed.distributed_c10d": self._watch_groups,
            "torch.distributed.rpc": _before("init_rpc", self._before_rpc),  # its groups are made by C++
        }
        after_import(actions, lambda why: self._note_join(0))

    def look(self) -> bool | None:
        """Return whether this process has exchanged anything in a group until now; None if a group does not say."""
        module: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if self._has_exchanged or module is None:
            return self._has_exchanged
        try:
            counts = [group._get_sequence_number_for_group() for group in list(module._world.pg_map)]
        except Exception:  # a backend that does not count, or another torch
            self._has_exchanged = None
        else:
            self._has_exchanged = any(counts) or self._has_exchanged
        return self._has_exchanged

    def _watch_groups(self, module: Any) -> None:
        _before("_new_process_group_helper", self._before_group)(module)
        _before("destroy_process_group", self._before_end)(module)
        for name in ("send", "recv", "recv_anysource"):
            _before(name, self._before_exchange)(module.ProcessGroup)

    def _note_join(self, size: int) -> None:
        if not self._has_joined:
            self._has_joined = True
            self._join(size)

    def _before_group(self, *args: Any, **kwargs: Any) -> bool:
        size = kwargs.get("group_size", args[0] if args else 0)
        self._note_join(max(size, 0) if isinstance(size, int) else 0)  # with MPI it is -1
        return self._watch(kwargs.get("backend", args[_BACKEND] if len(args) > _BACKEND else None))

    def _before_rpc(self, *args: Any, **kwargs: Any) -> bool:
        self._note_join(0)
        return self._before_exchange()

    def _before_exchange(self, *args: Any, **kwargs: Any) -> bool:
        self._has_exchanged = True
        return True

    def _before_end(self, *args: Any, **kwargs: Any) -> bool:
        return self.look() is not False


def _before(name: str, act: Callable[..., bool]) -> Callable[[Any], None]:
    """Return what has a function of a module call `act` first, with its arguments, until that returns True."""

    def change(module: Any) -> None:
        original = getattr(module, name)

        def acting(*args: Any, **kwargs: Any) -> Any:
            if act(*args, **kwargs) and getattr(module, name) is acting:
                setattr(module, name, original)
            return original(*args, **kwargs)

        setattr(module, name, acting)

    return change
