"""Record when a process joined its group, when it saved, and what of its training cannot be timed."""

from __future__ import annotations

import functools
import sys
import threading
import time

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .recorder import Recorder

_MOST_SAVES = 1000  # in a file


class Marks:
    """Wraps the functions of torch whose calls are recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.saves = 0
        self.unmeasured: set[str] = set()
        self.inside = threading.local()

    def actions(self) -> dict[str, Callable[[ModuleType], None]]:
        """Return an action for each module of torch, to run after its import."""
        return {
            "torch.distributed.distributed_c10d": self._mark_init,
            "torch.serialization": self._mark_save,
            "torch.distributed.checkpoint.state_dict_saver": self._mark_save,
            "torch.distributed.fsdp.fully_sharded_data_parallel": self._unmeasured("FullyShardedDataParallel"),
            "torch.distributed.fsdp._fully_shard._fsdp_state": self._unmeasured("FSDPState", "fully_shard"),
            "torch.distributed._composable.fsdp._fsdp_state": self._unmeasured("FSDPState", "fully_shard"),
        }

    def _mark_init(self, module: ModuleType) -> None:
        def note(seconds: float, args: Any) -> None:
            group: Any = module
            world = group.get_world_size()
            self.recorder.event("joined", seconds=seconds, backend=group.get_backend(), world=world)

        self._time(module, "init_process_group", note)

    def _mark_save(self, module: ModuleType) -> None:
        def note(seconds: float, args: Any) -> None:
            if args and type(args[0]).__name__.endswith("Storage"):
                return  # a tensor that is sent to somebody
            self.saves += 1
            if self.saves <= _MOST_SAVES:
                self.recorder.event("saved", seconds=seconds)

        self._time(module, "save", note)

    def _unmeasured(self, name: str, called: str = "") -> Callable[[ModuleType], None]:
        what = called or name

        def mark(module: ModuleType) -> None:
            kind: Any = getattr(module, name)
            make = kind.__init__

            @functools.wraps(make)
            def making(instance: Any, *args: Any, **kwargs: Any) -> None:
                make(instance, *args, **kwargs)
                if what not in self.unmeasured:
                    self.unmeasured.add(what)
                    self.recorder.event("unmeasured", what=what)

            kind.__init__ = making

        return mark

    def _time(self, module: ModuleType, name: str, note: Callable[[float, Any], None]) -> None:
        """Call `note` with the duration and the arguments of each call of a function."""
        function: Any = getattr(module, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self.inside, "is_busy", False):  # a save may be made of many small ones
                return function(*args, **kwargs)
            begun = time.perf_counter()
            self.inside.is_busy = True
            try:
                result = function(*args, **kwargs)
            finally:
                self.inside.is_busy = False
            if self.recorder.is_on:
                try:
                    note(time.perf_counter() - begun, args)
                except Exception as error:
                    self.recorder.off("%s: %s" % (type(error).__name__, error))
            return result

        _replace(module, name, function, timed)


def _replace(module: ModuleType, name: str, function: Any, by: Any) -> None:
    """Replace a function in its module, and in the packages above it that have already imported it."""
    above = module.__name__
    while above:
        holder = sys.modules.get(above)
        if holder is not None and getattr(holder, name, None) is function:
            setattr(holder, name, by)
        above = above.rpartition(".")[0]
