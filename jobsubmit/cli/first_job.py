"""Write the files of init: a job file, and sample code if it is asked for."""

from __future__ import annotations

import filecmp
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobsubmit.cli.console import columns, counted, out
from jobsubmit.common.finding import Finding
from jobsubmit.common.resources import SAMPLE_CODE
from jobsubmit.errors import JobSubmitError, UsageError
from jobsubmit.scaffold.from_command import job_name
from jobsubmit.scaffold.samples import Sample, code_of, find_sample, list_samples
from jobsubmit.spec.json_schema import SCHEMA_LINE, SCHEMA_NAME, json_schema
from jobsubmit.spec.loader import Override
from jobsubmit.spec.modes import Mode

_CODE = "code"


def write_first_job(
    directory: Path,
    mode: Mode | None,
    command: str | None,
    sample: str | None,
    *,
    force: bool,
    with_code: bool,
    changes: Sequence[Override] = (),
) -> None:
    """Write a job file for the code in a directory, for a command line, or for a sample. Raises UsageError.

    `changes` are what options such as --nodes say; the job file of a sample has its own values.
    """
    job = directory / "job.yaml"
    if job.exists() and not force:
        raise UsageError(f"{job} already exists", "replace it with --force, or choose another directory")
    ways = {"--from": command, "--sample": sample, "--mode": mode, "--with-code": with_code or None}
    said = [way for way, value in ways.items() if value is not None]
    if len(said) > 1 and said != ["--mode", "--with-code"]:
        text = f"{said[0]} cannot be combined with {said[1]}: {said[0]} already says what to start, and how"
        raise UsageError(text, f"remove {said[1]}")
    chosen: Sample | None = None
    known: dict[str, list[Finding]] = {}  # what the checks find, so that they check each job only once
    if command is not None:
        text = _from_command(command, directory, known, changes)
    elif sample is not None or with_code or _is_empty(directory):
        if changes:
            raise UsageError(
                f"{changes[0].source} cannot change the job file of a sample",
                f"run init without it, and pass it to create: jobsubmit create {job} {changes[0].source} …",
            )
        chosen = find_sample(sample or mode or "torchrun")
        text = _starter(chosen)
    else:
        text = _proposed(directory, mode, known, changes)
    code = directory / _CODE if chosen else None
    files = _new_files(chosen, directory / _CODE) if chosen else []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for source, target in files:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
        (directory / SCHEMA_NAME).write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
        job.write_text(SCHEMA_LINE + text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{error.filename or job}: {error.strerror}", "choose a directory that you can write to"
        ) from error
    if files:
        out.talk(f"wrote {code}/, the sample training code")
    if out.json:
        out.document({"job_file": str(job), "code_dir": str(code or directory)})
    else:
        out.data(str(job))
    _say_next(job, known)


def show_samples() -> None:
    """List the available samples."""
    found = list_samples()
    if out.json:
        out.document([{"name": sample.name, "about": sample.about} for sample in found])
        return
    out.data(columns([(sample.name, sample.about) for sample in found]))
    out.talk("next: jobsubmit init --sample NAME DIR")


def _starter(sample: Sample) -> str:
    text = sample.job_file.read_text(encoding="utf-8")
    text = text.removeprefix(SCHEMA_LINE).replace("code_dir: ../../code", f"code_dir: {_CODE}")
    return text.replace(f"create {sample.name}.yaml", "create job.yaml")


def _new_files(sample: Sample, code: Path) -> list[tuple[Path, Path]]:
    """Return (source, target) of the files to write; existing files are the user's, and are never replaced."""
    pairs = [(SAMPLE_CODE / name, code / name) for name in code_of(sample)]
    for source, target in pairs:
        if target.exists() and not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
            raise UsageError(f"{target} already exists, and differs from the sample", "choose another directory")
    return [(source, target) for source, target in pairs if not target.exists()]


def _say_next(job: Path, known: dict[str, list[Finding]]) -> None:
    """Show the errors and warnings of the checks, and the next command: validate if there are errors, else create."""
    from jobsubmit.cli.findings import show_notes
    from jobsubmit.config import load_settings
    from jobsubmit.jobs.prepare import examine
    from jobsubmit.spec.loader import load

    try:
        findings = examine(load(job), load_settings(), known=known).findings
    except JobSubmitError as error:
        out.talk(f"note: {error.message}")
        findings = ()
    show_notes((), [one for one in findings if one.level in ("error", "warning")])
    errors = [one for one in findings if one.level == "error"]
    if errors:
        out.talk(f"next: fix {counted(len(errors), 'error')}: jobsubmit validate {job}")
    else:
        out.talk(f"next: jobsubmit validate {job}, then jobsubmit create {job} --follow")


def _from_command(command: str, directory: Path, known: dict[str, list[Finding]], changes: Sequence[Override]) -> str:
    from jobsubmit.config import load_settings
    from jobsubmit.scaffold.choice import choose_draft, with_requirements
    from jobsubmit.scaffold.command_words import hide_secrets

    settings = load_settings()
    name = job_name(directory.resolve().name)
    draft = choose_draft(command, directory, settings, known, name, changes)
    draft = with_requirements(draft, directory, settings, known)
    for note in draft.notes:
        out.talk(f"note: {note}")
    return f"# From a command line: {hide_secrets(command)}\n{draft.text()}"


def _is_empty(directory: Path) -> bool:
    """Return whether a directory does not exist, or has only hidden files."""
    return not directory.is_dir() or not any(path for path in directory.iterdir() if not path.name.startswith("."))


def _proposed(directory: Path, mode: Mode | None, known: dict[str, list[Finding]], changes: Sequence[Override]) -> str:
    """Return a job file for the code in a directory; raise UsageError if it has no training code."""
    from jobsubmit.config import load_settings
    from jobsubmit.scaffold.choice import choose_start, with_requirements
    from jobsubmit.scaffold.from_code import drafts_from_code, find_scripts

    settings = load_settings()
    common = {
        "name": job_name(directory.resolve().name) or "training",
        "code_dir": ".",
        "resources": {"nodes": 1, "nproc_per_node": 2},
    }
    draft = (
        choose_start(directory, common, settings, known, changes)
        if mode is None
        else next(iter(drafts_from_code(directory)), None)
    )
    if draft is None:
        scripts = find_scripts(directory)
        shown = f"; scripts that you could start: {', '.join(scripts[:5])}" if scripts else ""
        text = (
            f"no file in {directory.resolve()} starts distributed training (searched for torch.distributed, FSDP, "
            f"Accelerate, Lightning, Hugging Face's Trainer, DeepSpeed){shown}"
        )
        command = f"python {scripts[0]}" if scripts else "torchrun --nproc_per_node=8 train.py"
        raise UsageError(
            text,
            f'give the command: --from "{command}"; or write sample code: --sample torchrun, or --with-code',
        )
    fields = {**common, **draft.fields}
    if mode is not None:
        fields = {**fields, "mode": mode}
        fields.pop("local_rank", None)
    named = f"mode {fields['mode']}" if "mode" in fields else "a command"
    why = f"mode {mode}, from --mode" if mode else f"{named}: {draft.reason}"
    out.talk(f"found {draft.started_file}; {why}")
    if draft.others:
        out.talk(f"  other scripts that you could start: {', '.join(draft.others[:5])}")
    draft = replace(draft, fields=fields).with_changes(changes)
    draft = with_requirements(draft, directory, settings, known)
    return f"# Proposed from the code here: {draft.started_file}; {why}.\n{draft.text()}"
