"""Programs that use LightningCLI: their options are the parameters of the Trainer, the model and the data module.

Source: lightning.pytorch.cli of Lightning 2.5 and jsonargparse 4: `--model.lr` is the parameter `lr` of the model's
class. Without `run=False`, the first word is a method of the Trainer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import pairwise

from jobsubmit.check.installed.signatures import accepted_names
from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.calls import argument, hides_arguments, parameters_with_defaults
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, own_method, unparsed
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.values import Values

_CLI = tuple(
    f"{place}.LightningCLI"
    for place in ("lightning.pytorch.cli", "pytorch_lightning.cli", "pytorch_lightning.utilities.cli")
)
_PARAMETERS = """
    accelerator strategy devices num_nodes precision logger callbacks fast_dev_run max_epochs min_epochs max_steps
    min_steps max_time limit_train_batches limit_val_batches limit_test_batches limit_predict_batches overfit_batches
    val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing
    enable_progress_bar enable_model_summary accumulate_grad_batches gradient_clip_val gradient_clip_algorithm
    deterministic benchmark inference_mode use_distributed_sampler profiler detect_anomaly barebones plugins
    sync_batchnorm reload_dataloaders_every_n_epochs default_root_dir enable_autolog_hparams model_registry
    gpus tpu_cores ipus num_processes auto_select_gpus amp_backend amp_level auto_lr_find auto_scale_batch_size
    replace_sampler_ddp resume_from_checkpoint track_grad_norm move_metrics_to_cpu multiple_trainloader_mode
    weights_save_path checkpoint_callback progress_bar_refresh_rate weights_summary log_gpu_memory terminate_on_nan
    stochastic_weight_avg process_position prepare_data_per_node flush_logs_every_n_steps truncated_bptt_steps
"""
_OF_TRAINER = frozenset(_PARAMETERS.split())  # of Lightning 1.5 to 2.5
_ALWAYS = ("config", "print_config", "seed_everything", "ckpt_path", "weights_only", "verbose", "help", "model", "data")
_ANY_FIELD = ("optimizer", "lr_scheduler")  # their classes are chosen by an argument
_METHODS = ("fit", "validate", "test", "predict", "tune")
_ADD_CLASSES = ("add_lightning_class_args", "add_class_arguments", "add_subclass_arguments")
_ADD_TYPES = ("add_optimizer_args", "add_lr_scheduler_args", *_ADD_CLASSES)
_OF_PARSER = frozenset(
    [
        *("__init__", "init_parser", "setup_parser", "subcommands", "parse_arguments", "_setup_parser"),
        *("add_core_arguments_to_parser", "add_default_arguments_to_parser", "_add_subcommands"),
    ]
)
_CHANGES = ("add_argument", "link_arguments", "set_defaults", *_ADD_TYPES)
_DEEPEST = 8  # classes above each other


@dataclass
class _Groups:
    """What may follow `--`: whole names, and the fields of each group, None for a group that takes any.

    `required` are those that must be given, unless something else may set them (`may_set`).
    """

    whole: set[str] = field(default_factory=lambda: set(_ALWAYS))
    fields: dict[str, frozenset[str] | None] = field(default_factory=lambda: dict.fromkeys(_ANY_FIELD))
    required: dict[str, str] = field(default_factory=dict)
    may_set: bool = False
    gaps: list[Gap] = field(default_factory=list)


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with a LightningCLI accepts; None if it makes none."""
    made = next(((m, c, n) for m, c, n in reached.calls if n in _CLI or _owners(n, program)), None)
    if made is None:
        return None
    module, call, name = made
    where = module.where(call)
    if argument(call, "args") is not None or hides_arguments(call):
        return CommandLine("lightning", gaps=(Gap(where, "what LightningCLI gets is computed"),))
    groups, given = _Groups(), values.facts.options_given
    groups.fields["trainer"] = _fields_of_trainer(call, values)
    for group, parameter, position in (("model", "model_class", 0), ("data", "datamodule_class", 1)):
        node = argument(call, parameter, position)
        is_chosen = node is None or argument(call, f"subclass_mode_{group}") is not None
        known = None if node is None or is_chosen else _parameters(program.name_of(node, module), program)
        groups.fields[group] = None if known is None else frozenset(known)
        groups.required |= {f"--{group}.{name}": place for name, place in (known or {}).items() if place}
    for home, owner in _owners(name, program):
        _add_own(home, owner, values, groups)
    groups.may_set = groups.may_set or any(f"--{group}" in given for group in groups.fields)
    run = argument(call, "run")
    # What is known depends on more than names, such as the class of a field: so it is decided here, for each word.
    accepted = sorted(name for name in given if _is_known(name, groups))
    options = [_option(one, where) for one in dict.fromkeys((*accepted, *_names(groups.fields)))]
    if not groups.may_set and not _may_be_set(call, values.facts.argv, program):
        lacking = {name: place for name, place in groups.required.items() if not _is_given(name, given)}
        options = [one for one in options if one.names[0] not in lacking]
        options += [Option((name,), place, {"required": True}) for name, place in lacking.items()]
    line = CommandLine("lightning", tuple(options), True, where, tuple(groups.gaps), {"allow_abbrev": False})
    is_old = name == _CLI[-1] and run is None and not {*values.facts.argv} & {*_METHODS}  # it may have no commands
    if is_old or (run is not None and values.of(run, module) is False):
        return line
    files = Option(("--config", "-c"), where)
    return replace(line, options=(files,), is_strict=False, commands=dict.fromkeys(_METHODS, line), needs_command=True)


