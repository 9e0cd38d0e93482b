"""Models that are trained past their wrapper, or whose state does not fit."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.placing import OnCpu
from jobsubmit.check.models.gradients import averages_all
from jobsubmit.check.program.module import unparsed
from jobsubmit.check.program.placed import MOVES
from jobsubmit.common.finding import Finding

_PLACES_ALL = frozenset(["set_default_device", "set_default_tensor_type", "init_empty_weights"])
_CHANGES = ("module.", "removeprefix", "consume_prefix_in_state_dict_if_present", "_orig_mod.")


def check_bypassing(code: Code) -> Iterator[Finding]:
    """Yield a warning where training calls the model inside a wrapper, and never the wrapper."""
    if averages_all(code):
        return  # the program averages them itself
    for wrapper in (one for followed in code.followed_whole[:1] for one in followed.wrappers.every):
        inner = wrapper.calls("", is_outer=False)
        if inner and not wrapper.calls("", is_outer=True) and "backward" in code.names:
            yield Finding(
                "warning",
                "bypassed",
                inner[0].module.where(inner[0].call),
                f"{unparsed(inner[0].call.func)} is the model inside the wrapper: the gradients are not averaged, "
                "and each process trains a model of its own",
                "call the wrapper",
            )
            return


def check_places_of_models(code: Code) -> Iterator[Finding]:
    """Yield a warning where a wrapper is made for a GPU, and nothing moved its model there."""
    if code.facts.gpus == 0 or not _PLACES_ALL.isdisjoint(code.names_in_use) or _makes_on_device(code):
        return
    for one in (one for followed in code.followed[:1] for one in followed.on_cpu):
        given = unparsed(one.call.args[0]) if one.call.args else "the model"
        if _may_move(one, given):
            continue
        yield Finding(
            "warning",
            "model-on-cpu",
            one.module.where(one.call),
            f"{given} is still on the CPU when DistributedDataParallel gets it, and the processes communicate on GPUs",
            "move it first: model.to(local_rank)",
        )
        return


def _may_move(wrap: OnCpu, model: str) -> bool:
    """Return whether a statement before a wrapper moves something, and names the model: `model.apply(to_gpu)`."""
    statements = wrap.module.scope_of(wrap.call).body
    before = [unparsed(one) for one in statements if one.lineno < wrap.call.lineno]
    return any(MOVES.search(text) and re.search(rf"\b{re.escape(model)}\b", text) for text in before)


def _makes_on_device(code: Code) -> bool:
    """Return whether models may be made on a GPU: `with torch.device("cuda"):`."""
    items = (item.context_expr for _, node in code.program.of(ast.With) for item in node.items)
    return any("device" in unparsed(one) for one in items)


def check_keys(code: Code) -> Iterator[Finding]:
    """Yield a warning where the state of a wrapper is saved, and loaded into what is in it, or the other way round."""
    if any(change in text for text in code.texts | code.names_in_use for change in _CHANGES):
        return
    for use in (use for followed in code.followed_whole[:1] for use in followed.wrappers.mixed):
        yield Finding(
            "warning",
            "other-keys",
            use.module.where(use.call),
            "the keys of this state begin with `module.`, because it is that of a wrapper; the model that loads it has "
            "keys without that: torch refuses to load it",
            "load the state of what is inside the wrapper: model.module.state_dict()",
        )
        return
    for wrapper in (one for followed in code.followed_whole[:1] for one in followed.wrappers.every):
        saved = {use.is_outer for use in wrapper.uses if use.name == "state_dict"}
        loaded = [use for use in wrapper.uses if use.name == "load_state_dict"]
        if len(saved) != 1 or not loaded or any(use.is_outer in saved or not use.is_strict for use in loaded):
            continue
        saving = next(use.module.where(use.call) for use in wrapper.uses if use.name == "state_dict")
        yield Finding(
            "warning",
            "other-keys",
            loaded[0].module.where(loaded[0].call),
            f"the keys of this state begin with `module.`, because {saving} saves the wrapper; the model that loads it "
            "has keys without that: torch refuses to load it"
            if True in saved
            else f"the keys of this state do not begin with `module.`, because {saving} saves the model inside the "
            "wrapper; the wrapper that loads it has keys with that: torch refuses to load it",
            "save and load the model inside the wrapper: model.module.state_dict()",
        )
        return
