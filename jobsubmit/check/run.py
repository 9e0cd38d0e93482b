"""All checks of a job's code, given the arguments and the environment of the job."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.agent.tracking import tracking_variables
from jobsubmit.bundle.model import Bundle
from jobsubmit.check.arguments import Word, check_arguments
from jobsubmit.check.boot_file import broken_modules, check_boot_file
from jobsubmit.check.checkpoints.new_folders import check_scattered
from jobsubmit.check.checkpoints.pickled import check_pickled
from jobsubmit.check.checkpoints.races import check_races
from jobsubmit.check.checkpoints.recovery import check_recovery
from jobsubmit.check.checkpoints.saving import check_saving
from jobsubmit.check.code import Code, look_at
from jobsubmit.check.collectives.arguments import check_collective_arguments
from jobsubmit.check.collectives.group import check_group
from jobsubmit.check.collectives.leaving import check_leaving
from jobsubmit.check.collectives.own_decisions import check_own_decisions
from jobsubmit.check.collectives.point_to_point import check_point_to_point
from jobsubmit.check.collectives.rank_zero import check_rank_zero
from jobsubmit.check.collectives.reduced import check_reduced
from jobsubmit.check.collectives.some_ranks import check_some_ranks
from jobsubmit.check.collectives.wrapped_on_zero import check_wrapped_on_zero
from jobsubmit.check.conditions import check_conditions
from jobsubmit.check.files import check_files
from jobsubmit.check.imports import check_imports
from jobsubmit.check.installed.libraries import FindPackage, Libraries, version_in
from jobsubmit.check.interactive import check_interactive
from jobsubmit.check.libraries.accelerate import check_accelerate
from jobsubmit.check.libraries.deepspeed import check_deepspeed
from jobsubmit.check.libraries.lightning import check_lightning
from jobsubmit.check.libraries.timm_models import check_registered_models
from jobsubmit.check.libraries.transformers_trainer import check_trainer_model
from jobsubmit.check.libraries.versions import check_versions
from jobsubmit.check.loading.epochs import check_epochs
from jobsubmit.check.loading.evaluation import check_evaluation
from jobsubmit.check.loading.parts import check_parts
from jobsubmit.check.loading.pipes import check_pipes
from jobsubmit.check.loading.sampler import check_sampler
from jobsubmit.check.loading.schedules import check_schedules
from jobsubmit.check.loading.splits import check_splits
from jobsubmit.check.models.averages import check_averages
from jobsubmit.check.models.gradients import check_gradients
from jobsubmit.check.models.no_sync import check_no_sync
from jobsubmit.check.models.scaling import check_scaling
from jobsubmit.check.models.sharding import check_sharding
from jobsubmit.check.models.state import check_wrapped_state
from jobsubmit.check.models.unsynchronized import check_unsynchronized
from jobsubmit.check.models.unused_parameters import check_unused_parameters
from jobsubmit.check.models.wrapping import check_wrapping
from jobsubmit.check.overrides import check_overrides
from jobsubmit.check.packages import FindMissing, Installed, check_packages, installed_by_job
from jobsubmit.check.processes.compare import OF_PROCESSES
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.operations import UNKNOWN, Several, several
from jobsubmit.check.program.reading import INSTALLED_FROM, load_program
from jobsubmit.check.settings_files import check_settings_files
from jobsubmit.check.shell.started import Started, file_of, start_on
from jobsubmit.check.shell.texts import is_open
from jobsubmit.check.start.alone import check_alone
from jobsubmit.check.start.detectron2 import check_detectron2
from jobsubmit.check.start.devices import check_devices
from jobsubmit.check.start.environment import (
    JOB_OF_SLURM,
    LAUNCHER_VARIABLES,
    OF_MPI,
    OF_SCHEDULERS,
    OF_TASK,
    check_environment,
)
from jobsubmit.check.start.hardcoded import check_fixed
from jobsubmit.check.start.launched_again import check_launched_again
from jobsubmit.check.start.launcher import check_launcher, check_module, check_script, settings_of
from jobsubmit.check.start.no_gpus import check_gpu_request
from jobsubmit.check.start.ranks import check_ranks
from jobsubmit.check.start.shell import check_replaced, check_shell
from jobsubmit.check.start.world import check_world
from jobsubmit.check.unbound import check_unbound
from jobsubmit.check.undeclared import check_undeclared
from jobsubmit.check.word_pairs import check_word_pairs
from jobsubmit.check.words_of_files import with_words_of_files
from jobsubmit.common.finding import Finding
from jobsubmit.plan import launchers
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.launchers import Launch
from jobsubmit.plan.processes import build_boot_words, expand
from jobsubmit.spec.modes import Start

_SOME = 8
# What needs nothing but the code.
_OF_CODE = (
    *(
        check_interactive,
        check_environment,
        check_ranks,
        check_group,
        check_world,
        check_devices,
        check_fixed,
        check_detectron2,
        check_launched_again,
        check_gradients,
        check_averages,
    ),
    *(
        check_sampler,
        check_parts,
        check_pipes,
        check_splits,
        check_epochs,
        check_schedules,
        check_rank_zero,
        check_wrapped_on_zero,
        check_some_ranks,
        check_leaving,
        check_own_decisions,
        check_point_to_point,
        check_collective_arguments,
        check_wrapping,
    ),
    *(check_unsynchronized, check_no_sync, check_sharding, check_wrapped_state, check_trainer_model, check_evaluation),
    *(
        check_unused_parameters,
        check_scattered,
        check_saving,
        check_races,
        check_reduced,
        check_conditions,
        check_scaling,
    ),
)
# Findings of which most of what processes do wrong would be a consequence.
_OF_STARTS = ("local-rank", "rank-env", "same-ranks", "nested-spawn", "no-processes", "fixed-world-size", "hidden-gpus")
_COMMENT = re.compile(r"\s*#")
_COMMENT_LINE = re.compile(r"(?m)^\s*#.*$")
_SET_BY_TORCH = (*LAUNCHER_VARIABLES, contract.MASTER_ADDR, contract.MASTER_PORT)
_OF_BASH = ("PWD", "OLDPWD", "SHLVL", "_")  # it exports them even if it was not given them
_NAME = re.compile(r"[A-Za-z_]\w*")
_PROGRAM = re.compile(r"(?<![\w./-])[\w./-]+\.py\b")
# `pip install -e .` or `python setup.py develop` in the setup, or a line `-e .` of the requirements.
_INSTALLS_CODE = re.compile(
    r"\bsetup\.py\s[^\n;&|]*\b(?:develop|install)\b"
    r"""|(?:\bpip3?\s+install\b[^\n;&|]*\s|^(?:-e\s+)?)["']?\./?(?:\[[\w, -]*\])?["']?(?=[\s;&|]|$)""",
    re.MULTILINE,
)


