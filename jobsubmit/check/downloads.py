"""Find what the code would download from a hub that the job must not use: models, data and metrics."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.hub_cache import OF_CACHE, is_cached
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module
from jobsubmit.common.finding import Finding

_OF_METHOD = "from_pretrained"
_LOADS = {
    "evaluate.load": ("path", "metric"),
    "datasets.load_dataset": ("path", "data"),
    "huggingface_hub.hf_hub_download": ("repo_id", "model"),
    "huggingface_hub.snapshot_download": ("repo_id", "model"),
}
_NAME = re.compile(r"[A-Za-z][\w-]*/[\w.-]+")
_PLAIN_NAME = re.compile(r"(?:distil)?(?:bert|roberta|gpt2|albert|xlm|t5)[\w.-]*")
_OF_RUN = re.compile(
    r"out|ckpt|checkpoint|result|data|model|weight|save|log|exp|work|run|tmp|cache|pretrain|asset", re.I
)
_OF_FILES = frozenset(["csv", "json", "text", "parquet", "arrow", "imagefolder", "audiofolder", "pandas", "webdataset"])
_YES = ("1", "on", "yes", "true")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE")


def check_downloads(code: Code) -> Iterator[Finding]:
    """Yield a warning for what the code surely takes from the Hugging Face Hub's cache, and this machine's cache lacks.

    Only where the job says that it has no access to the hub, and where the nodes are this machine.
    """
    given = {**os.environ, **code.facts.environment} if code.facts.is_this_machine else {}
    offline = next((name for name in _OFFLINE if str(given.get(name, "")).lower() in _YES), "")
    has_own_cache = any(name in (code.facts.may_be_set or ()) and name not in os.environ for name in OF_CACHE)
    for module, call, name in code.reached.calls if offline and not has_own_cache else ():
        wanted = _wanted(code, call, name, module) if code.reached.is_sure(call, module) else ""
        if wanted and not is_cached(wanted):
            yield Finding(
                "warning",
                "download",
                module.where(call),
                f"{offline} is set, and the cache of this machine does not have {wanted}",
                "download it before, where there is access to the internet, and set HF_HOME to the folder of the cache",
            )


def _wanted(code: Code, call: ast.Call, name: str, module: Module) -> str:
    """Return the name of what a call downloads; empty if it may be a folder, or is not known."""
    if argument(call, "cache_dir") is not None or hides_arguments(call):
        return ""
    if isinstance(call.func, ast.Attribute) and call.func.attr == _OF_METHOD and _OF_METHOD not in code.program.methods:
        return _of_hub(code, argument(call, "pretrained_model_name_or_path", 0), module)
    parameter, kind = _LOADS.get(name, ("", ""))
    node = argument(call, parameter, 0) if parameter else None
    if kind in ("metric", "data"):
        value = code.values.of(node, module)
        is_name = isinstance(value, str) and re.fullmatch(r"[\w-]+(?:/[\w.-]+)?", value) is not None
        return value if is_name and value not in _OF_FILES and not _is_of_code(code, value) else ""
    return _of_hub(code, node, module)


def _of_hub(code: Code, node: ast.expr | None, module: Module) -> str:
    value = code.values.of(node, module)
    if not isinstance(value, str) or _is_of_code(code, value) or _OF_RUN.match(value):
        return ""
    return value if _NAME.fullmatch(value) or _PLAIN_NAME.fullmatch(value) else ""


def _is_of_code(code: Code, name: str) -> bool:
    """Return whether a file or a folder of the code has this path."""
    return any(path == name or path.startswith(f"{name}/") for path in code.program.paths)
