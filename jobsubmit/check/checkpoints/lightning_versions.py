"""Checkpoints that Lightning writes to a folder of its own, and looks for in that of the next start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, pairwise

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.configuration import read_text
from jobsubmit.common.finding import Finding

_LIBRARIES = ("lightning", "pytorch_lightning")
_FIXED = re.compile(r"^[\s-]*[\"']?(?:dirpath|version|id)[\"']?\s*:(?!\s*(?:null|~)?\s*$)", re.MULTILINE)
_NO_LOGGER = re.compile(r"logger[=: ]+[\"']?false", re.IGNORECASE)
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
    for _, call, name in code.reached.calls:
        last = name.rpartition(".")[2]
        is_checkpoint, is_logger = last.endswith("ModelCheckpoint"), last.endswith("Logger")
        if is_checkpoint and (argument(call, "dirpath", 0) is not None or hides_arguments(call)):
            return True
        if is_logger and (any(argument(call, one) is not None for one in ("version", "id")) or hides_arguments(call)):
            return True
        if getattr(argument(call, "logger"), "value", None) is False:
            return True
    if "WANDB_RUN_ID" in code.facts.environment or "WANDB_RUN_ID" in code.names:
        return True
    files = (path for path in code.program.configurations if path.endswith((".yaml", ".yml")))
    texts = [read_text(code.program, path) for path in islice(files, _MOST_FILES)]
    words = "\n".join(word.lstrip("-").rpartition(".")[2].replace("=", ": ") for word in code.facts.argv)
    return any(_FIXED.search(text) or _NO_LOGGER.search(text) for text in (*texts, words))
