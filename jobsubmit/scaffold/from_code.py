"""Drafts of jobs from a project's code: how it can be started."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobsubmit.agent.node_contract import LOCAL_RANK, MASTER_ADDR, RANK
from jobsubmit.bundle.model import Bundle, BundleFile
from jobsubmit.bundle.scanner import scan
from jobsubmit.check.code import SPAWN, is_ddp
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import spelled
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reading import INSTALLED_FROM, load_program
from jobsubmit.common.file_reading import read_whole
from jobsubmit.errors import BundleError
from jobsubmit.scaffold.draft import JobDraft

# What trains on several processes: packages, names of functions and classes, and how people call it.
_TRAINS: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        ("torch.distributed", "torch.multiprocessing"),
        ("init_process_group", "DistributedDataParallel"),
        "torch.distributed",
    ),
    ((), ("init_device_mesh", "fully_shard", "FullyShardedDataParallel"), "torch's FSDP or device meshes"),
    (("accelerate",), (), "Accelerate"),
    (("lightning", "pytorch_lightning"), (), "Lightning"),
    (("transformers.Trainer", "transformers.Seq2SeqTrainer"), (), "Hugging Face's Trainer"),
    (("trl",), (), "TRL"),
    (("deepspeed",), (), "DeepSpeed"),
    (("horovod",), (), "Horovod"),
)
# How programs that start their own processes call a node's place, and what a shell has for it there.
_NODE_OPTIONS = (
    (("--dist-url", "--dist_url", "--init-url", "--init_url", "--init-method"), '"tcp://$MASTER_ADDR:$MASTER_PORT"'),
    (("--num-machines", "--num_machines", "--nnodes", "--nodes", "--world-size", "--world_size"), '"$NNODES"'),
    (("--machine-rank", "--machine_rank", "--node-rank", "--node_rank", "--nr", "--rank"), '"$NODE_RANK"'),
)
_FIRST_NAMES = ("train", "main", "run", "pretrain", "finetune")
_SUBMITTERS = ("submitit", "simple_slurm", "dask_jobqueue")
_RARE = ("apex", "horovod")  # a script that does without these comes first
_NO_PROGRAMS = ("setup.py", "conftest.py")
_MOST_CANDIDATES = 50
_MOST_OTHERS = 2
_NPROCS = 2  # the position of this argument of mp.spawn


def drafts_from_code(root: Path) -> list[JobDraft]:
    """Return how the code in a directory may be started, the best first; nothing if no file trains.

    A file that spawns processes itself may not accept the arguments that the platform adds. So next comes its command
    with its own names for them, or else another file that a launcher starts. Its plain command is the last. A file that
    a launcher starts may not accept what that adds, either: other files come next.
    """
    bundle = _scanned(root)
    programs = list(_programs(bundle)) if bundle else []
    if not bundle or not programs:
        return []
    starts = [(program, *_mode(program)) for program in programs]
    ways = [(program, {**fields, "boot_file": program.boot.path}, reason) for program, fields, reason in starts]
    program, first, _ = ways[0]
    launched = [way for way in ways[1:] if way[1]["mode"] != "spawn" and not _only_imports(way[0])]
    if first["mode"] == "spawn":
        by_itself = by_its_own_names(program)
        ways = [ways[0], *([by_itself] if by_itself else launched), _by_plain_command(program)]
    else:
        spawning = [_by_plain_command(one) for one, fields, _ in ways[1:] if fields["mode"] == "spawn"]
        ways = [ways[0], *launched[:_MOST_OTHERS], *spawning[:1]]
    paths = [program.boot.path for program in programs]
    return [
        JobDraft(fields, reason=reason, others=tuple(path for path in paths if path != program.boot.path))
        for program, fields, reason in ways
    ]


def find_scripts(root: Path) -> list[str]:
    """Return the Python files of a directory that can be started, the most likely first, whether they train or not."""
    bundle = _scanned(root)
    if bundle is None:
        return []
    found = [file.path for file in _scripts(bundle)]
    return found or sorted(file.path for file in bundle.files if _may_be_script(file.path) and "/" not in file.path)


def takes_ranks_of_torch(program: Program) -> bool:
    """Return whether a program reads its rank from the variables of torch's launchers, or leaves that to a library."""
    texts = texts_of(program)
    libraries = ("accelerate", "lightning", "pytorch_lightning", "deepspeed", "transformers")
    return bool({RANK, LOCAL_RANK} & texts) or program.imports(*libraries)


def _scanned(root: Path) -> Bundle | None:
    try:
        return scan(root)
    except BundleError:
        return None


def _scripts(bundle: Bundle) -> list[BundleFile]:
    """Return the files that may be started: those that say so before those that are named or written like it."""
    found = []
    for file in bundle.files:
        if _may_be_script(file.path):
            is_script = b"__main__" in read_whole(Path(file.source))
            if is_script or _acts(file, is_named_so=_order(file.path)[1] < len(_FIRST_NAMES)):
                found.append((not is_script, *_order(file.path), file))
    return [entry[-1] for entry in sorted(found, key=lambda entry: entry[:-1])]


def _may_be_script(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".py") and name not in _NO_PROGRAMS and not name.startswith("test_")


