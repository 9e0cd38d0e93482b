"""How the followed processes feed their data: samplers, loaders, epochs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import LOADERS, Code
from jobsubmit.check.interpreter.trace import Event, Made
from jobsubmit.check.loading.divided import is_divided
from jobsubmit.check.loading.loaders import is_for_training, spelled_with_target
from jobsubmit.check.program.module import FUNCTIONS, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_SAMPLER, _SHUFFLE, _BATCH_SIZE = 3, 2, 1  # the places of arguments of DataLoader
_OF_TORCH = "torch.utils.data."
_BATCHING = (*LOADERS, "torch.utils.data.BatchSampler", "torch.utils.data.sampler.BatchSampler")


def check_loading(code: Code) -> Iterator[Finding]:
    """Yield an error where a loader surely gets a sampler and shuffle, or batches without samples."""
    for event in (event for one in code.followed for event in one.events.values() if event.name in _BATCHING):
        sampler = event.argument("sampler", _SAMPLER)
        if event.argument("shuffle", _SHUFFLE) is True and isinstance(sampler, Made) and event.is_sure:
            yield Finding(
                "error",
                "sampler-and-shuffle",
                event.module.where(event.call),
                "shuffle=True beside a sampler: DataLoader refuses both",
                "remove shuffle: DistributedSampler shuffles by itself",
            )
            return
        size = event.argument("batch_size", _BATCH_SIZE, 1)
        if type(size) is int and size == 0:
            yield Finding(
                "error" if event.is_sure else "warning",
                "empty-batch",
                event.module.where(event.call),
                f"batch_size is 0 with {code.world_size} processes: {event.last} refuses that",
                "use a larger global batch, or fewer processes",
            )
            return


def check_sampler_of_all(code: Code) -> Iterator[Finding]:
    """Yield a warning where a program that knows DistributedSampler trains with samples of all data in each process."""
    events = [event for one in code.followed[:1] for event in one.events.values() if event.name in LOADERS]
    samplers = [event.argument("sampler", _SAMPLER) for event in events]
    names = [sampler.name if isinstance(sampler, Made) else "" for sampler in samplers]
    are_own = any(name and not name.startswith(_OF_TORCH) for name in names)
    if are_own or is_divided(code) or _draws_anew(code) or any(name.endswith("DistributedSampler") for name in names):
        return
    for event, name in zip(events, names, strict=True):
        if (
            name == f"{_OF_TORCH}RandomSampler"
            and "DistributedSampler" in code.names
            and code.wraps_models
            and not code.has_framework
        ):
            yield Finding(
                "warning",
                "no-sampler",
                event.module.where(event.call),
                "each process gets all of the data from this loader: an epoch takes as long as with one process",
                "divide the data: sampler=DistributedSampler(data)",
            )
            return


def _draws_anew(code: Code) -> bool:
    """Return whether a sampler draws with replacement: then each process has samples of its own."""
    calls = (call for _, call, name in code.reached.calls if name.endswith("Sampler"))
    return any(keyword.arg == "replacement" for call in calls for keyword in call.keywords)


def check_epochs_set(code: Code) -> Iterator[Finding]:
    """Yield a warning where set_epoch() always gets the same number, or is only called before the epochs."""
    events = [event for one in code.followed[:1] for event in one.events.values() if event.last == "set_epoch"]
    if code.has_framework:
        return
    if not events:
        yield from _never_set(code)
        return
    if missed := next(_set_for_others(code, events), None):
        yield missed
        return
    same = [event for event in events if event.times > 1 and event.args and type(event.args[0]) is int]
    same = [event for event in same if not _is_of_several(event)]
    if len(same) == len(events):
        yield Finding(
            "warning",
            "set-epoch",
            same[0].module.where(same[0].call),
            f"set_epoch({unparsed(same[0].call.args[0])}) in every epoch: the sampler uses the same order each time",
            "pass the number of the epoch",
        )
    elif not _is_set_elsewhere(code, events) and all(
        event.times == 1 and not _is_in_loop(code, event) and _is_before_loop(event) for event in events
    ):
        yield Finding(
            "warning",
            "set-epoch",
            events[0].module.where(events[0].call),
            "set_epoch() is called only once, before the epochs: the sampler uses the same order in each of them",
            "call it at the beginning of each epoch",
        )


def _is_set_elsewhere(code: Code, events: Sequence[Event]) -> bool:
    """Return whether the program may also come to other calls of set_epoch: where a loader has no more batches."""
    calls = {event.call for event in events}
    others = (call for _, call, _ in code.reached.calls if call not in calls and isinstance(call.func, ast.Attribute))
    return any(call.func.attr == "set_epoch" for call in others if isinstance(call.func, ast.Attribute))


def _set_for_others(code: Code, events: Sequence[Event]) -> Iterator[Finding]:
    """Yield a warning for the sampler of a training that shuffles, where only others get the epoch.

    Beside another sampler of the training, it has to be called one itself: `train_sampler_u`.
    """
    first = code.followed[0]
    with_epoch = {number for event in events for number in first.owners.get(event.path, {0})}
    every = list(first.events.values())
    trains_again = any(later.last == "backward" and code.loops_around(later) > 1 for later in every)
    if 0 in with_epoch or not trains_again or not first.is_whole:
        return
    samplers = [(event, event.argument("shuffle", 3, True)) for event in every if event.last == "DistributedSampler"]
    made = [(event, shuffles, first.results.get(event.path, set())) for event, shuffles in samplers if shuffles]
    training = [one for one in made if one[2] and is_for_training(one[0].call, one[0].module)]
    without = [one for one in training if with_epoch.isdisjoint(one[2])]
    if len(without) < len(training):
        with_it = {event.call for event, _, numbers in training if not with_epoch.isdisjoint(numbers)}
        without = [one for one in without if one[0].call not in with_it]
        without = [one for one in without if "train" in spelled_with_target(one[0].call, one[0].module)]
    yield from (_never(event) for event, shuffles, _ in without[:1] if event.is_sure and shuffles is True)


def _never(event: Event) -> Finding:
    return Finding(
        "warning",
        "set-epoch",
        event.module.where(event.call),
        "set_epoch() is never called for this sampler: it uses the same order in every epoch",
        "call it at the beginning of each epoch",
    )


def _never_set(code: Code) -> Iterator[Finding]:
    """Yield a warning where a sampler shuffles in a program that sets epochs elsewhere, but never in this job."""
    calls = code.program.calls_of_attribute.get("set_epoch", ())
    if not all(code.is_never_made(call) and code.passes_by(call, module) for module, call in calls):
        return
    events = [event for one in code.followed[:1] for event in one.events.values()]
    for event in events:
        is_shuffling = event.last == "DistributedSampler" and event.argument("shuffle", 3, True) is True
        trains_again = any(later.last == "backward" and code.loops_around(later) > 1 for later in events)
        if is_shuffling and event.is_sure and trains_again:
            yield _never(event)
            return


def _is_of_several(event: Event) -> bool:
    """Return whether a loop goes through several samplers: `for loader in loaders: loader.sampler.set_epoch(0)`."""
    loops = (above for above in event.module.above(event.call) if isinstance(above, ast.For))
    names = {node.id for loop in loops for node in walk(loop.target) if isinstance(node, ast.Name)}
    return spelled(event.call.func).partition(".")[0] in names


def _is_in_loop(code: Code, event: Event) -> bool:
    """Return whether a call, or one of those that lead to it, is in a loop."""
    for call in event.path:
        for above in code.module_of(call, event).above(call):
            if isinstance(above, (ast.For, ast.While)):
                return True
            if isinstance(above, FUNCTIONS):
                break
    return False


def _is_before_loop(event: Event) -> bool:
    """Return whether a loop comes after a call in the same function: that of the epochs, as a rule."""
    scope = event.module.scope_of(event.call)
    return any(isinstance(node, ast.For) and node.lineno > event.call.lineno for node in walk(scope))
