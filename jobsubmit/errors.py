"""The errors a user may meet: where it is, what is wrong, what to do next, and the exit code that says so."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple


class Problem(NamedTuple):
    """One fault: `where` is `job.yaml:4`, a flag or a path; `field` is the dotted name in the spec, if any."""

    where: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}  {self.field}: {self.text}" if self.field else f"{self.where}  {self.text}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the beginning of a hint: the known word that a misspelled one means, or nothing where none is near."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean `{close[0]}`? " if close else ""


JOB_FAILED = 100
NOT_FINISHED = 101
JOB_CANCELLED = 103
INTERRUPTED = 130
EXIT_CODES = {
    0: "everything went well",
    1: "a bug in jobsubmit: run the command again with --debug, and report it",
    2: "wrong usage, or an invalid job file",
    3: "a check failed: the code, the bundle, or what `doctor` tried",
    4: "the store refused, or there are no valid credentials for it",
    5: "the backend refused, or cannot be reached",
    JOB_FAILED: "the job failed, or was lost",
    NOT_FINISHED: "the job has not finished in time, or its state is unknown",
    102: "there is no such job",
    JOB_CANCELLED: "the job was cancelled",
    INTERRUPTED: "Ctrl-C: the job goes on",
}


class JobSubmitError(Exception):
    """The root of every error that is not our bug."""

    code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where


class UsageError(JobSubmitError):
    """The command line asks for something that does not exist or does not go together."""

    code = 2


class SpecError(JobSubmitError):
    """List every problem of a job file at once."""

    code = 2

    def __init__(self, problems: Sequence[Problem], hint: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint, problems[0].where)
        self.problems = tuple(problems)


class BundleError(JobSubmitError):
    """Why the code directory cannot be uploaded as it is."""

    code = 2


class CheckError(JobSubmitError):
    """A static check found that the job cannot work."""

    code = 3


class StoreError(JobSubmitError):
    """The object store refused, or there are no credentials for it."""

    code = 4


class StoreRefusedError(StoreError):
    """The server of a bucket was reached, and does not do what it was asked for."""


class BackendError(JobSubmitError):
    """The engine which runs jobs refused or cannot be reached; `may_pass` where trying again may help.

    `is_unsure` where nobody knows whether the engine has done what it was asked for.
    """

    code = 5

    def __init__(
        self, message: str, hint: str = "", where: str = "", *, may_pass: bool = False, is_unsure: bool = False
    ) -> None:
        super().__init__(message, hint, where)
        self.may_pass, self.is_unsure = may_pass, is_unsure

    def without(self, secrets: Iterable[str]) -> BackendError:
        """Return the same error with no secret value in its message."""
        from urllib.parse import quote

        message = self.message
        for value in filter(None, secrets):
            for spelled in (value, quote(value), quote(value, safe="")):
                message = message.replace(spelled, "<secret>")
        return BackendError(message, self.hint, self.where, may_pass=self.may_pass, is_unsure=self.is_unsure)


class JobNotFoundError(JobSubmitError):
    """No job has this name, id or handle."""

    code = 102


class CancelledError(JobSubmitError):
    """Somebody cancelled the job while it was being submitted."""

    code = JOB_CANCELLED
