"""Libraries that place processes themselves, used or configured in a way that does not fit the job."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeGuard

from jobsubmit.check.code import ACCELERATOR, Code, is_count
from jobsubmit.check.loading.sampler import LOADERS
from jobsubmit.check.origins import keywords_of, last_value, origins
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.configuration import parse_text
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.variables import assigned_to
from jobsubmit.common.finding import Finding

_TRAINERS = tuple(
    f"{package}.Trainer"
    for package in ("lightning", "lightning.pytorch", "pytorch_lightning", "lightning.pytorch.trainer")
)
_DECLARES_TRAINER = frozenset(["add_argparse_args", "from_argparse_args"])
_DATA_MODULES = ("LightningDataModule", "LightningModule")
_OTHER_WRAPPERS = ("fsdp_plugin", "deepspeed_plugin", "megatron_lm_plugin", "parallelism_config")
_OF_MODELS = (
    *("save_pretrained", "generate", "config", "push_to_hub", "resize_token_embeddings", "num_parameters"),
    *("get_input_embeddings", "gradient_checkpointing_enable", "merge_and_unload"),
)
_SPREADS = ("auto", "balanced", "sequential")
_STEPS = ("gradient_accumulation_steps", "gradient_accumulation_plugin", "deepspeed_plugin")
_FILLED_FROM = ("", "per_device_train_batch_size", "gradient_accumulation_steps")  # by transformers' HfDeepSpeedConfig
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_OF_ACCELERATOR = re.compile(r"accelerator\.\w+\(|prepare\w*\(|skip_first_batches")
_OF_VALIDATION = re.compile(r"val|test|eval|dev")
_MOVES = re.compile(r"\.to\(|\.cuda\(|to_device|device")
_CHANGES = ("append", "extend", "insert", "add", "update", "setdefault")
_SHOWS = ("tqdm", "trange", "track", "progress_bar", "enumerate", "iter")
_NOT_TRAINING = re.compile(r"val|test|eval|dev|infer|predict|sample|cache|latent")


def check_frameworks(code: Code, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield what Lightning and DeepSpeed refuse, and loaders that Accelerate does not divide among the processes.

    `read` returns the text of a file of the job.
    """
    yield from _nodes_of_lightning(code)
    yield from _nodes_of_arguments(code)
    if {"LightningCLI"} & code.names and code.facts.has_launcher:
        yield from _nodes_in_configuration(code, read)
    yield from _prepared_by_one(code)
    if code.program.imports("deepspeed", "transformers", "accelerate"):
        yield from _batches_of_deepspeed(code, read)
    if code.world_size != 1:
        yield from _not_prepared(code)
        yield from _spread_over_all(code)
    yield from _never_accumulated(code)
    if code.facts.has_launcher and code.is_parallel:
        yield from _asked_of_wrapper(code)


def _nodes_of_lightning(code: Code) -> Iterator[Finding]:
    """Yield a warning for another number of nodes than the job has: Lightning compares it with the launcher's."""
    for module, call, name in code.reached.calls:
        given = argument(call, "num_nodes")
        if not _is_trainer(code, name) or hides_arguments(call) or not code.facts.has_launcher:
            continue
        nodes = 1 if given is None else code.values.of(given, module)
        if is_count(nodes) and nodes != code.facts.nodes:
            yield Finding(
                "warning",
                "lightning-nodes",
                module.where(call),
                f"num_nodes of the Trainer is {nodes}, and the job has {code.facts.nodes}: Lightning refuses that",
                'pass num_nodes=int(os.environ["NNODES"])',
            )
            return


def _nodes_of_arguments(code: Code) -> Iterator[Finding]:
    """Yield a warning for another number of nodes in the arguments that Lightning's Trainer declares itself."""
    if not _DECLARES_TRAINER & code.names or not code.program.imports("lightning", "pytorch_lightning"):
        return
    for before, word in pairwise(("", *code.facts.argv)):
        name, _, value = word.partition("=") if "=" in word else (before, "", word)
        if name == "--num_nodes" and value.isdecimal() and int(value) != code.facts.nodes:
            yield Finding(
                "warning",
                "lightning-nodes",
                "command" if code.facts.mode == "command" else "args",
                f"--num_nodes of the Trainer is {value}, and the job has {code.facts.nodes}: the processes of the "
                "other nodes have no place in it",
                f"pass --num_nodes {code.facts.nodes}",
            )
            return


