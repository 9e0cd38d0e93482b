"""The sample jobs that come with jobsubmit: a job file each, and the code that it starts."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.program.reading import load_program
from jobsubmit.common.resources import SAMPLE_CODE, STARTER_JOBS
from jobsubmit.errors import UsageError, did_you_mean
from jobsubmit.spec.json_schema import SCHEMA_LINE
from jobsubmit.spec.loader import load
from jobsubmit.spec.modes import MODES


class Sample(NamedTuple):
    """A sample: its name, a sentence on what it shows, and its job file."""

    name: str
    about: str
    job_file: Path


def list_samples() -> list[Sample]:
    """Return all samples: first those of the modes, then the others by name."""
    files = sorted(STARTER_JOBS.glob("*.yaml"), key=lambda file: (file.stem not in MODES, file.stem))
    return [Sample(file.stem, _about(file.read_text(encoding="utf-8")), file) for file in files]


def _about(text: str) -> str:
    comment = text.removeprefix(SCHEMA_LINE).partition("\n")[0].lstrip("# ")
    return comment.partition(" Try it:")[0]


def find_sample(name: str) -> Sample:
    """Return a sample by its name; raise UsageError if it does not exist."""
    known = {sample.name: sample for sample in list_samples()}
    if found := known.get(name.replace("-", "_")):
        return found
    hint = did_you_mean(name, known) + "run `jobsubmit init --list` to list the samples"
    raise UsageError(f"--sample {name}: the sample does not exist", hint)


def code_of(sample: Sample) -> list[str]:
    """Return the files of the sample code that a sample needs; the samples of the modes share their code."""
    wanted = [file for file in list_samples() if file.name in MODES] if sample.name in MODES else [sample]
    bundle = scan(SAMPLE_CODE)
    programs = (load_program(bundle, load(one.job_file).spec.boot_file or "") for one in wanted)
    return sorted({module.path for program in programs if program for module in program.modules.values()})
