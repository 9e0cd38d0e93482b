"""Why a job did not find a file or a module: it was not uploaded, exists only on this machine, or is not installed."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from jobsubmit.agent import json_form
from jobsubmit.agent.atomic_write import read_file
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.backends.models import Failure
from jobsubmit.bundle.ignore import how_to_bring_back
from jobsubmit.bundle.model import Bundle, LeftOut, find_left_out
from jobsubmit.jobs.records import JobRecord

_MISSING = re.compile(r"""(?:No such file or directory: |FileNotFoundError: (?:\[Errno 2\] )?)(['"])(.+?)\1""")
_MODULE = re.compile(r"No module named '([\w.]+)'|cannot import name '(\w+)' from '([\w.]+)'")
_INPUTS = "name its folder in `inputs`, which brings data to the nodes"
_FORM = {"left_out": [{"path": str, "reason": str, "rule": str}]}


def left_out_text(bundle: Bundle) -> str:
    """Return the list of what a bundle leaves out, as text that is kept with its job."""
    values = {"left_out": [left._asdict() for left in bundle.left_out]}
    return json.dumps(values, ensure_ascii=True, indent=1) + "\n"


def explain_what_is_missing(failure: Failure, record: JobRecord, files: JobDirectory) -> Failure:
    """Return a failure with an explanation, if the job failed because it did not find a file or a module."""
    path = _missing_path(failure.last_lines)
    if not path:
        return _explain_missing_module(failure, record, files)
    in_code = _path_in_code(path, record.code_name)
    if left_out := find_left_out(_read_left_out(files), in_code):
        hint = f"{how_to_bring_back(in_code, left_out)}; or name its folder in `inputs`, which brings data to the nodes"
        return replace(failure, meaning=f"{in_code} was not uploaded: {left_out.reason}", hint=hint)
    if record.backend != "local" and path.startswith("/") and Path(path).exists():
        return replace(failure, meaning=f"{path} exists on this machine, but not on the nodes", hint=_INPUTS)
    return failure


def _explain_missing_module(failure: Failure, record: JobRecord, files: JobDirectory) -> Failure:
    found = _MODULE.findall("\n".join(failure.last_lines))
    if not found:
        return failure
    whole, inner, package = found[-1]
    if left := _left_out_module(_read_left_out(files), whole or f"{package}.{inner}"):
        hint = how_to_bring_back(left.path, left)
        return replace(failure, meaning=f"{left.path} was not uploaded: {left.reason}", hint=hint)
    name = whole.partition(".")[0]
    if not record.python or not name:
        return failure
    program = record.python.partition(" (")[0]
    hint = (
        f"name its package in the `requirements` file, or install it for {program}; the package may have another name "
        "(cv2: opencv-python); a module of your own must be in code_dir; backend.python selects another Python"
    )
    return replace(failure, meaning=f"the module {name} is not installed for {record.python}", hint=hint)


def _left_out_module(left_out: Sequence[LeftOut], name: str) -> LeftOut | None:
    """Return what leaves out a module, whichever folder its package is in."""
    base = name.replace(".", "/")
    paths = (f"{base}.py", f"{base}/__init__.py")
    whole = next((found for path in paths if (found := find_left_out(left_out, path))), None)
    return whole or next((left for left in left_out for path in paths if left.path.endswith(f"/{path}")), None)


def _missing_path(lines: Iterable[str]) -> str:
    found = _MISSING.findall("\n".join(lines))
    return found[-1][1] if found else ""


def _path_in_code(path: str, code_name: str) -> str:
    """Return a path of a node relative to the code directory, where the node's processes start."""
    in_code = path.rpartition(f"/{code_name}/")[2] if code_name else path
    return posixpath.normpath(in_code)


def _read_left_out(files: JobDirectory) -> list[LeftOut]:
    try:
        values = json_form.read_fields(read_file(files.left_out), _FORM)
    except (OSError, ValueError):
        return []
    return [LeftOut(left["path"], left["reason"], left["rule"]) for left in values["left_out"]]
