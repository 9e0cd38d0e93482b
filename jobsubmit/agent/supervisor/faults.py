"""Faults that the user asked for: each is triggered once."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Mapping

from .. import events, processes
from ..protocol import Fault


class Faults:
    """The faults of a job that have not been triggered yet.

    Each is {"text", "action": kill or delay, "target": node or rank, "number", "signal", "at_step" or "after" seconds
    (counted from when all ranks have started), "by" seconds}.
    """

    def __init__(self, job_dir: str, faults: list[Fault]) -> None:
        self.job_dir, self.waiting = job_dir, list(faults)

    def delay_of(self, node: int) -> float:
        """Return by how many seconds the start of a node is delayed, once."""
        for fault in self.waiting:
            if fault["action"] == "delay" and fault["number"] == node:
                self.waiting.remove(fault)
                self._struck(fault)
                return float(fault["by"])
        return 0.0

    def due(self, step: int | None, ready_since: float | None, ranks: Container[int]) -> list[Fault]:
        """Return the kills that are due: `ready_since` is when all ranks had started, or all commands (monotonic).

        `ranks` are those that have started: those of a command may come later.
        """
        found = []
        for fault in list(self.waiting):
            if fault["action"] != "kill" or ready_since is None:
                continue
            if fault["target"] == "rank" and fault["number"] not in ranks:
                continue
            if fault["at_step"] is not None:
                has_come = step is not None and step >= fault["at_step"]
            else:
                has_come = time.monotonic() - ready_since >= fault["after"]
            if has_come:
                self.waiting.remove(fault)
                found.append(fault)
        return found

    def strike(self, fault: Fault, leader: int | None, ranks: Mapping[int, int]) -> bool:
        """Send the signal to one rank, or to all processes of a node; `ranks` maps running ranks to pids."""
        if fault["target"] == "rank":
            pids = [ranks[fault["number"]]] if fault["number"] in ranks else []
        else:
            pids = [leader, *processes.find_descendants([leader])] if leader is not None else []
        if pids:
            self._struck(fault)
        for pid in pids:
            processes.send(pid, fault["signal"])
        return bool(pids)

    def _struck(self, fault: Fault) -> None:
        events.append_event(self.job_dir, "fault", text=fault["text"], pid=os.getpid())
