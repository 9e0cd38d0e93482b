"""Figures that Lightning watches, to choose a checkpoint or to end the training."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.rank_conditions import is_in_branch_of_zero
from jobsubmit.check.origins import beginning_of, last_value, words_of
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.configuration import parse_text, read_text
from jobsubmit.check.program.module import Function, Module, is_of_self, spelled
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters
from jobsubmit.common.finding import Finding

_VALIDATES = re.compile(r"(?:on_)?(?:validation|val)_")
_COMBINED = re.compile(
    r"compute\(|torchmetrics|self\.\w*metric|metric\w*\(|all_gather|reduce|sync|Accuracy|auroc|f1", re.IGNORECASE
)
_COUNTS = ("global_step", "current_epoch")  # alike in all processes
_DEEPEST = 8  # settings inside each other
_ENDS = ("/", "_", ".", "-")  # of what several figures have in common


def check_figures(code: Code) -> Iterator[Finding]:
    """Yield a warning where a figure that Lightning watches is of one process's part of the data."""
    watched = _monitored(code) if code.is_parallel else frozenset()
    calls = [*code.program.calls_of_attribute.get("log", ()), *code.program.calls_of_attribute.get("log_dict", ())]
    for module, call in calls if watched else ():
        method = module.function_of(call)
        if spelled(call.func) not in ("self.log", "self.log_dict") or method is None or hides_arguments(call):
            continue
        passed = _passed_by_validation(method, module)
        if passed is None or argument(call, "sync_dist") is not None or not code.may_be_used(call, module):
            continue
        if code.is_of_unused_class(call, module):
            continue
        for name, value in _logged(call, module):
            figure = _watched(code, name, watched, passed, module)
            if figure is not None and not _is_combined(code, value, module):
                yield Finding(
                    "warning",
                    "part-as-whole",
                    module.where(call),
                    f"each process logs {figure} of its own part of the data, and it decides which checkpoint is kept, "
                    "or when to stop",
                    "pass sync_dist=True, or log a metric of torchmetrics",
                )
                return


def check_figures_of_zero(code: Code) -> Iterator[Finding]:
    """Yield a warning for `self.log(…, sync_dist=True)` on one rank only: it waits for all ranks.

    Source: the page "Logging" of Lightning 2: `sync_dist=True` reduces the metric across devices.
    """
    calls = [*code.program.calls_of_attribute.get("log", ()), *code.program.calls_of_attribute.get("log_dict", ())]
    for module, call in calls if code.is_parallel else ():
        is_of_module = spelled(call.func) in ("self.log", "self.log_dict")
        is_reduced = is_of_module and code.values.of(argument(call, "sync_dist"), module) is True
        if is_reduced and code.may_be_used(call, module) and is_in_branch_of_zero(code, call, module):
            yield Finding(
                "warning",
                "rank-0-collective",
                module.where(call),
                "only rank 0 reaches this self.log(), which waits for all ranks with sync_dist=True: it would hang",
                "log it on every rank, or pass rank_zero_only=True without sync_dist",
            )
            return