def _acts(file: BundleFile, *, is_named_so: bool) -> bool:
    """Return whether a file does its work as it is read.

    It calls its own function, or it loops and calls something. If it has a name such as train.py, any call is enough.
    """
    try:
        body = ast.parse(read_whole(Path(file.source))).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    own = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    called = [node.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    calls_own = any(spelled(call.func) in own for call in called)
    loops = any(isinstance(node, (ast.For, ast.While, ast.With)) for node in body)
    return calls_own or (bool(called) and (loops or is_named_so)) or (loops and is_named_so)


def _programs(bundle: Bundle) -> Iterator[Program]:
    """Yield the scripts that train on several processes; one that another imports is a part of it.

    Those that only exchange something come after those that train. The packages of the code may be installed.
    """
    programs = []
    for file in _scripts(bundle)[:_MOST_CANDIDATES]:
        program = load_program(bundle, file.path, INSTALLED_FROM)
        if program and _trained_by(program) and not _submits(program):
            programs.append(program)
    parts = {module.path for program in programs for module in program.modules.values() if module is not program.boot}
    yield from sorted(
        programs,
        key=lambda program: (
            program.boot.path in parts or _is_part(program),
            _only_imports(program),
            _only_exchanges(program),
            program.imports(*_RARE),
        ),
    )


def _submits(program: Program) -> bool:
    """Return whether a script only hands another one over to a scheduler."""
    return any(name.partition(".")[0] in _SUBMITTERS for name in program.boot.aliases.values())


def _is_part(program: Program) -> bool:
    """Return whether a script cannot be started by its path: it imports from the package that it is in."""
    return any(node.level for node in program.boot.of(ast.ImportFrom))


def _only_exchanges(program: Program) -> bool:
    """Return whether a program uses torch itself, and computes no gradients."""
    return _is_by_itself(program) and not any(
        getattr(call.func, "attr", "") == "backward" for _, call, _ in program.calls
    )


def _only_imports(program: Program) -> bool:
    """Return whether a program uses torch itself, and calls nothing that has to do with several processes."""
    return _is_by_itself(program) and not any(
        name.startswith(("torch.distributed.", "torch.multiprocessing.")) or is_ddp(name)
        for _, _, name in program.calls
    )


def _is_by_itself(program: Program) -> bool:
    return _trained_by(program) in (_TRAINS[0][-1], _TRAINS[1][-1])


def _trained_by(program: Program) -> str:
    """Return what a program trains with, or nothing."""
    dotted = {spelled(node) for _, node in program.of(ast.Attribute)}
    names = {name.rpartition(".")[2] for name in dotted} | {node.id for _, node in program.of(ast.Name)}
    return next(
        (
            label
            for packages, own, label in _TRAINS
            if program.imports(*packages) or dotted & {*packages} or names & {*own}
        ),
        "",
    )


def _order(path: str) -> tuple[int, int, str]:
    stem = path.rpartition("/")[2].removesuffix(".py")
    first = next((number for number, name in enumerate(_FIRST_NAMES) if stem.startswith(name)), len(_FIRST_NAMES))
    return path.count("/"), first, path


def texts_of(program: Program) -> set[str]:
    """Return every text that is written in a program."""
    return {node.value for _, node in program.of(ast.Constant) if isinstance(node.value, str)}


def by_its_own_names(program: Program) -> tuple[Program, dict[str, Any], str] | None:
    """Return the command that gives each node its place by the options that a program has for it."""
    texts = texts_of(program)
    found = [(next((name for name in names if name in texts), ""), value) for names, value in _NODE_OPTIONS]
    if not found[0][0] and {"env://", MASTER_ADDR} & texts:
        found.pop(0)
    if not all(name for name, _ in found):
        return None
    found += [(name, '"$NPROC_PER_NODE"') for name in _options_of_count(program) if name in texts]
    options = " ".join(f"{name} {value}" for name, value in found)
    command = ["bash", "-c", f'exec python "$0" {options} "$@"', program.boot.path]
    reason = f"it calls mp.spawn, and gets its place among the nodes from {', '.join(name for name, _ in found)}"
    return program, {"command": command}, reason


def _options_of_count(program: Program) -> Iterator[str]:
    """Yield the option that says how many processes mp.spawn starts: of `nprocs=args.gpus`, `--gpus`."""
    for _, call, name in program.calls:
        count = argument(call, "nprocs", _NPROCS) if name == SPAWN else None
        if isinstance(count, ast.Attribute):
            yield f"--{count.attr}"
            return


def _by_plain_command(program: Program) -> tuple[Program, dict[str, Any], str]:
    reason = "it calls mp.spawn, but accepts none of the arguments that nodes need to find each other"
    return program, {"command": f"python {program.boot.path}"}, reason


def _mode(program: Program) -> tuple[dict[str, Any], str]:
    texts = texts_of(program)
    if any(name == SPAWN for _, _, name in program.calls):
        return {"mode": "spawn"}, "it calls mp.spawn"
    if takes_ranks_of_torch(program):
        return {"mode": "torchrun"}, f"it trains with {_trained_by(program)}"
    if texts & {"--local_rank", "--local-rank"}:
        return {"mode": "launch", "local_rank": "argument"}, "it declares --local_rank and does not read LOCAL_RANK"
    return {"mode": "torchrun"}, f"it trains with {_trained_by(program)}"
