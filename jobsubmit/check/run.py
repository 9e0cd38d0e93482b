"""All checks of a job's code, given the arguments and the environment of the job."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.bundle.model import Bundle
from jobsubmit.check.arguments import Word, check_arguments
from jobsubmit.check.boot_file import broken_modules, check_boot_file
from jobsubmit.check.code import Code, look_at
from jobsubmit.check.collective_arguments import check_collective_arguments
from jobsubmit.check.collectives import check_collectives
from jobsubmit.check.devices import check_devices
from jobsubmit.check.evaluation import check_evaluation
from jobsubmit.check.files import check_files
from jobsubmit.check.frameworks import check_frameworks
from jobsubmit.check.group import check_group
from jobsubmit.check.hardcoded import check_fixed
from jobsubmit.check.imports import FindMissing, check_imports, check_packages
from jobsubmit.check.interactive import check_interactive
from jobsubmit.check.launcher import check_launcher
from jobsubmit.check.no_sync import check_no_sync
from jobsubmit.check.pickled import check_pickled
from jobsubmit.check.program.modules import load_program
from jobsubmit.check.program.values import UNKNOWN, Facts, Several, several
from jobsubmit.check.races import check_races
from jobsubmit.check.ranks import LAUNCHER_VARIABLES, OF_SCHEDULERS, check_ranks
from jobsubmit.check.recovery import check_recovery
from jobsubmit.check.saving import check_saving
from jobsubmit.check.sharding import check_sharding
from jobsubmit.check.unsynchronized import check_unsynchronized
from jobsubmit.check.unused_parameters import check_unused_parameters
from jobsubmit.check.world import check_world
from jobsubmit.check.wrapped_state import check_wrapped_state
from jobsubmit.check.wrapping import check_wrapping
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.launchers import Launch, launch_of_command
from jobsubmit.plan.processes import build_boot_words, expand
from jobsubmit.spec.modes import Start

_SOME = 8
_COMMENT = re.compile(r"\s*#")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def check_code(job: LaunchPlan, bundle: Bundle, find_missing: FindMissing | None = None) -> Iterator[Finding]:
    """Yield what is wrong with the code of a job, and what cannot be checked; of a start command, check what it starts.

    `find_missing` returns the modules that the nodes' Python lacks, if that is known.
    """

    @cache
    def read(path: str) -> str:
        source = next((file.source for file in bundle.files if file.path == posixpath.normpath(path)), None)
        return Path(source).read_text(errors="replace") if source else ""

    yield from check_launcher(job, read)
    plan, own_words, is_module = _as_seen(job, bundle, read)
    found = list(check_boot_file(plan, bundle))
    yield from found
    if plan.mode == "launch" and job.command is None:
        yield _deprecated(plan)
    if plan.boot_file is None or any(finding.level == "error" for finding in found):
        return
    python_path = dict(plan.env).get("PYTHONPATH")
    places = [] if python_path is None else python_path.split(":")
    roots = tuple("" if path in ("", ".") else f"{path.strip('./')}/" for path in places)
    program = load_program(bundle, plan.boot_file, roots, is_module=is_module)
    if program is None:
        return
    words = tuple(Word(value.text, value.field if value.origin == "spec" else "") for value in build_boot_words(plan))
    words = (*(word._replace(field="command") for word in words[:own_words]), *words[own_words:])
    words += _declared_words(job, read(plan.boot_file))

    is_open = any(_VARIABLE.search(word.text) for word in words[:own_words])

    @cache
    def code() -> Code:
        return look_at(program, _facts(plan, words), words)

    yield from broken_modules(program, is_this_python=plan.backend.is_this_machine)
    for name, check in (
        ("imports", lambda: check_imports(code(), bundle)),
        ("packages", lambda: check_packages(code(), bundle, job.requirements, find_missing)),
        ("files", lambda: check_files(code(), bundle, words)),
        ("arguments", lambda: () if is_open else check_arguments(code().line, words, str(plan.boot_file), plan.mode)),
        ("interactive", lambda: check_interactive(code())),
        ("ranks", lambda: check_ranks(code())),
        ("group", lambda: check_group(code())),
        ("world", lambda: check_world(code())),
        ("frameworks", lambda: check_frameworks(code(), read)),
        ("devices", lambda: check_devices(code())),
        ("fixed", lambda: check_fixed(code())),
        ("collectives", lambda: check_collectives(code())),
        ("collective_arguments", lambda: check_collective_arguments(code())),
        ("wrapping", lambda: check_wrapping(code())),
        ("unsynchronized", lambda: check_unsynchronized(code())),
        ("no_sync", lambda: check_no_sync(code())),
        ("sharding", lambda: check_sharding(code())),
        ("wrapped_state", lambda: check_wrapped_state(code())),
        ("evaluation", lambda: check_evaluation(code())),
        ("unused_parameters", lambda: check_unused_parameters(code())),
        ("saving", lambda: check_saving(code())),
        ("pickled", lambda: check_pickled(code(), job.torch_version)),
        ("races", lambda: check_races(code())),
        ("recovery", lambda: check_recovery(code(), job)),
    ):
        yield from _safely(name, check, plan.boot_file)


def _as_seen(job: LaunchPlan, bundle: Bundle, read: Callable[[str], str]) -> tuple[LaunchPlan, int, bool]:
    """Return a job as if its mode started what its command starts, and how many words of that are the command's.

    The mode that is given counts, else that of the launcher which the command names. The last value is whether the
    program is started as a module.
    """
    launch = launch_of_command(job.command or (), read)
    file = _file_of(launch, bundle)
    if not file:
        return job, 0, False
    is_launcher = launch.launcher not in ("", "python")
    mode: Start = job.mode
    if mode == "command" and is_launcher:
        mode = "launch" if launch.launcher == "launch" else "torchrun"
    own = tuple(_expanded(word, job) for word in launch.program[1:])
    seen = replace(
        job,
        mode=mode,
        command=None,
        boot_file=file,
        nproc_per_node=launch.nproc if is_launcher and launch.nproc else job.nproc_per_node,
        local_rank="env" if mode != "launch" or launch.options.get("use_env") else "argument",
        arguments=(*own, *job.arguments),
        args_from=len(own) + job.args_from,
    )
    return seen, len(own), launch.is_module


def _declared_words(job: LaunchPlan, source: str) -> tuple[Word, ...]:
    """Return the arguments that the start script adds because the boot file declares them: it looks in the same way."""
    if job.command is not None:
        return ()
    text = "\n".join(line for line in source.splitlines() if not _COMMENT.match(line))
    found = ((mount, re.search(mount.declaration, text)) for mount in job.mounts if mount.declaration)
    return tuple(
        Word(f"--{declared[0][3:-1]}=<the directory of {mount.kind} {mount.name}>", mount.field)
        for mount, declared in found
        if declared
    )


def _expanded(word: str, job: LaunchPlan) -> str:
    """Return a word of a shell with what a node's environment has for it, as the first node sees it."""
    known: dict[str, str] = {
        contract.NNODES: str(job.nodes),
        contract.NODE_RANK: "0",
        contract.MASTER_ADDR: "node-0",
        contract.MASTER_PORT: str(contract.DEFAULT_PORT),
        contract.NPROC_PER_NODE: str(job.nproc_per_node or _SOME),
        **dict(job.env),
    }
    return _VARIABLE.sub(lambda found: known.get(found[1] or found[2], found[0]), word)


