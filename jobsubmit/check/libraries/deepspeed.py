"""Sizes of batches in a configuration of DeepSpeed that do not fit the number of processes."""

from __future__ import annotations

import ast
import json
import math
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jobsubmit.check.code import Code, is_count
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.configuration import parse_text
from jobsubmit.common.finding import Finding

_FILLED_FROM = ("", "per_device_train_batch_size", "gradient_accumulation_steps")  # by transformers' HfDeepSpeedConfig
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def check_deepspeed(code: Code, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield an error for sizes of batches that do not fit the number of processes: DeepSpeed refuses them.

    `read` returns the text of a file of the job. Source: DeepSpeedConfig._batch_assertion.
    """
    if not code.program.imports("deepspeed", "transformers", "accelerate") or _are_changed(code):
        return
    words = [word.partition("=")[2] or word for word in code.facts.argv]
    settings = {**_settings(words, read), **code.values.arguments}
    texts = (*words, *sorted(code.texts), *settings.values(), *code.observed.values.values())
    names = dict.fromkeys(name for name in texts if isinstance(name, str) and name.endswith(".json"))
    of_files = ((name, _batch_sizes(settings, read(posixpath.normpath(name)))) for name in names)
    for where, (total, *parts) in (*of_files, *_batches_in_code(code)) if code.world_size else ():
        known = [part for part in parts if part]
        product = math.prod((*known, code.world_size or 1))
        products = [math.prod((*known, count)) for count in _counts_of_parts(code)]
        if not total or any(total == one if len(known) == len(parts) else total % one == 0 for one in products):
            continue
        given = " * ".join(map(str, (*known, code.world_size)))
        text = f"train_batch_size is {total}, but {given} processes are {product}: DeepSpeed refuses that"
        hint = f"set train_batch_size: {product}, or leave it out"
        if len(known) < len(parts):
            text = f"train_batch_size is {total}, which {given} processes cannot share equally: DeepSpeed refuses that"
            hint = f"make it a multiple of {product}"
        yield Finding("error", "deepspeed-batch", where, text, hint)
        return


def _counts_of_parts(code: Code) -> list[int]:
    """Return into how many parts a batch may be divided: with model parallelism, several processes share one."""
    world = code.world_size or 1
    is_shared = any(argument(call, "mpu") is not None for _, call in code.calls("deepspeed.initialize"))
    return [count for count in range(1, world + 1) if world % count == 0] if is_shared else [world]


def _are_changed(code: Code) -> bool:
    """Return whether the program itself sets a size in a configuration."""
    stores = ((module, node) for module, node in code.program.of(ast.Subscript) if isinstance(node.ctx, ast.Store))
    sizes = ((module, node) for module, node in stores if getattr(node.slice, "value", None) in _BATCHES)
    return any(code.reached.of(node, module) for module, node in sizes)


def _batches_in_code(code: Code) -> Iterator[tuple[str, list[int]]]:
    """Yield the three sizes of each dictionary of the program that has them, and where it is."""
    if not code.program.imports("deepspeed"):
        return
    for module, node in code.program.of(ast.Dict):
        items = {getattr(key, "value", None): value for key, value in zip(node.keys, node.values, strict=True)}
        if _BATCHES[0] in items and code.reached.of(node, module):
            sizes = [code.values.of(items.get(name), module) for name in _BATCHES]
            yield module.where(node), [size if is_count(size) else 0 for size in sizes]


def _settings(words: Iterable[str], read: Callable[[str], str]) -> dict[str, Any]:
    """Return the arguments in a YAML or JSON file that the words name, as HfArgumentParser reads it."""
    parsed = [parse_text(read(posixpath.normpath(word))) for word in words if word.endswith((".yaml", ".yml", ".json"))]
    return {str(key): value for one in parsed if isinstance(one, dict) for key, value in one.items()}


def _batch_sizes(settings: Mapping[str, Any], text: str) -> list[int]:
    """Return the three sizes of a configuration of DeepSpeed, "auto" as transformers fills it in; 0 if not known."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = {}
    sizes = [found.get(name) if isinstance(found, dict) else 0 for name in _BATCHES]
    arguments = (settings.get(name) for name in _FILLED_FROM)
    filled = [given if size == "auto" else size for size, given in zip(sizes, arguments, strict=True)]
    return [size if isinstance(size, int) and size > 0 else 0 for size in filled]
