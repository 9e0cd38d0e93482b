"""Checkpoints that Lightning writes to a folder of its own, and looks for in that of the next start."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice, pairwise

from jobsubmit.check.checkpoints.names import ASK_FOR_FILES
from jobsubmit.check.code import Code
from jobsubmit.check.origins import words_of
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.configuration import read_text
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_LIBRARIES = ("lightning", "pytorch_lightning")
_FIXED = re.compile(r"^[\s-]*[\"']?(?:dirpath|version|id)[\"']?\s*:(?!\s*(?:null|~)?\s*$)", re.MULTILINE)
_NO_LOGGER = re.compile(r"logger[=: ]+[\"']?false", re.IGNORECASE)
_LAST = re.compile(r"\blast\.ckpt\b")
_OF_RUN = re.compile(r"log_dir|callback|version|glob|logger")
_LISTS = frozenset(["listdir", "glob", "rglob", "iglob", "walk", "scandir", "iterdir"])
_MOST_FILES = 200


def sought_in_new_version(code: Code) -> Iterator[Finding]:
    """Yield a warning where the last checkpoint is looked for in the folder of a run that has only begun.

    Source: `ModelCheckpoint.__resolve_ckpt_dir` of Lightning 2.6 (measured): without a dirpath, checkpoints go to the
    folder of the logger's version, or of the run, and both are new at each start. `ckpt_path="last"` looks only there.
    """
    where = _asks_for_last(code)
    if where and code.program.imports(*_LIBRARIES) and not code.program.unread and not _is_fixed(code):
        yield Finding(
            "warning",
            "no-checkpoint",
            where,
            "Lightning looks for the last checkpoint in the folder of this run, which is new at each start: no "
            "ModelCheckpoint has a dirpath",
            "give ModelCheckpoint a folder that stays the same: dirpath=os.environ['JOBSUBMIT_CHECKPOINT_DIR']",
        )


def last_written_to_new_version(code: Code) -> Iterator[Finding]:
    """Yield a warning where the program looks for last.ckpt in one folder, and Lightning writes it to that of the run.

    Source: as above.
    """
    if not code.program.imports(*_LIBRARIES) or code.program.unread or not _looks_for_last(code):
        return
    saves_itself = "save_checkpoint" in code.program.calls_of_attribute or "dirpath" in code.program.attribute_stores
    if saves_itself or _names_run(code):
        return
    checkpoints = [(m, call) for m, call, name in code.reached.calls if name.endswith(".ModelCheckpoint")]
    given = [(m, call, argument(call, "save_last")) for m, call in checkpoints]
    writing = [(m, call) for m, call, value in given if value is not None and code.values.of(value, m) is not False]
    names = [argument(call, "filename", 1) for _, call in checkpoints]
    is_written_elsewhere = any(name is not None and "last" in unparsed(name) for name in names)
    is_new = not is_written_elsewhere and all(
        argument(call, "dirpath", 0) is None and not hides_arguments(call) for _, call in writing
    )
    if writing and is_new and not any(_is_same_run(code, call, name, m) for m, call, name in code.reached.calls):
        module, call = writing[0]
        yield Finding(
            "warning",
            "no-checkpoint",
            module.where(call),
            "this ModelCheckpoint has no dirpath: Lightning writes last.ckpt to the folder of this run, which is new "
            "at each start, and the program looks for it elsewhere",
            "pass dirpath with the folder in which the program looks",
        )


def _looks_for_last(code: Code) -> bool:
    """Return whether the program asks whether a file last.ckpt exists, in a folder that it names itself."""
    for module, call, name in code.reached.calls:
        text = words_of(code, call.args[0], module) if name in ASK_FOR_FILES and call.args else ""
        if _LAST.search(text) and not _OF_RUN.search(text):
            return not any(_lists(node) for node in walk(module.scope_of(call)))
    return False


def _lists(node: ast.AST) -> bool:
    """Return whether a node calls something that lists what is in a folder."""
    return isinstance(node, ast.Call) and spelled(node.func).rpartition(".")[2] in _LISTS


def _names_run(code: Code) -> bool:
    """Return whether a run of Weights & Biases may have the same name, and folder, at each start."""
    return "WANDB_RUN_ID" in code.facts.environment or "WANDB_RUN_ID" in code.names


def _is_same_run(code: Code, call: ast.Call, name: str, module: Module) -> bool:
    """Return whether a call makes a logger for a run of a fixed name, or a Trainer without a logger."""
    is_logger = name.rpartition(".")[2].endswith("Logger")
    is_fixed = any(argument(call, one) is not None for one in ("version", "id")) or hides_arguments(call)
    logger = argument(call, "logger")
    return (is_logger and is_fixed) or (logger is not None and not code.values.of(logger, module))


def _asks_for_last(code: Code) -> str:
    """Return where the last checkpoint is asked for: in the code, or in the arguments of LightningCLI."""
    for module, call, _ in code.reached.calls:
        given = argument(call, "ckpt_path") if getattr(call.func, "attr", "") == "fit" else None
        if given is not None and code.values.of(given, module) == "last":
            return module.where(call)
    for before, word in pairwise(("", *code.facts.argv)):
        if word.endswith("ckpt_path=last") or (word == "last" and before.endswith("ckpt_path")):
            return "command" if code.facts.mode == "command" else "args"
    return ""


def _is_fixed(code: Code) -> bool:
    """Return whether something may keep the folder the same: a dirpath, a version, the id of a run, or no logger."""
    for module, call, name in code.reached.calls:
        is_checkpoint = name.rpartition(".")[2].endswith("ModelCheckpoint")
        if is_checkpoint and (argument(call, "dirpath", 0) is not None or hides_arguments(call)):
            return True
        if _is_same_run(code, call, name, module):
            return True
    if _names_run(code):
        return True
    files = (path for path in code.program.configurations if path.endswith((".yaml", ".yml")))
    texts = [read_text(code.program, path) for path in islice(files, _MOST_FILES)]
    words = "\n".join(word.lstrip("-").rpartition(".")[2].replace("=", ": ") for word in code.facts.argv)
    return any(_FIXED.search(text) or _NO_LOGGER.search(text) for text in (*texts, words))
