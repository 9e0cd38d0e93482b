"""All checks of a job's code, and what the job tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from jobsubmit.bundle.model import Bundle
from jobsubmit.check.arguments import Word, check_arguments
from jobsubmit.check.boot_file import check_boot_file
from jobsubmit.check.code import Code, look_at
from jobsubmit.check.collectives import check_collectives
from jobsubmit.check.files import check_files
from jobsubmit.check.hardcoded import check_fixed
from jobsubmit.check.imports import check_imports
from jobsubmit.check.program.modules import load_program
from jobsubmit.check.program.values import UNKNOWN, Facts
from jobsubmit.check.ranks import LAUNCHER_VARIABLES, check_ranks
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.processes import build_boot_words, expand


def check_code(plan: LaunchPlan, bundle: Bundle) -> Iterator[Finding]:
    """Yield what is wrong with the code of a job, or cannot be told; a start command of the user's own is not read."""
    found = list(check_boot_file(plan, bundle))
    yield from found
    if plan.mode == "launch":
        yield _deprecated(plan)
    if plan.boot_file is None or any(finding.level == "error" for finding in found):
        return
    told = dict(plan.env).get("PYTHONPATH")
    places = [] if told is None else told.split(":")
    roots = tuple("" if path in ("", ".") else f"{path.strip('./')}/" for path in places)
    program = load_program(bundle, plan.boot_file, roots)
    if program is None:
        return
    words = tuple(Word(value.text, value.field if value.origin == "spec" else "") for value in build_boot_words(plan))

    @cache
    def code() -> Code:
        return look_at(program, _facts(plan, words), words)

    for name, check in (
        ("imports", lambda: check_imports(code(), bundle)),
        ("files", lambda: check_files(code(), bundle, words)),
        ("arguments", lambda: check_arguments(code().line, words, str(plan.boot_file))),
        ("ranks", lambda: check_ranks(code())),
        ("fixed", lambda: check_fixed(code())),
        ("collectives", lambda: check_collectives(code())),
    ):
        yield from _safely(name, check, plan.boot_file)


def _safely(name: str, check: Callable[[], Iterator[Finding]], boot_file: str) -> list[Finding]:
    """Return what a check found: code that it cannot follow must not stop a submission."""
    try:
        return list(check())
    except (Exception, RecursionError, MemoryError) as error:
        why = f"the check of {name} could not follow the code ({type(error).__name__})"
        return [Finding("unknown", name, boot_file, why)]


def _deprecated(plan: LaunchPlan) -> Finding:
    return Finding(
        "hint",
        "deprecated-launch",
        "mode",
        "torch.distributed.launch is deprecated by torch; torchrun starts the same processes",
        "jobsubmit create JOB_FILE --mode torchrun"
        + (", and read LOCAL_RANK from the environment" if plan.local_rank == "argument" else ""),
    )


def _facts(plan: LaunchPlan, words: tuple[Word, ...]) -> Facts:
    expansion = expand(plan, only=0)
    node = expansion.nodes[0]
    environment: dict[str, Any] = {
        name: UNKNOWN if value.is_open else value.text for name, value in expansion.environment.items()
    }
    environment |= dict.fromkeys((*node.environment, *node.processes[0].environment), UNKNOWN)
    if plan.mode == "spawn":
        environment |= dict.fromkeys(LAUNCHER_VARIABLES)
    argv = tuple(word.text for word in words)
    gpus = plan.backend.gpus_of_node(plan.nodes, plan.nproc_per_node)
    return Facts(plan.mode, plan.nodes, plan.nproc_per_node, gpus, environment, argv)