def check_code(
    job: LaunchPlan, bundle: Bundle, find_missing: FindMissing | None = None, find_package: FindPackage | None = None
) -> Iterator[Finding]:
    """Yield what is wrong with the code of a job, and what cannot be checked; of a start command, check what it starts.

    `find_missing` returns the modules that the nodes' Python lacks, and `find_package` the folder of a package that it
    has, if that is known.
    """

    @cache
    def read(path: str) -> str:
        source = next((file.source for file in bundle.files if file.path == posixpath.normpath(path)), None)
        return Path(source).read_text(errors="replace") if source else ""

    paths = {file.path for file in bundle.files}
    started = last = Started()
    try:
        started = last = start_on(0, job, read)
        if job.nodes > 1:
            last = start_on(job.nodes - 1, job, read)
    except (Exception, RecursionError) as error:
        yield Finding("unknown", "command", "command", f"it cannot be followed ({type(error).__name__})")
    launch = started.launch
    yield from check_script(job, paths)
    yield from check_module(job, launch, paths, find_missing)
    yield from check_shell(job, started, read)
    yield from check_launcher(job, (started, last), read)
    plan, own, is_module = _as_seen(job, started, read)
    found = list(check_boot_file(plan, bundle))
    yield from found
    if plan.mode == "launch" and job.command is None:
        yield _deprecated(plan)
    if plan.boot_file is None and job.command is not None:
        yield from _not_followed(job, launch, read, paths)
    if plan.boot_file is None or any(finding.level == "error" for finding in found):
        return
    roots = _python_path(job, started) + ((f"{launch.folder}/",) if launch.folder and is_module else ())
    if _INSTALLS_CODE.search(f"{plan.setup or ''}\n{read(plan.requirements or '')}"):
        roots += INSTALLED_FROM
    given = build_boot_words(plan)
    fields = {value.text: value.field for value in given if value.origin == "spec"}
    words = tuple(Word(value.text, fields.get(value.text, "")) for value in given)
    if job.command is not None:
        words = tuple(word for word in words if not word.field)
        words += tuple(Word(text, fields.get(text, "command")) for text in own)
    texts = [word.text for word in words]
    program = load_program(
        bundle, plan.boot_file, roots, is_module=is_module, words=texts, started_in=launch.folder or ""
    )
    if program is None:
        return
    words = with_words_of_files(program, words) + _declared_words(job, read(plan.boot_file))

    is_unclear = any(map(is_open, own))

    @cache
    def code() -> Code:
        libraries = Libraries(cache(partial(_installed, find_package, installed_by_job(bundle, job))))
        facts = replace(_facts(plan, words, started, last), libraries=libraries)
        return look_at(program, facts, words)

    is_this_python = plan.backend.is_this_machine
    if not_followed := _safely("code", partial(_nothing, code), plan.boot_file):
        yield from broken_modules(program, None, is_this_python=is_this_python)
        yield from not_followed
        return
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("boot-file", lambda: broken_modules(program, code().reached, is_this_python=is_this_python)),
        ("imports", lambda: check_imports(code(), bundle, job.setup or "")),
        ("packages", lambda: check_packages(code(), bundle, job, find_missing)),
        ("versions", lambda: check_versions(code())),
        ("timm models", lambda: check_registered_models(code(), installed_by_job(bundle, job).versions.get("timm"))),
        ("files", lambda: () if launch.folder and "chdir" in code().names else check_files(code(), bundle, words)),
        (
            "arguments",
            lambda: () if is_unclear else check_arguments(code().line, words, str(plan.boot_file), plan.mode),
        ),
        ("settings", lambda: check_settings_files(code())),
        ("undeclared", lambda: check_undeclared(code())),
        ("arguments", lambda: check_word_pairs(code())),
        ("unbound", lambda: check_unbound(code())),
        ("replaced", lambda: check_replaced(code(), job)),
        ("overrides", lambda: check_overrides(code(), words)),
        ("alone", lambda: () if job.command is None else check_alone(code(), started, last)),
        ("gpu-request", lambda: check_gpu_request(code(), job.backend.missing_gpu_request())),
        ("lightning", lambda: check_lightning(code(), read, is_by_fabric=launch.launcher == "fabric")),
        ("deepspeed", lambda: check_deepspeed(code(), read)),
        ("accelerate", lambda: check_accelerate(code(), {**settings_of(launch, read), **launch.options})),
        ("pickled", lambda: check_pickled(code(), job.torch_version, read(job.requirements or ""))),
        ("recovery", lambda: check_recovery(code(), job)),
    ]
    checks += [(check.__name__.removeprefix("check_"), partial(_judge, check, code)) for check in _OF_CODE]
    yield from _of_checks(checks, code, plan.boot_file)


