"""Accelerate, used so that processes share no data, or so that it does nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from jobsubmit.check.code import ACCELERATOR, LOADERS, Code, is_count, trains
from jobsubmit.check.libraries.accelerate_on_cpus import check_accelerate_on_cpus, is_on
from jobsubmit.check.libraries.accelerated_schedules import check_accelerated_schedules
from jobsubmit.check.libraries.prepared import given_names, holds_prepared
from jobsubmit.check.libraries.unprepared import check_unprepared
from jobsubmit.check.models.bypassing import without_gradients
from jobsubmit.check.models.state import OWN_NAMES
from jobsubmit.check.models.thawing import thawed_by_argument
from jobsubmit.check.origins import keywords_of, last_value, origins, words_of
from jobsubmit.check.program.calls import given_for, hides_arguments
from jobsubmit.check.program.module import Module, class_around, spelled, unparsed
from jobsubmit.check.program.objects import is_torch_module, made
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters
from jobsubmit.check.wrapper import is_prepare
from jobsubmit.common.finding import Finding

_OTHER_WRAPPERS = ("fsdp_plugin", "deepspeed_plugin", "megatron_lm_plugin", "parallelism_config")
_OPTIONS_OF_OTHERS = ("use_fsdp", "use_deepspeed", "use_megatron_lm")
_OTHER_TYPES = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
_OF_MODELS = (
    *("save_pretrained", "generate", "config", "push_to_hub", "resize_token_embeddings", "num_parameters"),
    *("get_input_embeddings", "gradient_checkpointing_enable", "merge_and_unload"),
)
_SPREADS = ("auto", "balanced", "sequential")
_STEPS = ("gradient_accumulation_steps", "gradient_accumulation_plugin", "deepspeed_plugin")
_ACCUMULATES = re.compile(r"(?:grad(?:ient)?_)?accum(?:ulat\w+)?(?:_steps?|_iters?)?")
_DEEPEST = 3
_RESUMES = re.compile(r"resum|restart|from_checkpoint")
_OF_ACCELERATOR = re.compile(r"accelerator\.\w+\(|prepare\w*\(|skip_first_batches")
_OF_VALIDATION = re.compile(r"val|test|eval|dev")
_MOVES = re.compile(r"\.to\(|\.cuda\(|to_device|device")
_WITHOUT_GRADIENTS = re.compile(r"no_grad|inference_mode|eval|val|test|sample|generate|log|main_process|== 0")
_COMBINES = re.compile(r"gather|reduce|all_sum|sync|pad_across")
_SHOWS = ("tqdm", "trange", "track", "progress_bar", "enumerate", "iter")
_NOT_TRAINING = re.compile(r"val|test|eval|dev|infer|predict|sample|cache|latent")


def check_accelerate(code: Code, launched_with: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield loaders that Accelerate does not divide among the processes, and calls of it that have no effect.

    `launched_with` are the options of `accelerate launch`, also those in its configuration.
    """
    if code.world_size != 1:
        yield from _not_prepared(code)
        yield from _spread_over_all(code)
        yield from _counted_apart(code)
        yield from check_unprepared(code)
    yield from _never_accumulated(code)
    yield from check_accelerate_on_cpus(code, launched_with)
    if code.facts.has_launcher and code.is_parallel:
        if not _wraps_otherwise(launched_with):
            yield from _asked_of_wrapper(code)
        yield from _trains_unwrapped(code)
        yield from check_accelerated_schedules(code)
        if any(is_prepare(call) for _, call, _ in code.reached.calls):
            yield from thawed_by_argument(code)


