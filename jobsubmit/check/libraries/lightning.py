"""Trainers and data modules of Lightning that do not fit the job."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from jobsubmit.check.code import Code, is_count
from jobsubmit.check.libraries.fabric import check_fabric
from jobsubmit.check.libraries.lightning_figures import check_figures, check_figures_of_zero
from jobsubmit.check.libraries.lightning_samplers import check_samplers
from jobsubmit.check.libraries.lightning_settings import TRAINERS, files_named, settings_of_cli, trainer_composed
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, is_of_self, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_DECLARES_TRAINER = frozenset(["add_argparse_args", "from_argparse_args"])
_OLD_DEVICES = ("num_processes", "gpus")  # of Lightning 1
_DATA_MODULES = ("LightningDataModule", "LightningModule")
_MODEL_AND_DATA = 2  # arguments of LightningCLI
# Its arguments that leave the settings of the Trainer to the command line.
_KEEP_NUMBERS = frozenset(
    [
        *("model_class", "datamodule_class", "seed_everything_default", "save_config_kwargs", "save_config_callback"),
        *("run", "trainer_defaults", "subclass_mode_model", "subclass_mode_data", "auto_configure_optimizers"),
    ]
)
_OF_CLUSTERS = frozenset(["plugins"])  # arguments that may say how processes find each other
_LIGHTNING = ("lightning.", "pytorch_lightning.")
_CHANGES = ("append", "extend", "insert", "add", "update", "setdefault")


def check_lightning(code: Code, read: Callable[[str], str], *, is_by_fabric: bool) -> Iterator[Finding]:
    """Yield numbers of nodes that Lightning refuses, and state that only some processes set.

    `read` returns the text of a file of the job. If Fabric's own launcher starts the program (`is_by_fabric`), it gives
    it the number of nodes.
    """
    nodes = [] if is_by_fabric else list(_nodes_of_lightning(code, read))
    yield from nodes
    yield from _devices_of_lightning(code, read) if not nodes and not is_by_fabric else ()
    yield from check_fabric(code) if not is_by_fabric else ()
    yield from _nodes_of_arguments(code)
    yield from _nodes_composed(code)
    if {"LightningCLI"} & code.names and (code.facts.has_launcher or code.facts.mode == "command"):
        yield from _nodes_in_configuration(code, read)
    yield from _prepared_by_one(code)
    yield from check_samplers(code, read)
    yield from check_figures(code)
    yield from check_figures_of_zero(code)


def _nodes_of_lightning(code: Code, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a warning for another number of nodes than the job has: Lightning compares it with the launcher's."""
    if code.values.composed is not None and code.values.composed.refused:
        return  # an override may be what was to set it
    trainers = [(module, call, name) for module, call, name in code.reached.calls if _is_trainer(code, name)]
    for module, call, name in trainers:
        nodes, devices = _nodes_given(code, call, module, read), code.values.of(argument(call, "devices"), module)
        has_strategy = argument(call, "strategy") is not None
        if _is_whole(code, nodes, devices) or (
            name.endswith("Trainer") and not code.program.calls_of_attribute.get("fit")
        ):
            continue  # only the product counts; and what does not train may be alone
        if is_count(nodes) and nodes != code.facts.nodes:
            is_plain = name in TRAINERS and len(trainers) == 1 and not _OF_CLUSTERS & {one.arg for one in call.keywords}
            is_certain = is_plain and not hides_arguments(call) and (is_count(devices) or not code.facts.has_launcher)
            yield Finding(
                code.level_of(call, module) if is_certain else "warning",
                "lightning-nodes",
                module.where(call),
                f"num_nodes of {spelled(call.func)}() is {nodes}, and the job has {code.facts.nodes}: "
                f"{_what_happens(code, nodes, devices, has_strategy=has_strategy)}",
                _how_to_count(code, call, module),
            )
            return


def _what_happens(code: Code, nodes: int, devices: Any, *, has_strategy: bool = False) -> str:
    """Return what Lightning does with another number of nodes than the job has.

    Source: `TorchElasticEnvironment.validate_settings` of Lightning 2.6 compares the product with the number of
    processes, but a Trainer with one device on one node does not ask; without a launcher, `LightningEnvironment` waits.
    """
    if not code.facts.has_launcher:
        return (
            "each node would train alone"
            if nodes < code.facts.nodes
            else "its processes would wait for nodes that do not exist"
        )
    if nodes == devices == 1 and not has_strategy:
        return "each process would train alone"
    is_refused = is_count(devices) and nodes * devices != code.world_size
    return "Lightning refuses that" if is_refused else "the job would fail, or each process would train alone"


def _how_to_count(code: Code, call: ast.Call, module: Module) -> str:
    """Return what to give a Trainer, also its number of devices where that does not fit: Lightning compares both."""
    devices = code.values.of(argument(call, "devices"), module)
    if is_count(devices) and code.processes and devices != code.processes:
        if not code.facts.has_launcher:
            return 'pass num_nodes=int(os.environ["NNODES"]) and devices=int(os.environ["NPROC_PER_NODE"])'
        return 'pass num_nodes=int(os.environ["NNODES"]) and devices=int(os.environ["LOCAL_WORLD_SIZE"])'
    return 'pass num_nodes=int(os.environ["NNODES"])'