def _installed(find: FindPackage | None, installed: Installed, top: str) -> Path | None:
    """Return the folder of a package on the nodes; None if it is not known, or if the job may install another one."""
    folder = None if find is None else find(top)
    return None if folder is None or installed.may_replace(top, version_in(folder, top)) else folder


def _of_checks(
    checks: Sequence[tuple[str, Callable[[], Iterable[Finding]]]], code: Callable[[], Code], boot_file: str
) -> Iterator[Finding]:
    """Yield what the checks find, and then a comparison of processes: its errors take the place of warnings."""
    found = [finding for name, found_by in checks for finding in _safely(name, found_by, boot_file)]
    deciding = [finding for finding in found if _decides(finding)]
    compared: list[Finding] = []
    if all(finding.check == "fixed-world-size" and finding.level == "warning" for finding in deciding):
        compared = list(_compared(code, {finding.check for finding in found}, boot_file))
    if deciding:  # the job may have another number of processes
        compared = [finding for finding in compared if finding.check == "same-ranks"]
    sure = {finding.check for finding in compared if finding.level == "error"}
    yield from (finding for finding in found if finding.check not in sure)
    yield from compared


def _decides(finding: Finding) -> bool:
    """Return whether a finding may change what the processes do; a package that is missing has to be installed."""
    return finding.check in _OF_STARTS or (finding.level == "error" and finding.check != "packages")


def _compared(code: Callable[[], Code], known: Container[str], boot_file: str) -> Iterator[Finding]:
    """Yield what a comparison of processes finds: errors, and warnings of kinds that were not found yet."""
    for check in OF_PROCESSES:
        found = _safely(check.__name__.removeprefix("check_"), partial(_judge, check, code), boot_file)
        yield from (finding for finding in found if finding.level == "error" or finding.check not in known)
        if any(finding.check in _OF_STARTS for finding in found):
            return


def _nothing(code: Callable[[], Code]) -> Iterable[Finding]:
    """Find nothing; but analyze the code, which may fail."""
    code()
    return ()


def _judge(check: Callable[[Code], Iterable[Finding]], code: Callable[[], Code]) -> Iterable[Finding]:
    return check(code())


