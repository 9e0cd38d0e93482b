"""A user's code, analyzed once for all checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.arguments import Word
from jobsubmit.check.interpreter.follow import Followed, follow_processes, observe
from jobsubmit.check.interpreter.memory import MORE
from jobsubmit.check.interpreter.trace import Event, Observed
from jobsubmit.check.parsers.accepted import CommandLine, Option
from jobsubmit.check.parsers.argparse.observed import with_observed
from jobsubmit.check.parsers.find import find_command_line
from jobsubmit.check.program.calls import SPAWNS, Reach, argument, hides_arguments
from jobsubmit.check.program.configuration import parse_text, read_text
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.hydra import Composed, compose
from jobsubmit.check.program.in_use import classes_in_use, names_in_use
from jobsubmit.check.program.lookups import names_looked_up
from jobsubmit.check.program.module import FUNCTIONS, Module, class_around, imported_names, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN, lifted
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached, explore
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.values import Values
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Level

# They start, place or synchronise processes themselves, in ways that no look at the script shows.
_FRAMEWORKS = (
    "accelerate",
    "colossalai",
    "composer",
    "deepspeed",
    "detectron2",
    "fairscale",
    "fastai",
    "horovod",
    "ignite",
    "lightning",
    "lightning_fabric",
    "mmcv",
    "mmengine",
    "pytorch_lightning",
    "ray",
    "torchtitan",
    "trl",
)
# Of these, a program that makes its group and its wrapper itself may use helpers only, unless it names these.
_OF_LAYERS: Mapping[str, frozenset[str]] = {
    "accelerate": frozenset(["Accelerator", "AcceleratorState", "PartialState", "dispatch_model", "notebook_launcher"]),
    "detectron2": frozenset(["DefaultTrainer", "create_ddp_model", "launch"]),
    "fairscale": frozenset(["FullyShardedDataParallel", "OSS", "ShardedDataParallel"]),
    "ignite": frozenset(["Parallel", "auto_model", "auto_dataloader", "auto_optim", "idist"]),
    **dict.fromkeys(
        ("lightning", "pytorch_lightning", "lightning_fabric"),
        frozenset(["Trainer", "Fabric", "LightningLite", "LightningCLI"]),
    ),
    "mmcv": frozenset(["MMDistributedDataParallel", "EpochBasedRunner", "build_runner"]),
    "mmengine": frozenset(["MMDistributedDataParallel", "Runner"]),
}
_OF_OTHERS = re.compile(
    r"rank|world|distribut|ddp|fsdp|horovod|\bmpi|nccl|gloo|all_?reduce|xla|deepspeed", re.IGNORECASE
)
_PART_OF_MODEL = re.compile(r"^(?:tp|pp|cp|ep|mp)(?:_|$)|model_parallel|tensor_parallel|pipeline_parallel|device_mesh")
_CALL_BACK = frozenset([*_FRAMEWORKS, "transformers"])
_OF_MM = ("mmcv.", "mmengine.")
_MOST_STEPS = 100_000  # in which a program is followed, so that several processes are followed one by one
INIT = "torch.distributed.init_process_group"
MESHES = (
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.init_device_mesh",
)  # they make the group, too
ACCELERATOR = "accelerate.Accelerator"
LOADERS = (
    *("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"),
    *("torch_geometric.loader.DataLoader", "torch_geometric.data.DataLoader"),
    *("monai.data.DataLoader", "monai.data.ThreadDataLoader", "torchdata.stateful_dataloader.StatefulDataLoader"),
)
INIT_RPC = "torch.distributed.rpc.init_rpc"
FSDP = "FullyShardedDataParallel"
SHARDS = ("fully_shard", FSDP)
_ARGUMENTS = re.compile(r"(self\.)?_?(args|opts?|flags|cfg|conf|config|hparams|namespace|ns)\b", re.IGNORECASE)
SPAWN = "torch.multiprocessing.spawn"
_SPAWN_POSITION = 2
_PROCESSES = ("multiprocessing.Process", "multiprocessing.process.Process")
_STARTERS = frozenset(
    [
        "execv",
        "execve",
        "execvp",
        "execvpe",
        "execlp",
        "spawn",
        "Process",
        "start_processes",
        "ProcessPoolExecutor",
        "Popen",
        "subprocess",
        "fork",
        "system",
        "launch",
    ]
)

_CONFIGURATIONS = (".yaml", ".yml", ".json")
_PARTS_OF_MODELS = frozenset(  # with them, some processes train on the same data
    [
        *("PipelineModule", "deepspeed_io", "mpu", "tensor_parallel", "tensor_model_parallel_size"),
        *("sequence_parallel_size", "initialize_model_parallel"),
    ]
)
_SHARES_DATA = re.compile(r"tensor_parallel|sequence_parallel|autotp|pipeline")  # settings of DeepSpeed
_MOST_SETTINGS = 200  # files
INIT_OF_DEEPSPEED = "deepspeed.init_distributed"
_LAUNCHES_OF_DETECTRON = ("detectron2.engine.launch", "detectron2.engine.launch.launch")  # always with NCCL
_LOCAL_RANK = ("--local-rank", "--local_rank")
_INTEGERS = ("int", "absl_int")


@dataclass(frozen=True, eq=False)
class Code:
    """A program together with what a job does with it."""

    program: Program
    facts: Facts
    line: CommandLine
    reached: Reached
    values: Values
    observed: Observed

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Return the options that the program has, with those of the subcommand that is chosen."""
        chosen = self.line.chosen(self.facts.argv)
        return self.line.options if chosen is None else (*self.line.options, *chosen.options)

    @cached_property
    def followed(self) -> list[Followed]:
        """Return some processes of the job, each followed by itself, and what they do; none that start others."""
        return [] if any(one.is_nested for one in self.followed_all) else self.followed_all

    @cached_property
    def followed_whole(self) -> list[Followed]:
        """Return the same if all of them were followed to their ends; else none."""
        return self.followed if all(one.is_whole for one in self.followed) else []

    @cached_property
    def executed(self) -> frozenset[ast.AST] | None:
        """Return what the processes that were followed to their ends evaluate, or may; None if there are none.

        Of a loop, only some passes were followed: all of it that is reached counts, with the functions that it calls.
        """
        if not self.followed_whole:
            return None
        found = set[ast.AST]().union(*(one.values for one in self.followed_whole))
        waiting: list[tuple[Module, ast.AST]] = [
            (module, loop)
            for module, loop in self.program.of(ast.For, ast.While)
            if not found.isdisjoint(node for statement in loop.body for node in walk(statement))
        ]
        skipped = {function for one in self.followed_whole for function in one.skipped}
        functions = list(self.program.of(*FUNCTIONS))
        waiting += [(home, one) for home, one in functions if one in skipped or self._is_called_by_torch(one, home)]
        while waiting:
            module, around = waiting.pop()
            inside = [node for node in walk(around) if node not in found and self.reached.of(node, module)]
            found.update(inside)
            called = (self.program.called(node, module) for node in inside if isinstance(node, ast.Call))
            waiting += [one for one in called if one is not None]
        return frozenset(found)

    def _is_called_by_torch(self, function: ast.AST, module: Module) -> bool:
        """Return whether torch calls a method with gradients: of an autograd function, or of an own optimizer."""
        return any(
            base.startswith(("torch.autograd.", "torch.optim.")) for base in self._bases_around(function, module)
        )

    def _bases_around(self, node: ast.AST, module: Module) -> list[str]:
        """Return the whole names of what the class around a node is based on; nothing outside of classes."""
        owner = class_around(node, module)
        return [] if owner is None else [self.program.name_of(base, module) for base in owner.bases]

    def names_given(self, call: ast.Call) -> frozenset[str] | None:
        """Return the names of what a compared call gets by name, also in `**settings`; None if not all are known."""
        events = [event for one in self.followed[:1] for event in one.events.values() if event.call is call]
        is_known = len(events) == 1 and MORE not in events[0].keywords
        return frozenset(events[0].keywords) if is_known else None

    def is_of_one(self, call: ast.Call) -> bool:
        """Return whether only one of the processes that were followed comes to a call."""
        come = [call in one.values for one in self.followed if one.is_whole]
        return len(come) > 1 and sum(come) == 1

    def module_of(self, node: ast.AST, event: Event) -> Module:
        """Return the module that a call which leads to an event is in: that of the event, where it is in a text."""
        return next((module for module in self.program.modules.values() if node in module.parents), event.module)

    def loops_around(self, event: Event) -> int:
        """Return in how many loops inside each other a call is made: over the epochs, and over the batches of each."""
        around = (above for call in event.path for above in self.module_of(call, event).above(call))
        return sum(isinstance(above, (ast.For, ast.While)) for above in around)

    def is_never_made(self, call: ast.Call) -> bool:
        """Return whether all processes were followed to their ends, and none of them makes a call."""
        return bool(self.followed) and not any(call in one.values or not one.is_whole for one in self.followed)

    def is_past_wrapper(self, call: ast.Call) -> bool | None:
        """Return whether a call trains the model inside a wrapper; None if it is not known to call either."""
        every = [
            use for one in self.followed for wrapper in one.wrappers.every for use in wrapper.uses if use.call is call
        ]
        return not any(use.is_outer for use in every) if every else None

    @cached_property
    def _classes_at_work(self) -> frozenset[str] | None:
        """Return the names of the classes that the program makes objects of, and of those above; None if not known."""
        if not self.observed.is_whole:
            return None
        return frozenset(one.name for one in self.program.with_bases(self.observed.made))

    def is_of_no_object(self, node: ast.AST, module: Module) -> bool:
        """Return whether a node is in a class that the program, which was followed to its end, makes no object of."""
        owner, function = class_around(node, module), module.function_of(node)
        if function is not None and {"staticmethod", "classmethod"} & set(map(spelled, function.decorator_list)):
            return False
        return owner is not None and self._classes_at_work is not None and owner.name not in self._classes_at_work

    def is_of_unused_class(self, node: ast.AST, module: Module) -> bool:
        """Return whether a node is in a class that no code which may be executed names: others only import it."""
        owner = class_around(node, module)
        if owner is None or owner.decorator_list or self.program.unread or owner.name in self._classes_in_use:
            return False
        settings = (read_text(self.program, path) for path in [*self.program.configurations][:_MOST_SETTINGS])
        return not any(owner.name in text for text in (*self.facts.argv, *settings))

    @cached_property
    def _classes_in_use(self) -> frozenset[str]:
        return classes_in_use(self.reached)

    @cached_property
    def followed_all(self) -> list[Followed]:
        """Return the same, also where they start others."""
        given, composed = _local_rank_of_launch(self.facts), self.values.composed
        is_short = self.observed.steps <= _MOST_STEPS
        if not self.is_parallel or not is_short:
            return []
        return follow_processes(self.program, self.facts, given, composed, self.facts.nproc or self.processes)

    @cached_property
    def fields_given(self) -> frozenset[str]:
        """Return the fields of the options that the arguments give."""
        given = {word.partition("=")[0] for word in self.facts.argv}
        return frozenset(option.field for option in self.options if not given.isdisjoint(option.names))

    @cached_property
    def settings_given(self) -> Mapping[str, Any]:
        """Return what the configuration files say which the arguments name, by the last parts of the names."""
        words = [part for word in self.facts.argv for part in (word, word.partition("=")[2])]
        files = [word for word in words if word.endswith(_CONFIGURATIONS)]
        return {name: value for file in files for name, value in _settings_in(read_text(self.program, file))}

    @cached_property
    def has_framework(self) -> bool:
        """Return whether a library may do what the script does not."""
        return self._uses_framework or self._has_trainer

    @cached_property
    def has_only_trainer(self) -> bool:
        """Return whether the only framework is a Trainer of transformers."""
        return self._has_trainer and not self._uses_framework

    @cached_property
    def _has_trainer(self) -> bool:
        own = {node.name for _, node in self.program.of(ast.ClassDef)}
        has_trainer = not self._trainers <= own
        return has_trainer and self.program.imports("transformers") and not self._starts_itself

    @cached_property
    def _trainers(self) -> frozenset[str]:
        """Return the names in use that end as those of a Trainer of transformers do, but for classes without a base."""
        own = {owner.name for _, owner in self.program.of(ast.ClassDef) if {*map(unparsed, owner.bases)} <= {"object"}}
        return frozenset(name for name in self.names_in_use - own if name.endswith("Trainer"))

    def has_only_framework(self, name: str) -> bool:
        """Return whether a framework is the only one that is imported."""
        others = [one for one in _FRAMEWORKS if one != name]
        has_trainer = bool(self._trainers) and self.program.imports("transformers")
        return self.program.imports(name) and not self.program.imports(*others) and not has_trainer

    @cached_property
    def _starts_itself(self) -> bool:
        """Return whether the program makes a process group, and wraps or shards its models or averages gradients."""
        called = {name for _, _, name in self.program.calls}
        reduced = (call for _, call, name in self.program.calls if name == "torch.distributed.all_reduce")
        averages = any(".grad" in unparsed(given) for call in reduced for given in call.args[:1])
        wraps = self.wraps_models or any(is_ddp(name) or is_sharding(name) for name in called)
        joins = INIT in called or any(name.startswith(_OF_MM) and name.endswith(".init_dist") for name in called)
        return joins and (wraps or averages)

    @cached_property
    def _uses_framework(self) -> bool:
        """Return whether one is imported: of one that may be missing, whether anything of it is called."""
        if not self.program.imports(*_FRAMEWORKS):
            return False
        called = {name.partition(".")[0] for _, _, name in self.reached.calls}
        return any(
            name in called or not any(isinstance(above, ast.Try) for above in module.above(node))
            for module, node in self.program.of(ast.Import, ast.ImportFrom)
            if self.reached.of(node, module)
            for name in (full.partition(".")[0] for full in imported_names(node, module))
            if name in _FRAMEWORKS and not self._has_only_layers_of(name)
        )

    def uses(self, *frameworks: str) -> bool:
        """Return whether one is imported, and what starts processes or loads data with it is named."""
        return any(
            self.program.imports(name) and self.names_in_use & _OF_LAYERS.get(name, self.names_in_use)
            for name in frameworks
        )

    def _has_only_layers_of(self, framework: str) -> bool:
        """Return whether the program uses a framework, but starts and synchronizes its processes itself."""
        own = {node.name for _, node in self.program.of(ast.FunctionDef)}
        return self._starts_itself and not (self.names_in_use - own) & _OF_LAYERS.get(framework, self.names_in_use)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return every attribute, variable and text in the program: what is not among them is not used."""
        program = self.program
        found = {node.attr for _, node in program.of(ast.Attribute)} | {node.id for _, node in program.of(ast.Name)}
        found |= {node.name.rpartition(".")[2] for _, node in program.of(ast.alias)}
        skimmed = (module.words for module in program.modules.values())
        return frozenset(found | self.texts).union(*skimmed)

    @cached_property
    def names_in_use(self) -> frozenset[str]:
        """Return those of `names` that stand in code which this job may execute: all, where modules were not read."""
        return self.names if self.program.unread else names_in_use(self.reached)

    @cached_property
    def names_parts_of_a_model(self) -> bool:
        """Whether a name is about a model that is split over processes: then a rank has more than one number."""
        return any(_PART_OF_MODEL.search(name) for name in self.names)

    @cached_property
    def texts(self) -> frozenset[str]:
        """Return every text in the program."""
        return frozenset(n.value for _, n in self.program.of(ast.Constant) if isinstance(n.value, str))

    @cached_property
    def knows_others(self) -> bool:
        """Return whether any name or text in the program may have to do with other processes of a training."""
        return bool(self.program.unread) or self.has_framework or any(map(_OF_OTHERS.search, self.names))

    @cached_property
    def looks_up_names(self) -> bool:
        """Return whether functions may be found by computed names, or are in modules that were not read."""
        return bool(self.program.unread) or any(self._lookups)

    @cached_property
    def looks_elsewhere(self) -> bool:
        """Return the same, unless they are found in an object's own class, or in modules that were read."""
        known = {"self", *self.program.modules}
        return bool(self.program.unread) or any(owner not in known for owner in self._lookups)

    @cached_property
    def looks_up_attributes(self) -> bool:
        """Return whether functions may be found by computed names in modules or objects, or modules were not read."""
        return bool(self.program.unread) or any(self._attributes_looked_up)

    @cached_property
    def _lookups(self) -> Sequence[str]:
        """Return where functions are found by computed names: the whole name of the module or object, or a mark."""
        imports = ["?" for _, _, name in self.program.calls if name.endswith("import_module")]
        return [*self._attributes_looked_up, *imports]

    @cached_property
    def _attributes_looked_up(self) -> Sequence[str]:
        """Return the same, of what getattr looks up."""
        found: list[str] = []
        for module, call, name in self.program.calls:
            is_literal = len(call.args) > 1 and isinstance(call.args[1], ast.Constant)
            if name == "getattr" and not is_literal and call.args and not _ARGUMENTS.match(unparsed(call.args[0])):
                is_of_library = self.program.is_of_library(call.args[0], module)
                owner = self.program.name_of(call.args[0], module) or "?"
                found += (
                    [] if is_of_library or self._finds_no_function(call) or _is_only_read(call, module) else [owner]
                )
        return found

    def _finds_no_function(self, lookup: ast.Call) -> bool:
        """Return whether no function of the program has a name that begins as what is looked up: `f"block{number}"`."""
        match lookup.args[1:2]:
            case [ast.JoinedStr(values=[ast.Constant(value=str(begin)), *_])]:
                functions = self.program.of(ast.FunctionDef, ast.AsyncFunctionDef)
                return not any(function.name.startswith(begin) for _, function in functions)
        return False

    def may_be_used(self, node: ast.AST, module: Module) -> bool:
        """Return whether a node may be executed: what is in a function or class that is named nowhere is not."""
        owner = next(
            (above for above in module.above(node) if isinstance(above, (ast.FunctionDef, ast.ClassDef))), None
        )
        is_named = owner is None or owner.name in self.names or module.parents.get(owner) is not module.tree
        return is_named or bool(self.reached.of(node, module))

    def is_for_library(self, node: ast.AST, module: Module) -> bool:
        """Return whether a library may execute a node: it is in a class that is based on one of a training library."""
        return any(base.partition(".")[0] in _CALL_BACK for base in self._bases_around(node, module))

    def passes_by(self, node: ast.AST, module: Module) -> bool:
        """Return whether the function around a node is entered, if one is, and never comes to it in this job."""
        function = module.function_of(node)
        is_entered = function is None or bool(self.reached.entered(function, module))
        return is_entered and not self.reached.of(node, module)

    def calls(self, *names: str, least: Reach = Reach.PERHAPS) -> Iterator[tuple[Module, ast.Call]]:
        """Yield the calls of functions that are reached."""
        for module, call, name in self.reached.calls:
            if name in names and self.reached.of(call, module) >= least:
                yield module, call

    def level_of(self, node: ast.AST, module: Module) -> Level:
        """Return how serious a mistake in a node is: an error where the node is surely executed."""
        return "error" if self.reached.is_sure(node, module) else "warning"

    @cached_property
    def processes(self) -> int | None:
        """Return how many processes a node has: without a launcher, those that the boot file starts."""
        if self.facts.has_launcher:
            return self.facts.nproc
        if not self.starts_processes:
            return self.facts.copies
        for module, call in self.calls(SPAWN):
            value = self.values.of(argument(call, "nprocs", _SPAWN_POSITION), module)
            return value if is_count(value) else self.facts.nproc
        return self.facts.nproc or self.observed.started or None

    @cached_property
    def spawned(self) -> frozenset[str]:
        """Return the names of the functions that run in processes which mp.spawn or Process starts.

        Those that a started function is given run there, too.
        """
        given = [one for _, call in self.calls(*SPAWNS) for one in (argument(call, "fn", 0), argument(call, "args", 1))]
        for _, call, name in self.reached.calls:
            if name.endswith(_PROCESSES):
                given += [argument(call, "target"), argument(call, "args")]
        parts = [part for one in given for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
        return frozenset(name for node in parts if node is not None and (name := spelled(node).rpartition(".")[2]))

    @cached_property
    def starts_processes(self) -> bool:
        """Return whether anything here may start processes."""
        return bool(_STARTERS & self.names) or self.has_framework

    @cached_property
    def world_size(self) -> int | None:
        """Return how many processes the job has."""
        return None if self.processes is None else self.processes * self.facts.nodes

    @cached_property
    def is_parallel(self) -> bool:
        """Return whether the job surely has several processes, even if a platform decides how many."""
        return self.facts.nodes > 1 if self.world_size is None else self.world_size > 1

    @cached_property
    def wraps_models(self) -> bool:
        """Return whether a model is wrapped in DistributedDataParallel, or in a class that is based on it."""
        return any(is_ddp(name) or self._is_based_on_ddp(name) for _, _, name in self.reached.calls)

    def _is_based_on_ddp(self, name: str) -> bool:
        found = self.program.definition(name)
        bases = found[1].bases if found is not None and isinstance(found[1], ast.ClassDef) else ()
        return found is not None and any(is_ddp(self.program.name_of(base, found[0])) for base in bases)

    @cached_property
    def leaves_data_to_program(self) -> bool:
        """Return whether no library may divide the data among the processes, or combine their results."""
        return not self.has_framework or self.has_only_engine

    @cached_property
    def has_only_engine(self) -> bool:
        """Return whether the only framework is DeepSpeed, which averages the gradients and gets no data.

        Source: `deepspeed.initialize` of DeepSpeed 0.18 makes a loader only of `training_data`.
        """
        made = [call for _, call in self.calls("deepspeed.initialize")]
        given = (("training_data", 4), ("mpu", 7), ("mesh_param", None))
        is_plain = all(argument(call, *one) is None for call in made for one in given) and not any(
            map(hides_arguments, made)
        )
        is_only = bool(made) and is_plain and self.has_only_framework("deepspeed") and not _PARTS_OF_MODELS & self.names
        settings = [*self.program.configurations][:_MOST_SETTINGS] if is_only else []
        return is_only and not any(_SHARES_DATA.search(read_text(self.program, path)) for path in settings)

    @cached_property
    def is_on_nccl_only(self) -> bool:
        """Return whether NCCL is surely the only backend, and nothing is placed on GPUs by default."""
        backends = {self.values.of(argument(call, "backend", 0), module) for module, call in self.calls(INIT)}
        for module, call in self.calls(INIT_OF_DEEPSPEED):
            given = argument(call, "dist_backend", 0)
            backends.add("nccl" if given is None else self.values.of(given, module))  # its default on GPUs
        if any(self.calls(ACCELERATOR, *_LAUNCHES_OF_DETECTRON)) and self.facts.gpus:
            backends.add("nccl")
        named = {one.lower() if isinstance(one, str) else one for one in backends}  # torch takes "NCCL", too
        return named == {"nccl"} and not self.places_by_default

    @cached_property
    def places_by_default(self) -> bool:
        """Return whether tensors and models may be made on a GPU without a word beside them."""
        return bool({"set_default_device", "set_default_tensor_type"} & self.names)

    @cached_property
    def is_distributed(self) -> bool:
        """Return whether the processes train together."""
        return any(name in (INIT, INIT_RPC) or is_ddp(name) for _, _, name in self.reached.calls)


def _is_only_read(lookup: ast.Call, module: Module) -> bool:
    """Return whether what getattr finds is set to a variable that nothing calls, returns or is given."""
    statement = module.parents.get(lookup)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not isinstance(target, ast.Name):
        return False
    loads = (one for one in walk(module.scope_of(lookup)) if isinstance(one, ast.Name) and one.id == target.id)
    uses = [module.parents.get(one) for one in loads if isinstance(one.ctx, ast.Load)]
    return all(_is_only_look(use, module) for use in uses)


def _is_only_look(use: ast.AST | None, module: Module) -> bool:
    """Return whether something is read of an object, and not called."""
    if isinstance(use, ast.Call):
        return spelled(use.func) in ("getattr", "hasattr")
    parent = module.parents.get(use) if use is not None else None
    is_called = isinstance(parent, ast.Call) and parent.func is use
    return isinstance(use, (ast.Attribute, ast.Subscript)) and not is_called


def look_at(program: Program, facts: Facts, words: tuple[Word, ...]) -> Code:
    """Analyze a program, and once more with what it then is seen to call by computed names."""
    composed = compose(program, facts.argv, Values(program, facts).of)
    observed = observe(program, facts, _local_rank_of_launch(facts), composed)
    if seen := _names_observed(program, observed):
        program = replace(program, looked_up=seen)
    code = _look_at(program, facts, words, composed, observed)
    if names := names_looked_up(code.values):
        return _look_at(replace(program, looked_up={**seen, **names}), facts, words, composed, observed)
    return code


def _names_observed(program: Program, observed: Observed) -> dict[ast.AST, str]:
    """Return what was seen to be called where the code does not spell its name."""
    found: dict[ast.AST, str] = {}
    for module, call, name in program.calls:
        seen = observed.names.get(call.func, "")
        around = module.function_of(call)
        if isinstance(call.func, ast.Name) and around is not None and call.func.id in parameters(around):
            continue  # what it is given is known where the function is called
        if seen and seen != name and program.definition(name) is None and program.definition(seen) is not None:
            found[call.func] = seen
    return found


def _local_rank_of_launch(facts: Facts) -> dict[str, Any]:
    """Return the argument that torch.distributed.launch gives each process: its place on the node, as a text."""
    is_passed = facts.mode == "launch" and any(word.partition("=")[0] in _LOCAL_RANK for word in facts.argv)
    return dict.fromkeys(_LOCAL_RANK, facts.environment.get(contract.LOCAL_RANK, UNKNOWN)) if is_passed else {}


def _look_at(
    program: Program, facts: Facts, words: tuple[Word, ...], composed: Composed | None, observed: Observed
) -> Code:
    """Analyze a program twice: first without the values of its arguments, then with them.

    Where something may change the arguments indirectly, suppose at first that it does not: if it is not executed then,
    that holds.
    """
    blank = Values(program, facts, composed=composed, observed=observed.values)
    first = explore(program, blank)
    line = with_observed(find_command_line(program, first, blank), observed)
    parsed = line.values([word.text for word in words]) if not line.gaps or line.kind == "argparse" else {}
    parsed |= _local_ranks(line, facts)
    leftover = None if line.gaps or line.kind != "argparse" else tuple(line.leftover([word.text for word in words]))
    dead = _never_made(first)
    for namespaces in dict.fromkeys((line.supposed if line.supposed.names else line.namespaces, line.namespaces)):
        values = replace(blank, arguments=parsed, leftover=leftover, namespaces=namespaces, dead=dead)
        reached = explore(program, values)
        line = with_observed(find_command_line(program, reached, values), observed)
        if line.namespaces == namespaces:
            break
    return Code(program, facts, line, reached, replace(values, dead=_never_made(reached)), observed)


def _local_ranks(line: CommandLine, facts: Facts) -> dict[str, Any]:
    """Return the argument that torch.distributed.launch gives each process, which differs: its place on the node."""
    ranks = _local_rank_of_launch(facts)
    given = ((option, ranks[name]) for option in line.options for name in option.names if name in ranks)
    return {option.field: lifted(int, rank) if option.type in _INTEGERS else rank for option, rank in given}


def _never_made(reached: Reached) -> frozenset[ast.Call]:
    """Return the calls that are never reached."""
    return frozenset(call for module, call, _ in reached.program.calls if not reached.of(call, module))


def _settings_in(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration by their own names, those of groups as well."""
    groups = [parse_text(text)]
    while groups:
        group = groups.pop()
        for name, value in group.items() if isinstance(group, dict) else ():
            groups.append(value)
            yield str(name), value


def is_count(value: object) -> bool:
    """Return whether a value is an integer, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def trains(tree: ast.AST) -> bool:
    """Return whether a part of a program computes gradients."""
    return any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in walk(tree))


def is_ddp(name: str) -> bool:
    """Return whether a name is DistributedDataParallel's, torch's or apex's."""
    return name.startswith(("torch.", "apex.")) and name.endswith(".DistributedDataParallel")


def is_sharding(name: str) -> bool:
    """Return whether a name is that of FSDP, as a class or as a function."""
    return name.startswith("torch.") and name.rpartition(".")[2] in SHARDS
