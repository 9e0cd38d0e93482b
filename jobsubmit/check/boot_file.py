"""The boot file is among the files that are uploaded, and Python can read it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from jobsubmit.bundle import Bundle, BundleFile, LeftOut
from jobsubmit.check.finding import Finding
from jobsubmit.plan import LaunchPlan


def check_boot_file(plan: LaunchPlan, bundle: Bundle) -> Iterator[Finding]:
    """Yield what is wrong with the boot file; a start command of the user's own is not looked into."""
    if plan.boot_file is None:
        return
    file = next((file for file in bundle.files if file.path == plan.boot_file), None)
    if file is not None:
        yield from _syntax(file)
    elif left_out := _left_out(bundle, plan.boot_file):
        yield Finding(
            "error",
            "boot_file",
            f"{plan.boot_file} is in the code directory but is not uploaded: {left_out.path} is {left_out.reason}",
            "change the rule, or bring it back with a line like !" + plan.boot_file,
        )
    else:
        yield Finding(
            "error",
            "boot_file",
            f"{plan.boot_file} is not in {bundle.root}",
            _nearby(bundle, plan.boot_file),
        )


def _left_out(bundle: Bundle, path: str) -> LeftOut | None:
    return next(
        (
            left
            for left in bundle.left_out
            if path == left.path or (left.path.endswith("/") and path.startswith(left.path))
        ),
        None,
    )


def _nearby(bundle: Bundle, path: str) -> str:
    name = path.rpartition("/")[2]
    same_name = [file.path for file in bundle.files if file.path.rpartition("/")[2] == name]
    scripts = [file.path for file in bundle.files if file.path.endswith(".py") and "/" not in file.path]
    candidates = same_name or scripts
    return f"boot_file is relative to code_dir; there is {', '.join(candidates[:5])}" if candidates else ""


def _syntax(file: BundleFile) -> Iterator[Finding]:
    if not file.path.endswith(".py"):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(Path(file.source).read_bytes(), filename=file.path)
    except SyntaxError as error:
        yield Finding("error", f"{file.path}:{error.lineno or 1}", f"is not Python: {error.msg}")
    except (ValueError, RecursionError) as error:
        yield Finding("error", file.path, f"is not Python: {error}")
