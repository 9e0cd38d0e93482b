"""What a project's own code says about how it wants to be started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobsubmit.agent.node_contract import LOCAL_RANK
from jobsubmit.bundle.model import Bundle
from jobsubmit.bundle.scanner import scan
from jobsubmit.check.code import SPAWN
from jobsubmit.check.program.modules import Program, load_program
from jobsubmit.common.file_reading import read_whole
from jobsubmit.errors import BundleError
from jobsubmit.scaffold.draft import JobDraft

_TRAINS = re.compile(rb"torch\.distributed|torch\.multiprocessing|DistributedDataParallel|init_process_group")
_FIRST_NAMES = ("train", "main", "run", "pretrain", "finetune")
_MOST_CANDIDATES = 50


def draft_from_code(root: Path) -> JobDraft | None:
    """Return how the code in a directory may be started; None where nothing in it trains on several processes."""
    try:
        bundle = scan(root)
    except BundleError:
        return None
    programs = sorted(_programs(bundle), key=lambda program: _order(program.boot.path))
    if not programs:
        return None
    program = programs[0]
    fields, reason = _mode(program)
    others = tuple(other.boot.path for other in programs[1:])
    return JobDraft({**fields, "boot_file": program.boot.path}, reason=reason, others=others)


def _programs(bundle: Bundle) -> Iterator[Program]:
    """Yield the scripts that can be started and that train on several processes."""
    scripts = [file for file in bundle.files if file.path.endswith(".py")]
    found = 0
    for file in sorted(scripts, key=lambda file: _order(file.path)):
        data = read_whole(Path(file.source))
        is_script = b"__main__" in data or _order(file.path)[1] < len(_FIRST_NAMES)
        if not is_script or found >= _MOST_CANDIDATES:
            continue
        program = load_program(bundle, file.path)
        if program and any(_TRAINS.search(_source(bundle, module.path)) for module in program.modules.values()):
            found += 1
            yield program


def _source(bundle: Bundle, path: str) -> bytes:
    return next(read_whole(Path(file.source)) for file in bundle.files if file.path == path)


def _order(path: str) -> tuple[int, int, str]:
    stem = path.rpartition("/")[2].removesuffix(".py")
    first = next((number for number, name in enumerate(_FIRST_NAMES) if stem.startswith(name)), len(_FIRST_NAMES))
    return path.count("/"), first, path


def _mode(program: Program) -> tuple[dict[str, Any], str]:
    texts = {node.value for _, node in program.nodes if hasattr(node, "value") and isinstance(node.value, str)}
    if any(name == SPAWN for _, _, name in program.calls):
        return {"mode": "spawn"}, "it calls mp.spawn"
    if LOCAL_RANK not in texts and texts & {"--local_rank", "--local-rank"}:
        return {"mode": "launch", "local_rank": "argument"}, "it declares --local_rank and does not read LOCAL_RANK"
    return {"mode": "torchrun"}, "it takes its ranks from the environment"
