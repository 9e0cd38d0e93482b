"""The choice between the jobs that a command line or a code directory may mean, by which of them can run the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.code import SPAWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reading import load_program
from jobsubmit.check.start.alone import joins_processes
from jobsubmit.config import Settings
from jobsubmit.errors import BundleError, JobSubmitError
from jobsubmit.jobs.prepare import Known, examine
from jobsubmit.scaffold.draft import JobDraft
from jobsubmit.scaffold.from_code import by_its_own_names, drafts_from_code, takes_ranks_of_torch, texts_of
from jobsubmit.scaffold.from_command import draft_spawn, draft_torchrun, drafts_from_command, with_places
from jobsubmit.scaffold.from_script import StartScript, read_from, read_script
from jobsubmit.spec.loader import Override, load_mapping

# Errors that another way to start the code would not have.
_OF_THE_MODE = frozenset(["injected-argument", "nested-spawn", "rank-env", "no-processes"])
_OF_THE_WAY = _OF_THE_MODE | {"local-rank", "argument-missing"}
_PACKAGES = "packages"
_PATH = "PYTHONPATH"
_REQUIREMENTS = "requirements.txt"


def choose_draft(
    command: str,
    directory: Path,
    settings: Settings,
    known: Known | None = None,
    name: str = "",
    changes: Sequence[Override] = (),
) -> JobDraft:
    """Return the job that a command line means, by how the code in a directory can be started.

    Its name is that of the program, if no other is given. `known` is what the checks found so far; `changes` are what
    options such as --nodes say.
    For `sbatch script.sh`, this is what the script starts; for `bash script.sh` too, if it starts nothing else. Raises
    UsageError if the command line is invalid.
    """
    script = read_script(command, directory)
    read = read_from(directory / (script.folder if script else ""))
    drafts = list(drafts_from_command(script.command if script else command, read))
    program = _program(directory / (script.folder if script else ""), drafts[0].started_file)
    if program is not None:
        drafts = _by_code(drafts, program)
    if script is not None:
        drafts = [_of_script(draft, script, program) for draft in drafts]
    if name:
        drafts = [replace(draft, fields={**draft.fields, "name": name}) for draft in drafts]
    drafts = [draft.with_changes(changes) for draft in drafts]
    return _with_path(_fitting_best(drafts, _OF_THE_WAY, directory, settings, known), directory, settings, known)


def _with_path(draft: JobDraft, directory: Path, settings: Settings, known: Known | None) -> JobDraft:
    """Return the job with PYTHONPATH if Python then finds modules of the code directory that it does not find else."""
    env = draft.fields.get("env", {})
    if _PATH in env or _PACKAGES not in _find_errors(draft, directory, settings, known):
        return draft
    note = f"{_PATH}=. is set, because the code imports modules from the code directory"
    helped = replace(draft, fields={**draft.fields, "env": {**env, _PATH: "."}}, notes=(*draft.notes, note))
    return draft if _PACKAGES in _find_errors(helped, directory, settings, known) else helped


def _of_script(draft: JobDraft, script: StartScript, program: Program | None) -> JobDraft:
    """Return a draft with the numbers of a script, and the variables of Slurm that its program reads."""
    command = str(draft.fields.get("command", ""))
    texts = texts_of(program) if program is not None else ()
    read = {name: value for name, value in script.variables.items() if name in texts and f"{name}=" not in command}
    fields: dict[str, Any] = {**draft.fields, "code_dir": script.folder or "."}
    fields["resources"] = {**draft.fields.get("resources", {}), **script.resources}
    if env := {**read, **draft.fields.get("env", {})}:
        fields["env"] = env
    return replace(draft, fields=fields, notes=(*script.notes, *draft.notes))


def choose_start(
    directory: Path,
    fields: Mapping[str, Any],
    settings: Settings,
    known: Known | None = None,
    changes: Sequence[Override] = (),
) -> JobDraft | None:
    """Return the job that starts the code in a directory, with some fields given; None if no file trains."""
    drafts = [replace(draft, fields={**fields, **draft.fields}) for draft in drafts_from_code(directory)]
    drafts = [draft.with_changes(changes) for draft in drafts]
    return _fitting_best(drafts, _OF_THE_MODE, directory, settings, known) if drafts else None


def _fitting_best(
    drafts: Sequence[JobDraft], checks: frozenset[str], directory: Path, settings: Settings, known: Known | None
) -> JobDraft:
    """Return the first job that fails none of some checks, else the first of those that fail the fewest."""
    fewest, best = len(checks) + 1, drafts[0]
    for draft in drafts:
        count = len(checks & _find_errors(draft, directory, settings, known))
        if count < fewest:
            fewest, best = count, draft
        if not count:
            break
    return best


def with_requirements(draft: JobDraft, directory: Path, settings: Settings, known: Known) -> JobDraft:
    """Return the job with the field `requirements` if the requirements file provides what the nodes' Python lacks."""
    if not (directory / _REQUIREMENTS).is_file() or _PACKAGES not in _find_errors(draft, directory, settings, known):
        return draft
    helped = replace(draft, fields={**draft.fields, "requirements": _REQUIREMENTS})
    return draft if _PACKAGES in _find_errors(helped, directory, settings, known) else helped


def _by_code(drafts: Sequence[JobDraft], program: Program) -> list[JobDraft]:
    first = drafts[0]
    is_plain = "mode" not in first.fields and str(first.fields["command"]).startswith("python ")
    if is_plain and any(name == SPAWN for _, _, name in program.calls):
        spawn, own = draft_spawn(first, program.boot.path), by_its_own_names(program)
        placed = with_places(first, own[1]["command"]) if own else None
        return [draft for draft in (spawn, placed, *drafts) if draft is not None]
    if is_plain and any(joins_processes(name) for _, _, name in program.calls):
        launched = draft_torchrun(first, program.boot.path)
        return [draft for draft in (launched, *drafts) if draft is not None]
    is_of_scheduler = len(drafts) > 1 and "--no-python" in str(drafts[-1].fields.get("command"))
    if is_of_scheduler and not takes_ranks_of_torch(program):
        return list(drafts[1:])
    return list(drafts)


def _program(directory: Path, file: str) -> Program | None:
    try:
        return load_program(scan(directory), file) if file else None
    except BundleError:
        return None


def _find_errors(draft: JobDraft, directory: Path, settings: Settings, known: Known | None) -> frozenset[str]:
    """Return the checks that the code fails when it is started this way."""
    try:
        findings = examine(load_mapping(draft.fields, directory=directory), settings, known=known).findings
    except JobSubmitError:
        return frozenset()  # whatever it is, another way to start the code would not help
    return frozenset(finding.check for finding in findings if finding.level == "error")
