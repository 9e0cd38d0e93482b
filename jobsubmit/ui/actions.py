"""What a reader can do to a job: each action is a command, which the page shows before it acts."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from jobsubmit.backends.models import JobStatus
from jobsubmit.config import Settings
from jobsubmit.errors import UsageError
from jobsubmit.jobs import monitor, submit
from jobsubmit.jobs.records import JobRecord
from jobsubmit.jobs.rerun import prepare_rerun


@dataclass(frozen=True)
class Action:
    """A command on a job. `act` returns the id of the job to show afterwards, or None for the list of jobs."""

    name: str
    title: str
    explanation: str
    is_danger: bool
    act: Callable[[JobRecord, Settings], str | None]

    def command(self, record: JobRecord) -> str:
        """Return the command that does the same."""
        return f"jobsubmit {self.name} {shlex.quote(record.id)}"


def _cancel(record: JobRecord, settings: Settings) -> str:
    monitor.cancel(record, settings)
    return record.id


def _rerun(record: JobRecord, settings: Settings) -> str:
    return submit.submit(prepare_rerun(record, settings), settings).record.id


def _delete(record: JobRecord, settings: Settings) -> None:
    monitor.delete(record, settings)


_ACTIONS = (
    Action("cancel", "Cancel the job", "Its processes get SIGTERM, time to save, then SIGKILL.", True, _cancel),
    Action("rerun", "Submit the job again", "The same code, script and settings, as a new job.", False, _rerun),
    Action(
        "delete",
        "Delete the job",
        "Its logs and its record are deleted. Code in the store, outputs and checkpoints stay.",
        True,
        _delete,
    ),
)


def actions_for(status: JobStatus | None) -> list[Action]:
    """Return what can be done to a job in its state."""
    may_change = status is not None and status.state.may_change
    return [action for action in _ACTIONS if action.name != ("delete" if may_change else "cancel")]


def find_action(name: str) -> Action:
    """Return an action by its name; raise UsageError if there is none."""
    for action in _ACTIONS:
        if action.name == name:
            return action
    raise UsageError("there is no such page")
