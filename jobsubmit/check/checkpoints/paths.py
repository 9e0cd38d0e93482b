"""The paths that checkpoints are saved to."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module

# Methods that save a checkpoint, with the argument that is its path.
SAVING = {
    "save_checkpoint": "filepath",
    "save_state": "output_dir",
    "ModelCheckpoint": "dirpath",
    "TrainingArguments": "output_dir",
    "Seq2SeqTrainingArguments": "output_dir",
}


def saving_calls(code: Code, call: ast.Call, module: Module) -> Iterator[tuple[Module, ast.Call, ast.expr | None]]:
    """Yield a call that saves, with the path: where a function only passes on what it is given, its calls."""
    function = module.function_of(call)
    passes_on = bool(call.args) and isinstance(call.args[0], ast.Starred) and function is not None
    if not passes_on or function is None or function.args.vararg is None:
        yield module, call, argument(call, "f", 1)
        return
    for home, outer in code.program.calls_to(function, module):
        if code.reached.of(outer, home) and not hides_arguments(outer):
            yield home, outer, argument(outer, "f", 1)


def places_saved_to(code: Code) -> Iterator[tuple[Module, ast.expr, ast.expr]]:
    """Yield the paths that checkpoints are saved to, each with the place that saves: the call, or the path itself."""
    for module, call, name in code.reached.calls:
        last = call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]
        place, path = None, None
        if name == "torch.save":
            for home, outer, given in saving_calls(code, call, module):
                if given is not None and not _is_in_memory(code, given, home):
                    yield home, outer, given
        elif name in ("torch.distributed.checkpoint.save", "torch.distributed.checkpoint.async_save"):
            place, path = call, argument(call, "checkpoint_id") or argument(call, "storage_writer") or call
        elif last in SAVING and code.program.definition(name) is None and last not in code.program.methods:
            path = argument(call, SAVING[last], 0)
        if path is not None:
            yield module, place or path, path


def _is_in_memory(code: Code, path: ast.expr, module: Module) -> bool:
    made = code.values.assigned(path, module) if isinstance(path, ast.Name) else path
    return isinstance(made, ast.Call) and code.program.name_of(made.func, module).endswith("BytesIO")