def _may_be_set(call: ast.Call, words: Sequence[str], program: Program) -> bool:
    """Return whether a file that is not read here may set parameters, or a default of the parser."""
    files = [word.partition("=")[2] for word in words if word.startswith(("-c=", "--config="))]
    files += [after for word, after in pairwise((*words, "")) if word in ("-c", "--config")]
    is_read = all(program.file(file, program.configurations) for file in files)
    return not is_read or argument(call, "parser_kwargs") is not None


def _is_given(name: str, given: Iterable[str]) -> bool:
    return any(one == name or one.startswith(f"{name}.") for one in given)


def makes_cli(program: Program) -> bool:
    """Return whether the boot file makes a LightningCLI."""
    if not program.imports("lightning", "pytorch_lightning"):
        return False
    names = (program.name_of(call.func, program.boot) for call in program.boot.of(ast.Call))
    return any(name in _CLI or _owners(name, program) for name in names)


def _owners(name: str, program: Program) -> list[tuple[Module, ast.ClassDef]]:
    """Return the classes of the program from one of a name up to LightningCLI; none if it is not such a class."""
    owners: list[tuple[Module, ast.ClassDef]] = []
    while name not in _CLI:
        home, owner = program.definition(name) or (None, None)
        if home is None or not isinstance(owner, ast.ClassDef) or not owner.bases or len(owners) > _DEEPEST:
            return []
        owners.append((home, owner))
        name = program.name_of(owner.bases[0], home)
    return owners


def _fields_of_trainer(call: ast.Call, values: Values) -> frozenset[str] | None:
    """Return the parameters of the Trainer: of the installed version, or of all versions if that is not known."""
    if argument(call, "trainer_class", 4) is not None:
        return None
    names = ("lightning.pytorch.trainer.trainer.Trainer", "pytorch_lightning.trainer.trainer.Trainer")
    known = (accepted_names(name, values.facts.libraries) for name in names)
    return next((found for found in known if found is not None), _OF_TRAINER)


def _parameters(name: str, program: Program, depth: int = 0) -> dict[str, str] | None:
    """Return the parameters of a class, with those that it hands on to the class above; None for any.

    Those that must be given have the place where they are declared, others an empty text.
    """
    home, owner = program.definition(name) or (None, None)
    if home is None or not isinstance(owner, ast.ClassDef) or depth > _DEEPEST:
        return None
    start = own_method(owner, "__init__")
    own: dict[str, str] = {}
    if start is not None:
        parameters = parameters_with_defaults(start)[1:]  # without self
        own = {one.arg: home.where(one) if default is None and _needs_value(one) else "" for one, default in parameters}
        if start.args.kwarg is None:
            return own
    bases = [program.name_of(base, home) for base in owner.bases]
    if len(bases) != 1 or (start is not None and not _only_hands_on(start)):
        return None
    if bases[0].rpartition(".")[2] in ("LightningModule", "LightningDataModule"):
        return own
    above = _parameters(bases[0], program, depth + 1)
    return None if above is None else {**above, **own}


