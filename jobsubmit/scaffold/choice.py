"""Which of the jobs that a command line or a directory of code may mean runs that code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.code import SPAWN
from jobsubmit.check.program.modules import Program, load_program
from jobsubmit.config import Settings
from jobsubmit.errors import BundleError, JobSubmitError
from jobsubmit.jobs.prepare import examine
from jobsubmit.scaffold.draft import JobDraft
from jobsubmit.scaffold.from_code import drafts_from_code, takes_ranks_of_torch
from jobsubmit.scaffold.from_command import draft_spawn, drafts_from_command
from jobsubmit.spec.loader import load_mapping

# Errors that another way to start the code would not have.
_OF_THE_MODE = ("injected-argument", "nested-spawn", "rank-env", "no-processes")
_OF_THE_WAY = ("injected-argument", "local-rank", "nested-spawn", "rank-env", "no-processes", "argument-missing")
_REQUIREMENTS = "requirements.txt"


def choose_draft(command: str, directory: Path, settings: Settings) -> JobDraft:
    """Return the job that a command line means, by what the code in a directory can be started with.

    Raises UsageError where the command line is none.
    """
    drafts = list(drafts_from_command(command))
    program = _program(directory, _file_of(drafts[0]))
    if program is not None:
        drafts = _by_code(drafts, program)
    return next((draft for draft in drafts if not _is_refused(draft, directory, settings)), drafts[0])


def choose_start(directory: Path, fields: Mapping[str, Any], settings: Settings) -> JobDraft | None:
    """Return the job that starts the code in a directory, with some fields given; None where nothing trains.

    A file of requirements that names a package which the nodes' Python lacks is part of it.
    """
    drafts = [replace(draft, fields={**fields, **draft.fields}) for draft in drafts_from_code(directory)]
    if not drafts:
        return None
    found = next((draft for draft in drafts if not _is_refused(draft, directory, settings, _OF_THE_MODE)), drafts[0])
    with_packages = replace(found, fields={**found.fields, "requirements": _REQUIREMENTS})
    is_helped = (directory / _REQUIREMENTS).is_file() and _lacks_packages(found, directory, settings)
    return with_packages if is_helped and not _lacks_packages(with_packages, directory, settings) else found


def _by_code(drafts: Sequence[JobDraft], program: Program) -> list[JobDraft]:
    first = drafts[0]
    is_plain = "mode" not in first.fields and str(first.fields["command"]).startswith("python ")
    if is_plain and any(name == SPAWN for _, _, name in program.calls):
        spawn = draft_spawn(first, program.boot.path)
        return [spawn, *drafts] if spawn else list(drafts)
    is_of_scheduler = len(drafts) > 1 and "--no-python" in str(drafts[-1].fields.get("command"))
    if is_of_scheduler and not takes_ranks_of_torch(program):
        return list(drafts[1:])
    return list(drafts)


def _file_of(draft: JobDraft) -> str:
    """Return the file that a draft starts, if it names one."""
    command = draft.fields.get("command", "")
    words = command.split() if isinstance(command, str) else [str(word) for word in command]
    found = next((word for word in words if word.endswith(".py")), "")
    return str(draft.fields.get("boot_file", found)).removeprefix("./")


def _program(directory: Path, file: str) -> Program | None:
    try:
        return load_program(scan(directory), file) if file else None
    except BundleError:
        return None


def _lacks_packages(draft: JobDraft, directory: Path, settings: Settings) -> bool:
    return _is_refused(draft, directory, settings, ("packages",))


def _is_refused(draft: JobDraft, directory: Path, settings: Settings, checks: Sequence[str] = _OF_THE_WAY) -> bool:
    """Return whether the code cannot be started this way."""
    try:
        findings = examine(load_mapping(draft.fields, directory=directory), settings).findings
    except JobSubmitError:
        return False  # whatever it is, another way to start the code would not help
    return any(finding.level == "error" and finding.check in checks for finding in findings)