def _not_prepared(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader of the training that is not given to Accelerator.prepare."""
    if not any(code.calls(ACCELERATOR)):
        return
    reached = [(module, call) for module, call, _ in code.reached.calls if is_prepare(call)]
    sure = [call for module, call in reached if code.reached.is_sure(call, module)]
    prepares = sure or [call for _, call in reached]
    given = {unparsed(arg) for call in prepares for arg in call.args}
    if not prepares or any(hides_arguments(call) for call in prepares):
        return
    loops = sorted(_loops(code, given), key=lambda one: -code.reached.of(one[1], one[0]))
    for module, loop, loader in loops:
        if sure and not code.reached.of(loop, module):
            return  # those that are prepared are of another trainer
        name = spelled(loader)
        if not _NOT_TRAINING.search(name) and _accelerates(loop) and _is_unprepared_loader(code, loader, module):
            yield Finding(
                "warning",
                "no-sampler",
                module.where(_set_at(loader, module) or loop),
                f"{name} is not given to accelerator.prepare: each process gets all of the data",
                f"pass it as well: {name} = accelerator.prepare({name})",
            )
            return
    yield from _left_on_cpu(code, given)


def _left_on_cpu(code: Code, given: set[str]) -> Iterator[Finding]:
    """Yield a warning for a loader of the validation that is not prepared, and whose batches nothing moves."""
    for module, loop, loader in _loops(code, given) if code.facts.gpus != 0 else ():
        name = spelled(loader)
        if not _OF_VALIDATION.search(name) or not code.reached.of(loop, module):
            continue
        body = "\n".join(map(unparsed, loop.body))
        calls_model = any(re.search(rf"\b{re.escape(one)}\b", body) for one in given)
        if calls_model and not _MOVES.search(body) and _is_unprepared_loader(code, loader, module):
            yield Finding(
                "warning",
                "not-prepared",
                module.where(_set_at(loader, module) or loop),
                f"{name} is not given to accelerator.prepare: its batches stay on the CPU, and the model is on a GPU",
                f"pass it as well: {name} = accelerator.prepare({name})",
            )
            return


def _loops(code: Code, given: set[str]) -> Iterator[tuple[Module, ast.For, ast.Name | ast.Attribute]]:
    """Yield each loop through a variable that is not given to prepare by its name, and that variable."""
    for module, loop in code.program.of(ast.For):
        looped = _looped(loop.iter, module)
        if looped is not None and spelled(looped) not in given:
            yield module, loop, looped


def _is_unprepared_loader(code: Code, loader: ast.Name | ast.Attribute, module: Module) -> bool:
    is_loader = any(_is_loader(code, part, home) for home, part in origins(code, loader, module))
    return is_loader and not _is_prepared(code, loader, module)


def _looped(iterated: ast.expr, module: Module) -> ast.Name | ast.Attribute | None:
    """Return the variable that a loop goes through, also in `enumerate(tqdm(loader))` or a variable set to that.

    None where it is set to a list that is put together here, which is no loader.
    """
    while isinstance(iterated, ast.Call) and iterated.args and _is_shown(iterated):
        iterated = iterated.args[0]
    if isinstance(iterated, ast.Attribute) and spelled(iterated.value) == "self":
        return iterated
    if not isinstance(iterated, ast.Name):
        return None
    stores = module.stores.get((module.scope_of(iterated), iterated.id), ())
    if any(isinstance(assigned_to(one, module), (ast.ListComp, ast.GeneratorExp)) for one in stores):
        return None
    opened = [parent.context_expr for one in stores if isinstance(parent := module.parents.get(one), ast.withitem)]
    made = opened[0] if len(opened) == 1 else last_value(iterated, module)
    return _looped(made, module) if isinstance(made, ast.Call) and _is_shown(made) else iterated


def _is_shown(call: ast.Call) -> bool:
    """Return whether a call only goes through what it is given: `enumerate(loader)`, `tqdm(loader)`."""
    return unparsed(call.func).rpartition(".")[2] in _SHOWS


def _accelerates(loop: ast.For) -> bool:
    """Return whether a loop trains by Accelerate's backward, or yields the data to what trains."""
    nodes = list(walk(loop))
    is_training = any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in nodes)
    return is_training or any(isinstance(node, ast.Yield) for node in nodes)


def _is_loader(code: Code, part: ast.AST, module: Module) -> bool:
    """Return whether an expression makes a loader, itself or in a function of the program that it calls."""
    if not isinstance(part, ast.Call) or not code.reached.of(part, module):
        return False
    name = code.program.name_of(part.func, module)
    found = code.program.definition(name)
    if name in LOADERS or found is None or isinstance(found[1], ast.ClassDef):
        return name in LOADERS
    calls = (node for node in walk(found[1]) if isinstance(node, ast.Call) and code.reached.of(node, found[0]))
    return any(code.program.name_of(call.func, found[0]) in LOADERS for call in calls)


