"""The errors that users may see, each with its place, message, hint and exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple


class Problem(NamedTuple):
    """One problem: `where` is `job.yaml:4`, an option or a path; `field` is the dotted name in the spec, if any."""

    where: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}  {self.field}: {self.text}" if self.field else f"{self.where}  {self.text}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the start of a hint: the known word closest to a misspelled one, or nothing if none is close."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean `{close[0]}`? " if close else ""


def list_problems(problems: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Return the message and the hint of an error with several problems, each (text, hint): each has its own hint."""
    found = list(problems)
    if len(found) == 1:
        return found[0]
    return "\n".join(f"{text}\n  hint: {hint}" if hint else text for text, hint in found), ""


JOB_FAILED = 100
NOT_FINISHED = 101
JOB_CANCELLED = 103
INTERRUPTED = 130
EXIT_CODES = {
    0: "success",
    1: "a bug in jobsubmit: run the command again with --debug, and report it",
    2: "wrong usage, or an invalid job file",
    3: "a check found an error: in the code, the bundle, the data, the limits of the backend, or in `doctor`",
    4: "the store refused a request, or its credentials are missing or invalid",
    5: "the backend refused a request, or cannot be reached",
    JOB_FAILED: "the job failed, or was lost",
    NOT_FINISHED: "the command stopped waiting and the job may still run, or its state is unknown: "
    "see `jobsubmit status`",
    102: "the job does not exist",
    JOB_CANCELLED: "the job was cancelled",
    INTERRUPTED: "interrupted by Ctrl-C: a job that was already submitted keeps running",
}


class JobSubmitError(Exception):
    """The base class of all errors that are not bugs of jobsubmit."""

    code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where


class UsageError(JobSubmitError):
    """The command line names something that does not exist, or combines what cannot be combined."""

    code = 2


class SpecError(JobSubmitError):
    """A job file has problems; all of them are listed."""

    code = 2

    def __init__(self, problems: Sequence[Problem], hint: str = "") -> None:
        text = "\n".join(str(problem) for problem in problems)
        super().__init__(text, hint or _hint_on_quotes(problems), problems[0].where)
        self.problems = tuple(problems)


def _hint_on_quotes(problems: Sequence[Problem]) -> str:
    """Return how to quote a value of --set, whose quotes the shell removes."""
    found = next((one for one in problems if one.where.startswith("--set ") and "quote" in one.text), None)
    if found is None:
        return ""
    if found.where == f"--set {found.field}":
        return f"""keep these quotes from the shell: --set '{found.field}="VALUE"'"""
    return """keep these quotes from the shell: put single quotes around FIELD=VALUE, as in --set 'args=["true"]'"""


class BundleError(JobSubmitError):
    """The code directory cannot be uploaded as it is."""

    code = 2


class CheckError(JobSubmitError):
    """A static check found that the job cannot work."""

    code = 3


class StoreError(JobSubmitError):
    """The store refused a request, or its credentials are missing or invalid."""

    code = 4


class StoreRefusedError(StoreError):
    """The server of a bucket was reached, but refused the request."""


class BackendError(JobSubmitError):
    """The backend refused a request or cannot be reached; `may_pass` is true if a retry may help.

    `is_unsure` is true if it is unknown whether the platform has carried out the request.
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
    """The job was cancelled while it was being submitted."""

    code = JOB_CANCELLED