def _needs_value(parameter: ast.arg) -> bool:
    """Return whether a parameter without a default must be given: one without a type, or that may be None, is None."""
    kind = "None" if parameter.annotation is None else unparsed(parameter.annotation)
    return not any(word in kind for word in ("None", "Optional", "Any"))


def _only_hands_on(start: Function) -> bool:
    """Return whether `**kwargs` only goes to `super().__init__(**kwargs)`, with nothing beside it."""
    name = start.args.kwarg.arg if start.args.kwarg is not None else ""
    uses = [node for node in walk(start) if isinstance(node, ast.Name) and node.id == name]
    calls = (node for node in walk(start) if isinstance(node, ast.Call))
    hands_on = any(unparsed(call) == f"super().__init__(**{name})" for call in calls)
    return len(uses) == 1 and hands_on


def _add_own(module: Module, owner: ast.ClassDef, values: Values, groups: _Groups) -> None:
    """Add the options that a class adds to the parser itself; what it does otherwise is not known."""
    adds = own_method(owner, "add_arguments_to_parser")
    methods = {one.name for one in owner.body if isinstance(one, FUNCTIONS)}
    if methods & _OF_PARSER or (adds is not None and not _only_changes(adds)):
        groups.gaps.append(Gap(module.where(owner), "its class changes the parser in another way"))
    for call in walk(adds) if adds is not None else ():
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        groups.may_set = groups.may_set or call.func.attr in ("link_arguments", "set_defaults")
        if call.func.attr == "add_argument":
            names = [values.of(one, module) for one in call.args]
            given = [name for name in names if isinstance(name, str)]
            groups.whole |= {name.removeprefix("--").partition(".")[0] for name in given}
            if not all(isinstance(name, str) for name in names):
                groups.gaps.append(Gap(module.where(call), "the name of an option is computed here"))
        elif call.func.attr in _ADD_TYPES:
            key = values.of(argument(call, "nested_key", 1), module)
            if isinstance(key, str):
                groups.fields[key] = None
            elif call.func.attr in _ADD_CLASSES:
                groups.gaps.append(Gap(module.where(call), "a class adds its parameters here"))


def _only_changes(adds: Function) -> bool:
    """Return whether a method gives the parser to nothing else, and calls only what is known here."""
    own = adds.args.args[1].arg if adds.args.args[1:] else ""
    uses = [node for node in walk(adds) if isinstance(node, ast.Name) and node.id == own]
    called = [node.func for node in walk(adds) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    calls: dict[ast.expr, str] = {one.value: one.attr for one in called}
    return all(calls.get(use) in _CHANGES for use in uses)


def _is_known(name: str, groups: _Groups) -> bool:
    """Return whether a name is an option of a group, or a whole name; one of an unknown library may be newer."""
    name = name.removeprefix("--")
    group, dot, rest = name.partition(".")
    if not dot:
        return name in groups.whole or name in groups.fields or name == "-c"
    names = groups.fields.get(group, None if group in groups.whole else frozenset())
    first = rest.partition(".")[0].rstrip("+")
    is_newer = names is _OF_TRAINER and not get_close_matches(first, names, 1)
    return names is None or is_newer or any(one.startswith(first) for one in names)  # it may be shortened


def _option(name: str, where: str) -> Option:
    return Option((name,), where, {"nargs": "?"}, is_sure=False)


def _names(fields: Mapping[str, frozenset[str] | None]) -> Iterator[str]:
    """Yield the names of the known options, for hints."""
    for group in sorted(fields, key=lambda group: group == "trainer"):
        yield from (f"--{group}.{name}" for name in sorted(fields[group] or ()))