def _is_prepared(code: Code, loader: ast.Name | ast.Attribute, module: Module, depth: int = 0) -> bool:
    """Return whether a variable or an attribute is set by prepare, or by another method of the accelerator.

    What only leaves out the first batches is prepared if what it gets them from is.
    """
    if isinstance(loader, ast.Name):
        function = module.function_of(loader)
        if function is not None and loader.id in parameters(function) and depth < _DEEPEST:
            calls = code.program.calls_to(function, module)
            given = ((home, given_for(call, function, loader.id)) for home, call in calls)
            if any(
                isinstance(one, (ast.Name, ast.Attribute)) and _is_prepared(code, one, home, depth + 1)
                for home, one in given
            ):
                return True
        stores = module.stores.get((module.scope_of(loader), loader.id), ())
        statements = [above for store in stores for above in module.above(store) if isinstance(above, ast.Assign)]
        reached = [one for one in statements if code.reached.of(one, module) and not _is_only_of_resumed(one, module)]
        sources = [_without_skipping(one.value) for one in reached]
        return any(
            _OF_ACCELERATOR.search(unparsed(one))
            or (isinstance(one, ast.Name) and depth < _DEEPEST and _is_prepared(code, one, module, depth + 1))
            for one in sources
        )
    for home, target in code.program.attribute_stores.get(loader.attr, ()):
        value = assigned_to(target, home)
        statement = next((above for above in home.above(target) if isinstance(above, ast.Assign)), None)
        if statement is not None and _OF_ACCELERATOR.search(unparsed(statement.value)):
            return True
        if isinstance(value, ast.Name) and _is_prepared(code, value, home):
            return True
    return False


def _is_only_of_resumed(statement: ast.Assign, module: Module) -> bool:
    """Return whether a statement is executed only where the training goes on from a checkpoint."""
    tests = [one.test for one in module.above(statement) if isinstance(one, ast.If) and not one.orelse]
    return any(isinstance(test, (ast.Name, ast.Attribute)) and _RESUMES.search(spelled(test)) for test in tests)


def _without_skipping(value: ast.expr) -> ast.expr:
    """Return the loader whose first batches a call leaves out: `accelerator.skip_first_batches(loader, 100)`."""
    is_skipping = isinstance(value, ast.Call) and spelled(value.func).endswith("skip_first_batches")
    return value.args[0] if is_skipping and isinstance(value, ast.Call) and value.args else value


def _set_at(loader: ast.Name | ast.Attribute, module: Module) -> ast.AST | None:
    if isinstance(loader, ast.Attribute):
        return None
    return next(iter(module.stores.get((module.scope_of(loader), loader.id), ())), None)


def _spread_over_all(code: Code) -> Iterator[Finding]:
    """Yield a warning for a model that each process of a node would spread over all of its GPUs."""
    if not code.facts.has_launcher or (code.processes or 0) <= 1 or code.facts.gpus in (0, 1):
        return
    for module, call, _ in code.reached.calls:
        home, given = keywords_of(code, call, module).get("device_map", (module, None))
        if given is not None and any(value in _SPREADS for value in _may_be(code, given, home)):
            yield Finding(
                "warning",
                "spread-over-all",
                module.where(call),
                f"device_map: each of the {code.processes} processes of a node spreads the model over all GPUs",
                'start one process on each node, or give each process its GPU: device_map={"": local_rank}',
            )
            return


def _counted_apart(code: Code) -> Iterator[Finding]:
    """Yield a warning for a measure of the validation that each process counts on its own part of the data."""
    for module, loop in code.program.of(ast.For) if any(code.calls(ACCELERATOR)) else ():
        loader = _looped(loop.iter, module)
        if loader is None or not _OF_VALIDATION.search(spelled(loader)) or not code.reached.of(loop, module):
            continue
        scope = module.scope_of(loop)
        counted = {
            unparsed(node.target)
            for node in walk(loop)
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
        }
        quotients = [
            node
            for node in walk(scope)
            if isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and {unparsed(node.left), unparsed(node.right)} <= counted
        ]
        later = (node for node in walk(scope) if isinstance(node, ast.Call) and node.lineno >= loop.lineno)
        if quotients and not any(_COMBINES.search(unparsed(node.func)) for node in later):
            if "prepare" in words_of(code, loader, module):
                yield Finding(
                    "warning",
                    "part-as-whole",
                    module.where(quotients[0]),
                    f"each process has seen its own part of {spelled(loader)} only: `{unparsed(quotients[0])}` is a "
                    "result of that part",
                    "gather what all processes have first: accelerator.gather_for_metrics((predictions, labels))",
                )
                return


def _may_be(code: Code, node: ast.expr, module: Module) -> list[Any]:
    """Return the values that an expression may have by a condition, if it is not known which one."""
    if isinstance(node, ast.IfExp) and code.values.truth(node.test, module) is None:
        return [*_may_be(code, node.body, module), *_may_be(code, node.orelse, module)]
    return [code.values.of(node, module)]