def _as_seen(job: LaunchPlan, started: Started, read: Callable[[str], str]) -> tuple[LaunchPlan, tuple[str, ...], bool]:
    """Return a job as if its mode started what its command starts, and the arguments that the command gives to that.

    The mode that is given counts, else that of the launcher which the command names. The last value is whether the
    program is started as a module.
    """
    launch = started.launch
    file = file_of(launch, read, _python_path(job, started))
    if not file:
        return job, (), False
    is_launcher = launch.launcher != "python"
    mode: Start = job.mode
    passes_rank = launch.launcher == "deepspeed" and "no_local_rank" not in launch.options
    if mode == "command" and is_launcher:
        mode = "launch" if launch.launcher == "launch" or passes_rank else "torchrun"
    seen = replace(
        job,
        mode=mode,
        command=None,
        boot_file=file,
        nproc_per_node=launch.nproc if is_launcher and launch.nproc else job.nproc_per_node,
        torch_version="1.13" if passes_rank else job.torch_version,  # it passes --local_rank as torch did then
        local_rank="env" if mode != "launch" or launch.options.get("use_env") else "argument",
    )
    return seen, launch.program[1:], launch.is_module


def _not_followed(
    job: LaunchPlan, launch: Launch, read: Callable[[str], str], paths: Container[str]
) -> Iterator[Finding]:
    """Yield that the code is not checked, where it is unclear how a command starts the program that it names."""
    if launch.is_module and launch.program and not launch.program[0].startswith("-"):
        said = f"the module {launch.program[0]} is not in the code directory, so its code is not checked"
        yield Finding("unknown", "command", "command", said)
        return
    command = job.command or ()
    text = " ".join((*command, *(_COMMENT_LINE.sub("", read(word)) for word in command if word.endswith(".sh"))))
    named = next((word for word in _PROGRAM.findall(text) if posixpath.normpath(word) in paths), None)
    if named is not None:
        said = f"it is not clear how this starts {named}, so its code is not checked"
        hint = "start it with a line such as `torchrun train.py`, with the path of the file"
        yield Finding("unknown", "command", "command", said, hint)


def _python_path(job: LaunchPlan, started: Started) -> tuple[str, ...]:
    """Return the folders of the code that the job, or the shell script that it starts, has Python look into."""
    given = (dict(job.env).get("PYTHONPATH"), started.environment.get("PYTHONPATH"))
    places = [place for text in given if text is not None for place in text.split(":")]
    relative = [re.sub(r"^(?:\$PWD|\$\{PWD\}|\$\(pwd\))(?=/|$)", ".", place) for place in places]
    folders = [posixpath.normpath(place or ".") for place in relative if "$" not in place]
    return tuple("" if folder == "." else f"{folder.strip('./')}/" for folder in folders)


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
        "add `--mode torchrun`, or set mode: torchrun in the job file"
        + (", and read LOCAL_RANK from the environment" if plan.local_rank == "argument" else ""),
    )


def _options_of_node(started: Started, last: Started, nodes: int) -> dict[str, int]:
    """Return the options that get the number of the node or a multiple of it: `--rank $NODE_RANK`, `--first=…`."""
    words, others = ("", *started.launch.program), ("", *last.launch.program)
    pairs = zip(pairwise(words), others[1:], strict=True) if len(words) == len(others) else ()
    given = [(before, word, other) for (before, word), other in pairs if word != other]
    names = [word.partition("=")[0] if word.startswith("-") else before for before, word, _ in given]
    values = [other.partition("=")[2] if other.startswith("-") else other for _, _, other in given]
    return {
        name: int(value) // (nodes - 1) if value.isdecimal() and nodes > 1 else 1
        for name, value in zip(names, values, strict=True)
    }


