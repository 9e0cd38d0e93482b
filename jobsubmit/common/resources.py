"""Where the shipped templates, sample code and documents are, in an installed wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_PACKAGED = _PACKAGE / "_assets"
_ROOT = _PACKAGED if _PACKAGED.is_dir() else _PACKAGE.parent

TEMPLATES = _ROOT / "templates"
STARTER_JOBS = TEMPLATES / "jobs"
SAMPLE_CODE = _ROOT / "code"
FOR_ASSISTANTS = _ROOT / "docs/for-assistants.md"


def starter_job(mode: str) -> Path:
    """Return the starter job file of a launch mode."""
    return STARTER_JOBS / f"{mode}.yaml"
