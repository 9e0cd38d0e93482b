"""The files that a job names are among those that are uploaded, and Python can read the boot file."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from jobsubmit.bundle.ignore import how_to_bring_back
from jobsubmit.bundle.model import Bundle, BundleFile
from jobsubmit.check.program.modules import parsed
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan


def check_boot_file(plan: LaunchPlan, bundle: Bundle) -> Iterator[Finding]:
    """Yield what is wrong with the files a job names; a start command of the user's own is not looked into."""
    if plan.boot_file is not None:
        yield from _missing(bundle, "boot_file", plan.boot_file)
        for file in bundle.files:
            if file.path == plan.boot_file:
                yield from _syntax(file, is_this_python=plan.backend.is_this_machine)
    if plan.requirements is not None:
        yield from _missing(bundle, "requirements", plan.requirements)


def _missing(bundle: Bundle, field: str, path: str) -> Iterator[Finding]:
    if any(file.path == path for file in bundle.files):
        return
    if left_out := bundle.left_out_by(path):
        yield Finding(
            "error",
            "boot-file",
            field,
            f"{path} is in the code directory but is not uploaded: {left_out.path} is {left_out.reason}",
            how_to_bring_back(path, left_out),
        )
    else:
        yield Finding("error", "boot-file", field, f"{path} is not in {bundle.root}", _nearby(bundle, field, path))


def _nearby(bundle: Bundle, field: str, path: str) -> str:
    name, ending = path.rpartition("/")[2], path.rpartition(".")[2]
    same_name = [file.path for file in bundle.files if file.path.rpartition("/")[2] == name]
    alike = [file.path for file in bundle.files if file.path.endswith(f".{ending}") and "/" not in file.path]
    candidates = same_name or alike
    return f"{field} is relative to code_dir; there is {', '.join(candidates[:5])}" if candidates else ""


def _syntax(file: BundleFile, *, is_this_python: bool) -> Iterator[Finding]:
    if not file.path.endswith(".py"):
        return
    try:
        parsed(file.source)
    except SyntaxError as error:
        where = f"{file.path}:{error.lineno or 1}"
        if is_this_python:
            yield Finding("error", "boot-file", where, f"is not Python: {error.msg}")
        else:
            version = platform.python_version()
            yield Finding(
                "warning", "boot-file", where, f"is not Python {version}: {error.msg}", "do the nodes have a newer one?"
            )
    except (RecursionError, MemoryError):
        yield Finding("unknown", "boot-file", file.path, "is nested too deeply to be looked at")
    except ValueError as error:
        yield Finding("error", "boot-file", file.path, f"is not Python: {error}")