def _never_accumulated(code: Code) -> Iterator[Finding]:
    """Yield a warning where Accelerate is to accumulate gradients, but no step uses `accumulate`."""
    if {"accumulate", "no_sync"} & code.names_in_use:
        yield from _accumulates_nothing(code)
        return
    for module, call in code.calls(ACCELERATOR):
        home, given = keywords_of(code, call, module).get("gradient_accumulation_steps", (module, None))
        if given is not None and code.values.of(given, home) != 1:
            yield Finding(
                "warning",
                "never-accumulated",
                module.where(call),
                "gradient_accumulation_steps has no effect without accelerator.accumulate(): the optimizer steps after "
                "each batch, with a smaller gradient",
                "put the step into `with accelerator.accumulate(model):`",
            )
            return


def _accumulates_nothing(code: Code) -> Iterator[Finding]:
    """Yield a warning for steps that `accumulate` is to save up where the Accelerator does not know how many."""
    wanted = code.values.arguments.get("gradient_accumulation_steps", _wanted_by_words(code.facts.argv))
    uses = [call for _, call, _ in code.reached.calls if getattr(call.func, "attr", "") == "accumulate"]
    is_given = code.facts.mode != "command" and isinstance(wanted, int) and wanted > 1
    is_set_later = bool(code.program.stored_attributes & {*_STEPS})
    if not uses or is_set_later or not (is_given or _reads_own_setting(code)):
        return
    for module, call in code.calls(ACCELERATOR):
        names = {keyword.arg for keyword in call.keywords}
        if None in names and (given := code.names_given(call)) is not None:
            names = {*given}
        if not names & {*_STEPS, None}:
            yield Finding(
                "warning",
                "never-accumulated",
                module.where(call),
                "accelerator.accumulate() has no effect: the Accelerator does not get gradient_accumulation_steps, "
                "which is 1 by default",
                "pass it: Accelerator(gradient_accumulation_steps=…)",
            )
            return


def _wanted_by_words(words: Sequence[str]) -> int | None:
    """Return how many steps an argument asks for, where it is not known what parses it: `--steps=4`, `--steps 4`."""
    for word, following in pairwise((*words, "")):
        name, equals, value = word.lstrip("-").partition("=")
        steps = value if equals else following if word.startswith("--") else ""
        if _ACCUMULATES.fullmatch(name.rpartition(".")[2].replace("-", "_")) and steps.isdecimal():
            return int(steps)
    return None


def _reads_own_setting(code: Code) -> bool:
    """Return whether the program counts steps by a setting of its own, such as `cfg.train.accum_steps`, more than one.

    No argument and no configuration may tell Accelerate of it by its own name.
    """
    may_be_told = code.facts.mode == "command" and "gradient_accumulation_steps" in code.program.configured_names
    if "gradient_accumulation_steps" in " ".join(code.facts.argv) or may_be_told:
        return False
    reads = [(module, node) for module, node in code.program.of(ast.Attribute) if _ACCUMULATES.fullmatch(node.attr)]
    reads += [(module, node) for module, node in code.program.of(ast.Name) if _ACCUMULATES.fullmatch(node.id)]
    values = [code.values.of(node, module) for module, node in reads if code.reached.of(node, module)]
    return any(is_count(value) and value > 1 for value in values)


def _wraps_otherwise(launched_with: Mapping[str, Any]) -> bool:
    """Return whether Accelerate uses another wrapper than DistributedDataParallel: these pass on what is asked."""
    is_asked = any(is_on(launched_with, name) for name in _OPTIONS_OF_OTHERS)
    return is_asked or launched_with.get("distributed_type") in _OTHER_TYPES


def _asked_of_wrapper(code: Code) -> Iterator[Finding]:
    """Yield a warning for a method of a model that is asked of what `prepare` returned: DistributedDataParallel."""
    made = [call for _, call in code.calls(ACCELERATOR)]
    if not made or any({keyword.arg for keyword in call.keywords} & {*_OTHER_WRAPPERS, None} for call in made):
        return
    own = _own_names(code)
    asked = {*_OF_MODELS, *own}
    for module, node in code.program.of(ast.Attribute):
        if node.attr not in asked or not isinstance(node.value, ast.Name):
            continue
        if not code.reached.of(node, module) or (node.attr in own and not _is_of_own_model(code, node.value, module)):
            continue
        if not holds_prepared(code, node.value, module) or _is_asked_first(node, module):
            continue
        yield Finding(
            "warning",
            "wrapped-attribute",
            module.where(node),
            f"{node.value.id} is what accelerator.prepare() returned: with several processes it is the wrapper "
            f"DistributedDataParallel, which has no attribute {node.attr}",
            f"use accelerator.unwrap_model({node.value.id}).{node.attr}",
        )
        return