def _is_whole(code: Code, nodes: Any, devices: Any) -> bool:
    """Return whether the product is the number of a launcher's processes: on CPUs nothing else counts."""
    is_on_cpus = code.facts.has_launcher and code.facts.gpus == 0
    return is_on_cpus and is_count(nodes) and is_count(devices) and nodes * devices == code.world_size


def _devices_of_lightning(code: Code, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a warning where no Trainer gets as many devices as a node has processes; on CPUs the default is one.

    Source: `TorchElasticEnvironment.validate_settings` and `CPUAccelerator.auto_device_count` of Lightning 2.6.
    """
    if not code.facts.has_launcher or not code.processes:
        return
    found: list[Finding] = []
    for module, call, name in code.reached.calls:
        if name not in TRAINERS or not name.endswith("Trainer"):
            continue
        given, devices = argument(call, "devices"), _devices_given(code, call, module)
        if not is_count(devices) or devices <= 0 or devices == code.processes:
            return
        if not code.program.calls_of_attribute.get("fit"):
            return
        if _is_whole(code, _nodes_given(code, call, module, read), devices):
            return
        said = f"devices of {spelled(call.func)}() is {devices}, and a node of the job has {code.processes} processes"
        if given is None:
            said = "without `devices`, Lightning starts no more than one process on each node without GPUs"
        found.append(
            Finding(
                "warning",
                "lightning-devices",
                module.where(call),
                f"{said}: the job would fail, or each process would train alone",
                'pass devices=int(os.environ["LOCAL_WORLD_SIZE"])',
            )
        )
    yield from found[:1]


def _devices_given(code: Code, call: ast.Call, module: Module) -> Any:
    """Return the number of devices of a Trainer; UNKNOWN where that is not clear."""
    if hides_arguments(call) or any(one.arg in _OLD_DEVICES for one in call.keywords):
        return UNKNOWN
    if (given := argument(call, "devices")) is not None:
        return code.values.of(given, module)
    return 1 if code.facts.gpus == 0 else UNKNOWN


def _nodes_given(code: Code, call: ast.Call, module: Module, read: Callable[[str], str]) -> Any:
    """Return the number of nodes that a call gives, itself or in a mapping (`**cfg.trainer`); else its default."""
    if (given := argument(call, "num_nodes")) is not None:
        value = code.values.of(given, module)
        return _nodes_configured(code, given, read) if value is UNKNOWN else value
    settings = [code.values.of(keyword.value, module) for keyword in call.keywords if keyword.arg is None]
    if any(isinstance(one, ast.Starred) for one in call.args) or not all(isinstance(one, dict) for one in settings):
        return UNKNOWN if _may_name_nodes(code) else 1
    return next((one["num_nodes"] for one in settings if "num_nodes" in one), 1)


def _nodes_configured(code: Code, given: ast.expr, read: Callable[[str], str]) -> Any:
    """Return the number of a setting such as `config.num_nodes` in the files of a loader that is not followed.

    It is known if no argument and no code sets it, and the files that the arguments name, or prefigure reads, say 1.
    """
    match given:
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            default = UNKNOWN
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *rest]):
            default = rest[0].value if rest and isinstance(rest[0], ast.Constant) else UNKNOWN
        case _:
            return UNKNOWN
    is_set = name in code.program.attribute_stores or any(
        isinstance(node.ctx, ast.Store) and getattr(node.slice, "value", None) == name
        for _, node in code.program.of(ast.Subscript)
    )
    if is_set or name in " ".join(code.facts.argv).replace("-", "_"):
        return UNKNOWN
    files = files_named(code, (".yaml", ".yml", ".json", ".ini"))
    files += ["defaults.ini"] if code.program.imports("prefigure") else []
    found = [one for file in files for one in re.findall(rf"(?m)^\W*{name}\W*[:=]\s*(\d+)\b", read(file))]
    if found:
        return 1 if {*found} == {"1"} else UNKNOWN  # a graph may have nodes, too
    return default if files and name not in code.program.configured_names else UNKNOWN


def _may_name_nodes(code: Code) -> bool:
    """Return whether the program, a configuration or an argument names a number of nodes for the Trainer."""
    given = " ".join(code.facts.argv)
    return "num_nodes" in (code.names | code.program.configured_names) or "num_nodes" in given


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


def _nodes_composed(code: Code) -> Iterator[Finding]:
    """Yield a warning for another number of nodes in Hydra's configuration of the Trainer, or for none in it."""
    composed = code.values.composed
    found = trainer_composed(code)
    is_set = "num_nodes" in code.texts or any(keyword.arg == "num_nodes" for _, keyword in code.program.of(ast.keyword))
    if found is None or is_set or (composed is not None and composed.refused):
        return
    if not code.facts.has_launcher and code.facts.mode != "command":
        return
    name, nodes = found[0], found[1].get("num_nodes", 1)
    if is_count(nodes) and nodes != code.facts.nodes:
        sign = "" if "num_nodes" in found[1] else "+"
        yield Finding(
            "warning",
            "lightning-nodes",
            "args",
            f"{name}.num_nodes is {nodes}, and the job has {code.facts.nodes}: "
            f"{_what_happens(code, nodes, found[1].get('devices', UNKNOWN))}",
            f"pass {sign}{name}.num_nodes={code.facts.nodes}",
        )


def _is_trainer(code: Code, name: str) -> bool:
    """Return whether a name is Lightning's Trainer, or a class of the program that inherits from LightningLite."""
    found = code.program.definition(name)
    bases = [spelled(base) for base in found[1].bases] if found and isinstance(found[1], ast.ClassDef) else []
    return name in TRAINERS or any(base.endswith(("LightningLite", "Fabric")) for base in bases)


def _nodes_in_configuration(code: Code, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield what LightningCLI gives its Trainer and the nodes do not have: numbers of nodes or devices, or GPUs."""
    if any(word.partition("=")[0] in ("--trainer", "-h", "--help") for word in code.facts.argv):
        return
    if "trainer.num_nodes" in code.texts or "default_config_files" in code.names | {
        str(keyword.arg) for _, keyword in code.program.of(ast.keyword)
    }:
        return
    settings = settings_of_cli(code, read)
    accelerator, place = settings.get("accelerator", (None, ""))
    if accelerator in ("gpu", "cuda") and code.facts.gpus == 0:
        yield Finding(
            "error" if _has_plain_cli(code) else "warning",
            "cuda-on-cpu",
            place,
            f"trainer.accelerator is {accelerator}, which needs a GPU, but {code.facts.no_gpus}",
            "pass --trainer.accelerator=auto, or request GPUs in `backend`",
        )
    numbers = [settings.get(name, (None, ""))[0] for name in ("num_nodes", "devices")]
    if code.facts.has_launcher and all(map(is_count, numbers)) and numbers[0] * numbers[1] == code.world_size:  # type: ignore[operator]
        return  # Lightning compares only the product
    wanted = {"num_nodes": code.facts.nodes, "devices": code.processes if code.facts.has_launcher else None}
    given = {name: settings.get(name, (None, "")) for name in wanted}
    wrong = [name for name, (value, _) in given.items() if is_count(value) and wanted[name] and value != wanted[name]]
    if wrong:
        value, place = given[wrong[0]]
        yield Finding(
            "error" if _has_plain_cli(code) else "warning",
            "lightning-nodes",
            place,
            f"trainer.{wrong[0]} is {value}, and the job has {wanted[wrong[0]]}: Lightning refuses that, or each "
            "process trains alone",
            f"pass {' '.join(f'--trainer.{name}={wanted[name]}' for name in wrong)} to the program",
        )


def _has_plain_cli(code: Code) -> bool:
    """Return whether the program surely makes Lightning's own CLI, whose Trainer gets what the job gives it."""
    makes_own = any(name in TRAINERS for _, _, name in code.reached.calls)
    return not makes_own and any(
        name.startswith(_LIGHTNING)
        and name.endswith(".LightningCLI")
        and code.reached.is_sure(call, module)
        and len(call.args) <= _MODEL_AND_DATA
        and {str(keyword.arg) for keyword in call.keywords} <= _KEEP_NUMBERS
        for module, call, name in code.reached.calls
    )


def _prepared_by_one(code: Code) -> Iterator[Finding]:
    """Yield a warning for state that prepare_data sets: Lightning calls it in one process of each node only."""
    for module, owner in code.program.of(ast.ClassDef):
        if not any(unparsed(base).rpartition(".")[2] in _DATA_MODULES for base in owner.bases):
            continue
        by_all = {name for one in _methods(owner, "setup") for name in _called_in(one)}
        for method in _methods(owner, "prepare_data") if "self.prepare_data" not in by_all else ():
            for node in filter(is_of_self, map(_changed, _with_own_methods(method, owner, by_all))):
                yield Finding(
                    "warning",
                    "prepared-by-one",
                    module.where(node),
                    f"prepare_data sets {unparsed(node)}, and only one process of each node calls prepare_data",
                    "set it in setup(), which every process calls",
                )
                return


def _methods(owner: ast.ClassDef, name: str) -> list[ast.FunctionDef]:
    return [one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == name]


def _called_in(method: ast.FunctionDef) -> set[str]:
    return {spelled(node.func) for node in walk(method) if isinstance(node, ast.Call)}


def _with_own_methods(method: ast.FunctionDef, owner: ast.ClassDef, by_all: set[str]) -> Iterator[ast.AST]:
    """Yield the nodes of a method, and of those of its class that it calls, and that are not called `by_all`."""
    called = _called_in(method) - by_all
    yield from walk(method)
    for one in owner.body:
        if isinstance(one, ast.FunctionDef) and f"self.{one.name}" in called:
            yield from walk(one)


def _changed(node: ast.AST) -> ast.AST:
    """Return what a node sets, or changes in place: `self.x` of `self.x = 1`, `self.x[i] = 1`, `self.x.append(1)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return node.func.value
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return node.value
    return node if isinstance(getattr(node, "ctx", None), ast.Store) else ast.Pass()
