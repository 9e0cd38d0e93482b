"""Programs that use LightningCLI: their options are the parameters of the Trainer, the model and the data module.

Source: lightning.pytorch.cli of Lightning 2.5 and jsonargparse 4: `--model.lr` is the parameter `lr` of the model's
class. Without `run=False`, the first word is a method of the Trainer.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from jobsubmit.check.installed.signatures import accepted_names
from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, own_method
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.values import Values

_CLI = ("lightning.pytorch.cli.LightningCLI", "pytorch_lightning.cli.LightningCLI")
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
_METHODS = ("fit", "validate", "test", "predict")
_ADD_CLASSES = ("add_lightning_class_args", "add_class_arguments", "add_subclass_arguments")
_ADD_TYPES = ("add_optimizer_args", "add_lr_scheduler_args", *_ADD_CLASSES)
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
    groups = _Groups()
    groups.fields["trainer"] = _fields_of_trainer(call, values)
    for group, parameter, position in (("model", "model_class", 0), ("data", "datamodule_class", 1)):
        node = argument(call, parameter, position)
        is_chosen = node is None or argument(call, f"subclass_mode_{group}") is not None
        known = None if node is None or is_chosen else _parameters(program.name_of(node, module), program)
        groups.fields[group] = None if known is None else frozenset(known)
        groups.required |= {f"--{group}.{name}": place for name, place in (known or {}).items() if place}
    for home, owner in _owners(name, program):
        _add_own(home, owner, values, groups)
    run = argument(call, "run")
    words = [word for word in values.facts.argv if word.startswith("-")]
    given = (word.partition("=")[0] for word in words if _is_known(word, groups))
    options = [_option(one, where) for one in dict.fromkeys((*given, *sorted(_names(groups.fields))))]
    if not groups.may_set and not _may_be_set(call, words, program):
        lacking = {name: place for name, place in groups.required.items() if not _is_given(name, words)}
        options = [one for one in options if one.names[0] not in lacking]
        options += [Option((name,), place, {"required": True}) for name, place in lacking.items()]
    line = CommandLine("lightning", tuple(options), True, where, tuple(groups.gaps), {"allow_abbrev": False})
    if run is not None and values.of(run, module) is False:
        return line
    files = Option(("--config", "-c"), where)
    return replace(line, options=(files,), is_strict=False, commands=dict.fromkeys(_METHODS, line), needs_command=True)


def _may_be_set(call: ast.Call, words: Sequence[str], program: Program) -> bool:
    """Return whether a file that is not read here may set parameters, or a default of the parser."""
    files = [word.partition("=")[2] for word in words if word.partition("=")[0] in ("-c", "--config")]
    is_read = all(posixpath.normpath(file) in program.configurations for file in files)
    return not is_read or argument(call, "parser_kwargs") is not None


def _is_given(name: str, words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == name or word.startswith(f"{name}.") for word in words)


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
        positional = start.args.args[1:]
        optional = [*positional[len(positional) - len(start.args.defaults) :]] if start.args.defaults else []
        optional += [one for one, value in zip(start.args.kwonlyargs, start.args.kw_defaults, strict=True) if value]
        everything = (*positional, *start.args.kwonlyargs)
        own = {one.arg: "" if one in optional else home.where(one) for one in everything}
        if start.args.kwarg is None:
            return own
    bases = [program.name_of(base, home) for base in owner.bases]
    if not bases or bases[0].rpartition(".")[2] in ("LightningModule", "LightningDataModule"):
        return own
    above = _parameters(bases[0], program, depth + 1)
    return None if above is None else {**above, **own}


def _add_own(module: Module, owner: ast.ClassDef, values: Values, groups: _Groups) -> None:
    """Add the options that a class adds to the parser itself."""
    adds = own_method(owner, "add_arguments_to_parser")
    for call in walk(adds) if adds is not None else ():
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        groups.may_set = groups.may_set or call.func.attr in ("link_arguments", "set_defaults")
        if call.func.attr == "add_argument":
            names = [values.of(one, module) for one in call.args]
            groups.whole |= {name.lstrip("-").partition(".")[0] for name in names if isinstance(name, str)}
            if not all(isinstance(name, str) for name in names):
                groups.gaps.append(Gap(module.where(call), "the name of an option is computed here"))
        elif call.func.attr in _ADD_TYPES:
            key = values.of(argument(call, "nested_key", 1), module)
            if isinstance(key, str):
                groups.fields[key] = None
            elif call.func.attr in _ADD_CLASSES:
                groups.gaps.append(Gap(module.where(call), "a class adds its parameters here"))


def _is_known(word: str, groups: _Groups) -> bool:
    """Return whether a word is an option of a group, or a whole name; one of an unknown library may be newer."""
    name = word.partition("=")[0].removeprefix("--")
    group, dot, rest = name.partition(".")
    if not dot:
        return name in groups.whole or name in groups.fields or name == "-c"
    names = groups.fields.get(group, None if group in groups.whole else frozenset())
    first = rest.partition(".")[0].rstrip("+")
    return names is None or first in names or (names is _OF_TRAINER and not get_close_matches(first, names, 1))


def _option(name: str, where: str) -> Option:
    return Option((name,), where, {"nargs": "?"}, is_sure=False)


def _names(fields: Mapping[str, frozenset[str] | None]) -> Iterator[str]:
    """Yield the names of the known options, for hints."""
    for group, names in fields.items():
        yield from (f"--{group}.{name}" for name in names or ())