def _own_names(code: Code) -> set[str]:
    """Return the fields and methods that models of the program have, and nothing else in it."""
    models = {owner for module, owner in code.program.of(ast.ClassDef) if is_torch_module(code.program, owner, module)}
    methods = {name for name, all_of in code.program.methods.items() if all(owner in models for _, owner, _ in all_of)}
    fields = {
        name
        for name, stores in code.program.attribute_stores.items()
        if all(spelled(store.value) == "self" and class_around(store, home) in models for home, store in stores)
    }
    return (methods | fields) - OWN_NAMES


def _is_of_own_model(code: Code, name: ast.Name, module: Module) -> bool:
    """Return whether a variable was surely set to an object of a model of the program, before `prepare` got it."""
    if given := given_names(code, name, module):
        return all(isinstance(one, ast.Name) and _is_of_own_model(code, one, home) for home, one in given)
    stores = module.stores.get((module.scope_of(name), name.id), ())
    values = [assigned_to(store, module) for store in stores if code.reached.of(store, module)]
    objects = [made(code.program, value, module) for value in values if value is not None]
    return bool(objects) and all(
        one is not None and is_torch_module(code.program, one.owner, one.home) for one in objects
    )


def _trains_unwrapped(code: Code) -> Iterator[Finding]:
    """Yield a warning for a step that calls what `unwrap_model` returned: nothing averages its gradients."""
    for module, call, _ in code.reached.calls if "unwrap_model" in code.names else ():
        made = _unwrapping(call.func, module) if call.args or call.keywords else None
        if made is None:
            continue
        around = "\n".join(_conditions(call, module))
        block = next((above for above in module.above(call) if isinstance(above, (ast.If, ast.For, ast.While))), call)
        uses_wrapper = any(
            isinstance(one, ast.Call) and unparsed(one.func) == unparsed(made.args[0])
            for statement in (block.body if isinstance(block, ast.If) else [block])
            for one in walk(statement)
        )
        if _is_of_training(code, call, module) and not uses_wrapper and not _WITHOUT_GRADIENTS.search(around):
            yield Finding(
                "warning",
                "bypassed",
                module.where(call),
                f"{unparsed(call.func)} is the model inside the wrapper: the gradients are not averaged, and each "
                "process trains a model of its own",
                f"call {unparsed(made.args[0])}",
            )
            return


def _unwrapping(model: ast.expr, module: Module) -> ast.Call | None:
    """Return the call of `unwrap_model` that a model is, or that its variable was set to."""
    is_unwrapped = isinstance(model, ast.Name) and any(map(_unwraps, module.assigned_calls.get(model.id, ())))
    made = last_value(model, module) if is_unwrapped else model  # type: ignore[arg-type] # it is a name
    return made if isinstance(made, ast.Call) and _unwraps(made) else None


def _is_of_training(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether the function around a node computes gradients, or one that calls it with gradients does."""
    function = module.function_of(node)
    if trains(module.scope_of(node)) or function is None or depth > _DEEPEST:
        return trains(module.scope_of(node))
    calls = ((home, one) for home, one, _ in code.reached.calls if _calls_by_name(one, function.name))
    return any(
        not without_gradients(one, home) and _is_of_training(code, one, home, depth + 1)
        for home, one in calls
        if home.function_of(one) is not function
    )


def _calls_by_name(call: ast.Call, name: str) -> bool:
    """Return whether a call is one of a function or of a method with a name."""
    return (call.func.attr if isinstance(call.func, ast.Attribute) else spelled(call.func)) == name


def _unwraps(call: ast.Call) -> bool:
    return spelled(call.func).endswith("unwrap_model") and bool(call.args)


def _conditions(node: ast.AST, module: Module) -> Iterator[str]:
    """Yield the conditions and the contexts that a node is in."""
    for above in module.above(node):
        if isinstance(above, ast.If):
            yield unparsed(above.test)
        elif isinstance(above, ast.With):
            yield from (unparsed(item.context_expr) for item in above.items)


def _is_asked_first(node: ast.Attribute, module: Module) -> bool:
    """Return whether a condition about the model, or about the kind of wrapper, decides whether it is asked."""
    tests = [unparsed(above.test) for above in module.above(node) if isinstance(above, (ast.If, ast.IfExp))]
    return any(
        word in test for test in tests for word in (spelled(node.value), "distributed_type", "fsdp", "deepspeed")
    )