def _file_of(launch: Launch, bundle: Bundle) -> str:
    """Return the file that is started, if it is known; a module is looked for among the files."""
    if not launch.launcher:
        return ""
    program = launch.program[0] if launch.program else ""
    if not launch.is_module:
        return posixpath.normpath(program) if program.endswith(".py") and not program.startswith("/") else ""
    base = program.replace(".", "/")
    paths = {file.path for file in bundle.files}
    return next((path for path in (f"{base}.py", f"{base}/__main__.py") if path in paths), "")


def _safely(name: str, check: Callable[[], Iterable[Finding]], boot_file: str) -> list[Finding]:
    """Return what a check found: code that it cannot follow must not stop a submission."""
    try:
        return list(check())
    except (Exception, RecursionError, MemoryError) as error:
        why = f"the check `{name}` cannot follow the code ({type(error).__name__})"
        return [Finding("unknown", name, boot_file, why)]


def _deprecated(plan: LaunchPlan) -> Finding:
    return Finding(
        "hint",
        "deprecated-launch",
        "mode",
        "torch.distributed.launch is deprecated by torch; torchrun starts the same processes",
        "run `jobsubmit create JOB_FILE --mode torchrun`"
        + (", and read LOCAL_RANK from the environment" if plan.local_rank == "argument" else ""),
    )


def _facts(plan: LaunchPlan, words: tuple[Word, ...]) -> Facts:
    expansion = expand(plan, only=0)
    node = expansion.nodes[0]
    environment: dict[str, Any] = {
        name: UNKNOWN if value.is_open else value.text for name, value in expansion.environment.items()
    }
    environment |= dict.fromkeys((*node.environment, *node.processes[0].environment), UNKNOWN)
    environment |= {name: _as_text(ranks) for name, ranks in _ranks(plan).items()}
    if not plan.has_launcher:
        environment |= dict.fromkeys(LAUNCHER_VARIABLES)
    text = " ".join((*(plan.command or ()), plan.setup or ""))
    unset = OF_SCHEDULERS if plan.backend.kind != "slurm" else [name for name in OF_SCHEDULERS if "SLURM" not in name]
    if plan.mode == "spawn" and plan.backend.starts_boot_file:
        environment |= dict.fromkeys(contract.SET_BY_SCRIPT)
    environment |= {name: None for name in unset if name not in environment and name not in text}
    argv = tuple(word.text for word in words)
    gpus = plan.backend.gpus_of_node(plan.nodes, plan.nproc_per_node)
    rank = _ranks(plan).get(contract.RANK, UNKNOWN) if plan.has_launcher else UNKNOWN
    return Facts(plan.mode, plan.nodes, plan.nproc_per_node, gpus, environment, argv, rank)


def _ranks(plan: LaunchPlan) -> dict[str, Any]:
    """Return the numbers that differ from process to process, or from node to node."""
    each = plan.nproc_per_node or _SOME  # as many as a node has accelerators
    nodes = dict.fromkeys((contract.NODE_INDEX, contract.NODE_RANK), _numbers(plan.nodes))
    if not plan.has_launcher:
        return nodes
    ranks = dict.fromkeys((contract.RANK, contract.ROLE_RANK), _numbers(plan.nodes * each))
    return {**nodes, **ranks, contract.LOCAL_RANK: _numbers(each), contract.GROUP_RANK: _numbers(plan.nodes)}


def _numbers(count: int) -> Any:
    return several(sorted({0, count // 2, count - 1}))


def _as_text(numbers: Any) -> Any:
    return Several(tuple(map(str, numbers.values))) if isinstance(numbers, Several) else str(numbers)