def _is_trainer(code: Code, name: str) -> bool:
    """Return whether a name is Lightning's Trainer, or a class of the program that inherits from LightningLite."""
    found = code.program.definition(name)
    bases = [spelled(base) for base in found[1].bases] if found and isinstance(found[1], ast.ClassDef) else []
    return name in _TRAINERS or any(base.endswith(("LightningLite", "Fabric")) for base in bases)


def _nodes_in_configuration(code: Code, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a warning for numbers of nodes or devices in the configurations of LightningCLI that are not the job's."""
    words = [word.partition("=")[2] or word for word in code.facts.argv]
    files = [word for word in words if word.endswith((".yaml", ".yml"))]
    settings: dict[str, tuple[object, str]] = {"num_nodes": (1, files[0] if files else "")}
    for file in files:
        trainer = _mapping(read(file)).get("trainer")
        for name, value in trainer.items() if isinstance(trainer, dict) else ():
            settings[name] = (value, file)
    is_overridden = any("trainer.num_nodes" in word or "trainer.devices" in word for word in code.facts.argv)
    for name, wanted in (("num_nodes", code.facts.nodes), ("devices", code.processes)):
        value, file = settings.get(name, (None, ""))
        if files and not is_overridden and is_count(value) and wanted and value != wanted:
            yield Finding(
                "warning",
                "lightning-nodes",
                file,
                f"trainer.{name} is {value}, and the job has {wanted}: Lightning refuses that",
                f"pass --trainer.{name}={wanted} in `args`",
            )
            return


def _mapping(text: str) -> dict[str, object]:
    """Return what a YAML text says, if it is a mapping."""
    found = parse_text(text)
    return found if isinstance(found, dict) else {}


def _prepared_by_one(code: Code) -> Iterator[Finding]:
    """Yield a warning for state that prepare_data sets: Lightning calls it in one process of each node only."""
    for module, owner in code.program.of(ast.ClassDef):
        if not any(ast.unparse(base).rpartition(".")[2] in _DATA_MODULES for base in owner.bases):
            continue
        for method in (
            node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "prepare_data"
        ):
            for node in filter(_is_own_state, map(_changed, _with_own_methods(method, owner))):
                yield Finding(
                    "warning",
                    "prepared-by-one",
                    module.where(node),
                    f"prepare_data sets {ast.unparse(node)}, and only one process of each node calls prepare_data",
                    "set it in setup(), which every process calls",
                )
                return


def _with_own_methods(method: ast.FunctionDef, owner: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield the nodes of a method, and of those of its class that it calls and that setup() does not."""
    setups = [one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == "setup"]
    others = {spelled(node.func) for one in setups for node in ast.walk(one) if isinstance(node, ast.Call)}
    called = {spelled(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)} - others
    yield from ast.walk(method)
    for one in owner.body:
        if isinstance(one, ast.FunctionDef) and f"self.{one.name}" in called:
            yield from ast.walk(one)


def _changed(node: ast.AST) -> ast.AST:
    """Return what a node sets, or changes in place: `self.x` of `self.x = 1`, `self.x[i] = 1`, `self.x.append(1)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return node.func.value
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return node.value
    return node if isinstance(getattr(node, "ctx", None), ast.Store) else ast.Pass()


def _is_own_state(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _batches_of_deepspeed(code: Code, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield an error for sizes of batches that do not fit the number of processes: DeepSpeed refuses them.

    Source: DeepSpeedConfig._batch_assertion.
    """
    words = [word.partition("=")[2] or word for word in code.facts.argv]
    settings = {**_settings(words, read), **code.values.arguments}
    texts = (*words, *sorted(code.texts), *settings.values())
    names = dict.fromkeys(name for name in texts if isinstance(name, str) and name.endswith(".json"))
    of_files = ((name, _batch_sizes(settings, read(name))) for name in names)
    for where, (total, *parts) in (*of_files, *_batches_in_code(code)) if code.world_size else ():
        known = [part for part in parts if part]
        product = math.prod((*known, code.world_size or 1))
        if not total or (total == product if len(known) == len(parts) else total % product == 0):
            continue
        given = " * ".join(map(str, (*known, code.world_size)))
        text = f"train_batch_size is {total}, but {given} processes are {product}: DeepSpeed refuses that"
        hint = f"set train_batch_size: {product}, or leave it out"
        if len(known) < len(parts):
            text = f"train_batch_size is {total}, which {given} processes cannot share equally: DeepSpeed refuses that"
            hint = f"make it a multiple of {product}"
        yield Finding("error", "deepspeed-batch", where, text, hint)
        return


def _batches_in_code(code: Code) -> Iterator[tuple[str, list[int]]]:
    """Yield the three sizes of each dictionary of the program that has them and is not changed, and where it is."""
    keys = (node.slice for _, node in code.program.of(ast.Subscript) if isinstance(node.ctx, ast.Store))
    if not code.program.imports("deepspeed") or any(getattr(key, "value", None) in _BATCHES for key in keys):
        return
    for module, node in code.program.of(ast.Dict):
        items = {getattr(key, "value", None): value for key, value in zip(node.keys, node.values, strict=True)}
        if _BATCHES[0] in items and code.reached.of(node, module):
            sizes = [code.values.of(items.get(name), module) for name in _BATCHES]
            yield module.where(node), [size if is_count(size) else 0 for size in sizes]


def _settings(words: Iterable[str], read: Callable[[str], str]) -> dict[str, Any]:
    """Return the arguments in a YAML file that the words name, as HfArgumentParser reads it."""
    parsed = [parse_text(read(word)) for word in words if word.endswith((".yaml", ".yml"))]
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


def _not_prepared(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader of the training that is not given to Accelerator.prepare."""
    if not any(code.calls(ACCELERATOR)):
        return
    prepares = [call for _, call, _ in code.reached.calls if _is_prepare(call)]
    given = {ast.unparse(arg) for call in prepares for arg in call.args}
    if not prepares or any(hides_arguments(call) for call in prepares):
        return
    for module, loop in code.program.of(ast.For):
        loader = _looped(loop.iter, module)
        name = spelled(loader) if loader is not None else ""
        if loader is None or _NOT_TRAINING.search(name) or name in given or not _accelerates(loop):
            continue
        made = next((part for home, part in origins(code, loader, module) if _is_loader(code, part, home)), None)
        if made is not None and not _is_prepared(code, loader, module):
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
    for module, loop in code.program.of(ast.For):
        loader = _looped(loop.iter, module)
        is_other = loader is not None and spelled(loader) not in given and _OF_VALIDATION.search(spelled(loader))
        if loader is None or not is_other or code.facts.gpus == 0 or not code.reached.of(loop, module):
            continue
        body = "\n".join(map(ast.unparse, loop.body))
        calls_model = any(re.search(rf"\b{re.escape(name)}\(", body) for name in given)
        is_loader = any(_is_loader(code, part, home) for home, part in origins(code, loader, module))
        if calls_model and is_loader and not _MOVES.search(body) and not _is_prepared(code, loader, module):
            name = spelled(loader)
            yield Finding(
                "warning",
                "not-prepared",
                module.where(_set_at(loader, module) or loop),
                f"{name} is not given to accelerator.prepare: its batches stay on the CPU, and the model is on a GPU",
                f"pass it as well: {name} = accelerator.prepare({name})",
            )
            return


def _looped(iterated: ast.expr, module: Module) -> ast.Name | ast.Attribute | None:
    """Return the variable that a loop goes through, also in `enumerate(tqdm(loader))` or a variable set to that."""
    while isinstance(iterated, ast.Call) and iterated.args and _is_shown(iterated):
        iterated = iterated.args[0]
    if isinstance(iterated, ast.Attribute) and spelled(iterated.value) == "self":
        return iterated
    if not isinstance(iterated, ast.Name):
        return None
    made = last_value(iterated, module)
    return _looped(made, module) if isinstance(made, ast.Call) and _is_shown(made) else iterated


def _is_shown(call: ast.Call) -> bool:
    """Return whether a call only goes through what it is given: `enumerate(loader)`, `tqdm(loader)`."""
    return ast.unparse(call.func).rpartition(".")[2] in _SHOWS


def _accelerates(loop: ast.For) -> bool:
    """Return whether a loop trains by Accelerate's backward, or yields the data to what trains."""
    nodes = list(ast.walk(loop))
    is_training = any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in nodes)
    return is_training or any(isinstance(node, ast.Yield) for node in nodes)


def _is_loader(code: Code, part: ast.AST, module: Module) -> bool:
    """Return whether an expression makes a loader, itself or in a function of the program that it calls."""
    if not isinstance(part, ast.Call):
        return False
    name = code.program.name_of(part.func, module)
    found = code.program.definition(name)
    if name in LOADERS or found is None or isinstance(found[1], ast.ClassDef):
        return name in LOADERS
    calls = (node for node in ast.walk(found[1]) if isinstance(node, ast.Call))
    return any(code.program.name_of(call.func, found[0]) in LOADERS for call in calls)


def _is_prepared(code: Code, loader: ast.Name | ast.Attribute, module: Module) -> bool:
    """Return whether a variable or an attribute is set by prepare, or by another method of the accelerator."""
    if isinstance(loader, ast.Name):
        stores = module.stores.get((module.scope_of(loader), loader.id), ())
        statements = [above for store in stores for above in module.above(store) if isinstance(above, ast.Assign)]
        return any(_OF_ACCELERATOR.search(ast.unparse(one.value)) for one in statements)
    for home, target in code.program.attribute_stores.get(loader.attr, ()):
        value = assigned_to(target, home)
        statement = next((above for above in home.above(target) if isinstance(above, ast.Assign)), None)
        if statement is not None and _OF_ACCELERATOR.search(ast.unparse(statement.value)):
            return True
        if isinstance(value, ast.Name) and _is_prepared(code, value, home):
            return True
    return False


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


def _may_be(code: Code, node: ast.expr, module: Module) -> list[Any]:
    """Return the values that an expression may have by a condition, if it is not known which one."""
    if isinstance(node, ast.IfExp) and code.values.truth(node.test, module) is None:
        return [*_may_be(code, node.body, module), *_may_be(code, node.orelse, module)]
    return [code.values.of(node, module)]


def _never_accumulated(code: Code) -> Iterator[Finding]:
    """Yield a warning where Accelerate is to accumulate gradients, but no step uses `accumulate`."""
    if {"accumulate", "no_sync"} & code.names:
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


def _is_prepare(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("prepare", "prepare_data_loader")


def _accumulates_nothing(code: Code) -> Iterator[Finding]:
    """Yield a warning for steps that `accumulate` is to save up where the Accelerator does not know how many."""
    wanted = code.values.arguments.get("gradient_accumulation_steps")
    uses = [call for _, call, _ in code.reached.calls if getattr(call.func, "attr", "") == "accumulate"]
    if not uses or code.facts.mode == "command" or not isinstance(wanted, int) or wanted <= 1:
        return
    for module, call in code.calls(ACCELERATOR):
        if not {keyword.arg for keyword in call.keywords} & {*_STEPS, None}:
            yield Finding(
                "warning",
                "never-accumulated",
                module.where(call),
                "accelerator.accumulate() has no effect: the Accelerator does not get gradient_accumulation_steps, "
                "which is 1 by default",
                "pass it: Accelerator(gradient_accumulation_steps=…)",
            )
            return


def _asked_of_wrapper(code: Code) -> Iterator[Finding]:
    """Yield a warning for a method of a model that is asked of what `prepare` returned: DistributedDataParallel."""
    made = [call for _, call in code.calls(ACCELERATOR)]
    if not made or any({keyword.arg for keyword in call.keywords} & {*_OTHER_WRAPPERS, None} for call in made):
        return
    for module, node in code.program.of(ast.Attribute):
        if node.attr not in _OF_MODELS or not isinstance(node.value, ast.Name) or not code.reached.of(node, module):
            continue
        stores = [
            one for one in module.stores.get((module.scope_of(node), node.value.id), ()) if one.lineno < node.lineno
        ]
        last = max(stores, key=lambda store: store.lineno, default=None)
        if last is None or not _is_prepared_model(last, module) or _is_asked_first(node, module):
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


def _is_prepared_model(store: ast.Name, module: Module) -> bool:
    """Return whether a variable is set by `model, optimizer = accelerator.prepare(model, optimizer)`."""
    above = module.parents.get(store)
    statement = module.parents.get(above) if isinstance(above, ast.Tuple) else above
    call = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(call, ast.Call) or not _is_prepare(call):
        return False
    place = above.elts.index(store) if isinstance(above, ast.Tuple) else 0
    return place < len(call.args) and spelled(call.args[place]) == store.id


def _is_asked_first(node: ast.Attribute, module: Module) -> bool:
    """Return whether a condition about the model, or about the kind of wrapper, decides whether it is asked."""
    tests = [ast.unparse(above.test) for above in module.above(node) if isinstance(above, (ast.If, ast.IfExp))]
    return any(
        word in test for test in tests for word in (spelled(node.value), "distributed_type", "fsdp", "deepspeed")
    )
