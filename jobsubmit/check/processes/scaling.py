"""Gradients that are too large, or too small, by the number of processes."""

from __future__ import annotations

from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.rehearsal import Update
from jobsubmit.check.interpreter.scaling import Scaled
from jobsubmit.check.models.gradients import adds_samples
from jobsubmit.common.finding import Finding

_LEFT_TO_OTHERS = frozenset(
    [
        *("register_comm_hook", "gradient_predivide_factor"),
        *("_set_params_and_buffers_to_ignore_for_model", "_ddp_params_and_buffers_to_ignore"),
    ]
)


def check_scales(code: Code) -> Iterator[Finding]:
    """Yield a warning where gradients are divided by the number of processes twice, or added up and never divided."""
    if not _LEFT_TO_OTHERS.isdisjoint(code.names_in_use):
        return
    for one in code.followed_whole[:1]:
        lonely = None if one.is_wrapped else one.scales.lonely()
        if lonely is not None and _may_be_called(code, lonely):
            yield Finding(
                "warning",
                "never-synchronized",
                lonely.module.where(lonely.call),
                "nothing averages the gradients of this step, but other steps exchange theirs: each process trains a "
                "model of its own here",
                "average these gradients as well, before the step",
            )
            return
        total = _total(one)
        if not one.scales.losses or not total:
            continue
        if total < 0 and (one.is_wrapped or one.scales.sums):
            yield _divided_again(code, one)
        elif total > 0 and one.scales.sums and not adds_samples(code):
            yield _never_divided(code, one)


def _may_be_called(code: Code, step: Update) -> bool:
    """Return whether the function around a step is named anywhere, or a library may call it."""
    function = step.module.function_of(step.call)
    return function is None or code.program.uses[function.name] > 0 or code.is_for_library(function, step.module)


def _total(one: Followed) -> int | None:
    """Return by which power of the number of processes gradients are too large; None if that is not clear."""
    losses = {loss.power for loss in one.scales.losses}
    if len(losses) != 1 or None in losses:
        return None
    powers = [*losses, *(factor.power for factor in one.scales.factors)]
    powers += [
        max((each.power for each in one.scales.sums), default=0, key=lambda power: -1 if power is None else power)
    ]
    return None if None in powers else sum(power for power in powers if power is not None)


def _divided_again(code: Code, one: Followed) -> Finding:
    place: Scaled = [*one.scales.factors, *one.scales.losses][0]
    how = "the wrapper averages them already" if one.is_wrapped else "they are divided elsewhere as well"
    return Finding(
        "warning",
        "divided-again",
        place.module.where(place.node),
        f"the gradients are divided by the number of processes once more ({how}): they are {code.world_size} times "
        "too small",
        "leave this division out",
    )


def _never_divided(code: Code, one: Followed) -> Finding:
    place = one.scales.sums[0]
    return Finding(
        "warning",
        "sum-not-divided",
        place.module.where(place.node),
        f"this adds up the gradients of all processes, and nothing divides them: they are {code.world_size} times "
        "too large",
        "divide by the number of processes",
    )
