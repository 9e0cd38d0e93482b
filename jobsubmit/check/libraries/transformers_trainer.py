"""Methods of Trainers that use the wrapper of the model as if it was the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.models.state import OWN_NAMES, is_guarded
from jobsubmit.check.program.module import Function, Module, own_method
from jobsubmit.common.finding import Finding

_LIBRARIES = ("transformers.", "trl.")
_IN_TRAINING = ("compute_loss", "training_step")
_OTHER_WRAPPERS = frozenset(["deepspeed", "fsdp", "fsdp_config", "parallelism_config"])  # they pass attributes on
_MODEL = 1  # the position of the model among the parameters


def check_trainer_model(code: Code) -> Iterator[Finding]:
    """Yield a warning where a Trainer's own step asks the model for what DistributedDataParallel does not have.

    Source: `Trainer._wrap_model` and `training_step` of transformers 4.57: with several processes, the step gets the
    wrapper; an evaluation gets the model itself.
    """
    given = {keyword.arg for _, keyword in code.program.of(ast.keyword)} | {*code.settings_given}
    given |= {option.lstrip("-") for option in code.facts.options_given}
    if code.world_size == 1 or _OTHER_WRAPPERS & (given | code.names_in_use):
        return
    for module, function in _steps(code):
        own = [*function.args.posonlyargs, *function.args.args][_MODEL : _MODEL + 1]
        name = own[0].arg if own else ""
        if not name or (function, name) in module.own_stores:
            continue
        for node in module.of(ast.Attribute):
            is_asked = isinstance(node.value, ast.Name) and node.value.id == name and isinstance(node.ctx, ast.Load)
            if not is_asked or module.function_of(node) is not function or node.attr in OWN_NAMES:
                continue
            if not is_guarded(node, module):
                yield Finding(
                    "warning",
                    "wrapped-attribute",
                    module.where(node),
                    f"with several processes, Trainer gives {function.name}() the wrapper DistributedDataParallel, "
                    f"which has no attribute {node.attr}: only the model inside may have it",
                    f"use self.accelerator.unwrap_model({name}).{node.attr}",
                )
                return


def _steps(code: Code) -> Iterator[tuple[Module, Function]]:
    """Yield the methods that train, of the program's own Trainers that it makes."""
    for module, owner in code.program.of(ast.ClassDef):
        bases = [code.program.name_of(base, module) for base in owner.bases]
        is_trainer = any(base.startswith(_LIBRARIES) and base.endswith("Trainer") for base in bases)
        if is_trainer and any(name.rpartition(".")[2] == owner.name for _, _, name in code.reached.calls):
            for name in _IN_TRAINING:
                if (function := own_method(owner, name)) is not None:
                    yield module, function