def _passed_by_validation(method: Function, module: Module) -> Mapping[str, Sequence[str]] | None:
    """Return the texts that the validation gives a method, by parameter; None if it does not call the method.

    `validation_step` itself gets none; `self._shared_step(batch, "val")` in it passes one.
    """
    if _VALIDATES.match(getattr(method, "name", "")):
        return {}
    owner = module.parents.get(method)
    steps = owner.body if isinstance(owner, ast.ClassDef) else ()
    calls = [
        call
        for step in steps
        if isinstance(step, ast.FunctionDef) and _VALIDATES.match(step.name)
        for call in walk(step)
        if isinstance(call, ast.Call) and spelled(call.func) == f"self.{getattr(method, 'name', '')}"
    ]
    given = {name: [given_for(call, method, name) for call in calls] for name in parameters(method)}
    texts = {
        name: [one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        for name, values in given.items()
    }
    return texts if calls else None


def _logged(call: ast.Call, module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the names and values that `self.log(name, value)` or `self.log_dict({name: value})` logs."""
    name, value = argument(call, "name", 0), argument(call, "value", 1)
    if getattr(call.func, "attr", "") == "log":
        yield from [(name, value)] if name is not None and value is not None else []
        return
    given = argument(call, "dictionary", 0)
    held = last_value(given, module) if isinstance(given, ast.Name) else given
    if isinstance(held, ast.Dict):
        yield from ((key, one) for key, one in zip(held.keys, held.values, strict=True) if key is not None)
    elif isinstance(held, ast.DictComp):
        yield held.key, held.generators[0].iter


def _watched(
    code: Code, name: ast.expr, watched: Collection[str], passed: Mapping[str, Sequence[str]], module: Module
) -> str | None:
    """Return which of the figures that are watched a name means; None if it means none.

    Of a name such as `"val/" + key`, the beginning is enough; of `f"{stage}/loss"`, what the validation passes.
    """
    value = code.values.of(name, module)
    if isinstance(value, str):
        return value if value in watched else None
    begin = beginning_of(code, name, module)
    begins = begin if begin.endswith(_ENDS) else None
    form = _form(name, passed)
    is_meant = (
        one for one in sorted(watched) if (begins and one.startswith(begins)) or (form and re.fullmatch(form, one))
    )
    return next(is_meant, None)


def _form(name: ast.AST, passed: Mapping[str, Sequence[str]]) -> str:
    """Return a pattern for a text that is put together with what is passed; empty if nothing of it is."""
    match name:
        case ast.JoinedStr(values=parts):
            pass
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            parts = [left, right]
        case _:
            return ""
    found, is_passed = "", False
    for part in parts:
        inner: Any = part.value if isinstance(part, (ast.FormattedValue, ast.Constant)) else part
        texts = passed.get(inner.id, ()) if isinstance(inner, ast.Name) else ()
        is_passed = is_passed or bool(texts)
        found += (
            re.escape(inner) if isinstance(inner, str) else f"(?:{'|'.join(map(re.escape, texts))})" if texts else ".+"
        )
    return found if is_passed else ""


def _monitored(code: Code) -> frozenset[str]:
    """Return the names of the figures that something watches: `monitor="val_loss"`."""
    given = [(module, node.value) for module, node in code.program.of(ast.keyword) if node.arg == "monitor"]
    for module, node in code.program.of(ast.Dict):
        given += [
            (module, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and key.value == "monitor"
        ]
    named = {code.values.of(value, module) for module, value in given}
    composed = code.values.composed
    named |= set(_watched_in(composed.values)) if composed is not None else set()
    for word in code.facts.argv:  # of LightningCLI: `--config=train.yaml`
        text = read_text(code.program, word.rpartition("=")[2]) if word.endswith((".yaml", ".yml")) else ""
        named |= set(_watched_in(parse_text(text))) if text else set()
    return frozenset(name for name in named if isinstance(name, str))


def _watched_in(settings: object, depth: int = 0) -> Iterator[str]:
    if isinstance(settings, list):
        settings = dict(enumerate(settings))
    if isinstance(settings, dict) and depth < _DEEPEST:
        for key, value in settings.items():
            if key == "monitor" and isinstance(value, str):
                yield value
            yield from _watched_in(value, depth + 1)


def _is_combined(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a figure seems to be of all processes: a metric, one that was gathered, or the step itself."""
    if any(is_of_self(part) and part.attr in _COUNTS for part in walk(node)):
        return True
    is_metric = is_of_self(node) and any(_is_metric(code, *place) for place in _stored(code, node))
    return is_metric or _COMBINED.search(words_of(code, node, module)) is not None


def _stored(code: Code, node: ast.Attribute) -> Iterator[tuple[Module, ast.AST]]:
    """Yield what a field of `self` is set to."""
    for module, store in code.program.attribute_stores.get(node.attr, ()):
        if (value := assigned_to(store, module)) is not None:
            yield module, value


def _is_metric(code: Code, module: Module, node: ast.AST) -> bool:
    """Return whether an expression makes an object of a class that inherits from a metric of torchmetrics."""
    name = code.program.name_of(node.func, module) if isinstance(node, ast.Call) else ""
    home, owner = code.program.definition(name) or (module, None)
    bases = [code.program.name_of(base, home) for base in owner.bases] if isinstance(owner, ast.ClassDef) else []
    return any(base.endswith("Metric") for base in bases)
