"""Check that the files that a job names are uploaded, and that the boot file is valid Python."""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Iterator
from dataclasses import replace

from jobsubmit.bundle.ignore import how_to_bring_back
from jobsubmit.bundle.model import Bundle, BundleFile
from jobsubmit.check.program.calls import Reach
from jobsubmit.check.program.module import imported_names, unparsed
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.reading import find_module, parsed
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan

# Type statements, generics, f-strings (3.12), `except A, B`, t-strings (3.14), and what is not known yet.
_NEWER = re.compile(r"^\s*type \w+|\b(def|class) \w+\[|\b[fFtT][rR]?[\"']|^\s*except\b[^:]*,|\blazy (import|from)\b")


def check_boot_file(plan: LaunchPlan, bundle: Bundle) -> Iterator[Finding]:
    """Yield what is wrong with the files that a job names; a start command is not checked."""
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
    shown = ", ".join(candidates[:5])
    text = f"set {field} (with `run`, the file in the command) to a path relative to code_dir, such as {shown}"
    return text if candidates else ""


def _syntax(file: BundleFile, *, is_this_python: bool) -> Iterator[Finding]:
    if not file.path.endswith(".py"):
        return
    try:
        parsed(file.source)
    except SyntaxError as error:
        yield _not_python(file.path, error, is_this_python=is_this_python)
    except (RecursionError, MemoryError):
        yield Finding("unknown", "boot-file", file.path, "the code is nested too deeply to be checked")
    except ValueError as error:
        yield Finding("error", "boot-file", file.path, f"is not valid Python: {error}")


def broken_modules(program: Program, reached: Reached | None, *, is_this_python: bool) -> Iterator[Finding]:
    """Yield a finding for each file that this job imports, or may import, and that is not valid Python.

    Where it is not known what is `reached`, all of them count.
    """
    reach = _reach_of_broken(program, reached) if reached is not None else {}
    for path, error in program.broken.items():
        if level := reach.get(path, Reach.PERHAPS if reached is not None else Reach.SURELY):
            finding = _not_python(path, error, is_this_python=is_this_python)
            yield finding if level is Reach.SURELY else replace(finding, level="warning")


def _reach_of_broken(program: Program, reached: Reached) -> dict[str, Reach]:
    """Return how surely each file that is not valid Python is imported, of those that a statement imports."""
    found = dict[str, Reach]()
    for module, node in program.of(ast.Import, ast.ImportFrom) if program.broken else ():
        is_for_types = any(
            isinstance(one, ast.If) and "TYPE_CHECKING" in unparsed(one.test) for one in module.above(node)
        )
        level = Reach.NEVER if is_for_types else reached.of(node, module)
        for name in imported_names(node, module):
            if (path := find_module(name, program.roots, program.paths)) in program.broken and path is not None:
                found[path] = max(level, found.get(path, Reach.NEVER))
    return found


def _not_python(path: str, error: SyntaxError, *, is_this_python: bool) -> Finding:
    where = f"{path}:{error.lineno or 1}"
    if is_this_python or not _may_be_newer(error.text or ""):
        return Finding("error", "boot-file", where, f"is not valid Python: {error.msg}")
    text = f"is not valid Python {platform.python_version()}: {error.msg}"
    return Finding(
        "warning", "boot-file", where, text, "make sure that the nodes have a newer Python than this machine"
    )


def _may_be_newer(line: str) -> bool:
    """Return whether a line that this Python refuses has a form that a newer one may accept."""
    return _NEWER.search(line) is not None