def _facts(plan: LaunchPlan, words: tuple[Word, ...], started: Started, last: Started) -> Facts:
    expansion = expand(plan, only=0)
    node = expansion.nodes[0]
    environment: dict[str, Any] = {
        name: UNKNOWN if value.is_open else value.text for name, value in expansion.environment.items()
    }
    environment |= dict.fromkeys((*node.environment, *node.processes[0].environment), UNKNOWN)
    environment |= {name: _as_text(ranks) for name, ranks in _ranks(plan).items()}
    if not plan.has_launcher:
        environment |= dict.fromkeys(LAUNCHER_VARIABLES)
    is_slurm = plan.backend.kind == "slurm"
    unset = [name for name in OF_SCHEDULERS if not is_slurm or "SLURM" not in name]
    if plan.mode == "spawn" and plan.backend.starts_boot_file:
        environment |= dict.fromkeys(contract.SET_BY_SCRIPT)
    text = plan.setup or ""
    environment |= {name: UNKNOWN if name in text else None for name in unset if name not in environment}
    environment |= dict.fromkeys(JOB_OF_SLURM, UNKNOWN if is_slurm else None)
    environment |= {name: UNKNOWN for name in OF_SCHEDULERS if is_slurm and name not in unset}
    environment |= _of_tasks(plan, started.launch)
    environment |= _of_shell(plan, started, last)
    argv = tuple(word.text for word in words)
    gpus = plan.backend.gpus_of_node(plan.nodes, plan.nproc_per_node)
    rank = _ranks(plan).get(contract.RANK, UNKNOWN) if plan.has_launcher else UNKNOWN
    return Facts(
        *(plan.mode, plan.nodes, plan.nproc_per_node, gpus, environment, argv, rank),
        options_of_node=_options_of_node(started, last, plan.nodes),
        why_no_gpus=plan.backend.why_no_gpus(plan.nodes, plan.nproc_per_node),
        torch_version=plan.torch_version,
        copies=started.copies,
        shared_folders=plan.backend.shared_folders(),
        may_be_set=_may_be_set(plan, started, expansion.environment) if plan.backend.is_this_machine else None,
    )


def _may_be_set(plan: LaunchPlan, started: Started, environment: Iterable[str]) -> frozenset[str]:
    """Return the variables of this shell and of the job, and all that its commands name: these may set them."""
    by_job = {*dict(plan.env), *dict(plan.secrets), *tracking_variables(plan.tracking, "", 0)}
    mounted = (text for mount in plan.mounts for text in (mount.variable, mount.name))
    named = (name for text in plan.command or () for name in _NAME.findall(text))
    return frozenset((*os.environ, *_OF_BASH, *environment, *started.environment, *by_job, *map(str, mounted), *named))


def _of_shell(plan: LaunchPlan, started: Started, last: Started) -> dict[str, Any]:
    """Return the variables that shells give to the program, but for those that a launcher of torch sets itself."""
    by_torch = plan.has_launcher and started.launch.launcher not in launchers.OF_SCHEDULERS
    given = {name: (value, last.environment.get(name)) for name, value in started.environment.items()}
    given = {name: values for name, values in given.items() if not (by_torch and name in _SET_BY_TORCH)}
    ranks = {f"${name}": _as_text(numbers) for name, numbers in _ranks(plan).items()}
    return {
        name: ranks.get(one, UNKNOWN)
        if is_open(one) or is_open(other or "")
        else one
        if one == other
        else several([one, other])
        for name, (one, other) in given.items()
    }


def _of_tasks(plan: LaunchPlan, launch: Launch) -> dict[str, Any]:
    """Return the variables of processes that srun or mpirun starts: a launcher's are not set."""
    if launch.launcher not in launchers.OF_SCHEDULERS:
        return {}
    ranks = _ranks(plan)
    numbers = (ranks[contract.RANK], ranks[contract.LOCAL_RANK], ranks.get(contract.WORLD_SIZE, UNKNOWN))
    own = dict(zip(OF_TASK, map(_as_text, numbers), strict=True)) if launch.launcher == "srun" else {}
    names = (plan.setup or "", *dict(plan.env))
    unset = {name: UNKNOWN if any(name in text for text in names) else None for name in LAUNCHER_VARIABLES}
    return {**unset, **dict.fromkeys(OF_MPI, UNKNOWN), **own, **launch.env}


def _ranks(plan: LaunchPlan) -> dict[str, Any]:
    """Return the numbers that differ from process to process, or from node to node."""
    each = plan.nproc_per_node or _SOME  # as many as a node has accelerators
    nodes = dict.fromkeys((contract.NODE_INDEX, contract.NODE_RANK), _numbers(plan.nodes))
    if not plan.has_launcher:
        return nodes
    ranks = dict.fromkeys((contract.RANK, contract.ROLE_RANK), _numbers(plan.nodes * each))
    sizes = {contract.WORLD_SIZE: str(plan.nodes * each), contract.LOCAL_WORLD_SIZE: str(each)}
    known = sizes if plan.nproc_per_node else {}
    return {**nodes, **ranks, **known, contract.LOCAL_RANK: _numbers(each), contract.GROUP_RANK: _numbers(plan.nodes)}


def _numbers(count: int) -> Any:
    return several(sorted({0, count // 2, count - 1}))


def _as_text(numbers: Any) -> Any:
    if isinstance(numbers, Several):
        return Several(tuple(map(str, numbers.values)))
    return numbers if numbers is UNKNOWN else str(numbers)
