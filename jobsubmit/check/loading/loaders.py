"""The loaders of a program: which calls make them, what samplers they get, and which are for training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import LOADERS, Code, trains
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Function, Module, class_around, own_method, unparsed
from jobsubmit.check.program.tree import walk

OF_RANK = re.compile(r"\brank\b|_rank\b|\bworld|get_rank|process_index|num_replicas")
_NOT_TRAINING = re.compile(r"val(?!u)|(?<!la)test|eval|dev(?!ice|el)|infer|predict|sample_loader|calib")
_OF_VALIDATION = re.compile(r"^(?!.*Train)(?:.*[a-z\d])?(?:Val|Valid|Validation|Test|Eval|Evaluation)(?![a-z])")
_FILES_OF_VALIDATION = re.compile(r"(?:^|/)(?:metrics?|eval\w*|fid(?:_\w+)?|inference|testing)(?:/|\.py$)")
_SAMPLER, _BATCH_SAMPLER, _DROP_LAST = 3, 4, 8  # the positions of the arguments of DataLoader


def is_loader(code: Code, name: str) -> bool:
    """Return whether a class is DataLoader, or one of the program that is based on it and takes what it takes."""
    found = code.program.definition(name) if name not in LOADERS else None
    if found is None or not isinstance(found[1], ast.ClassDef):
        return name in LOADERS
    maker = own_method(found[1], "__init__")
    takes_all = maker is None or (maker.args.kwarg is not None and not _gives_sampler(maker))
    return takes_all and any(code.program.name_of(base, found[0]) in LOADERS for base in found[1].bases)


def _gives_sampler(maker: Function) -> bool:
    """Return whether a method gives the class above a sampler of its own."""
    calls = (node for node in walk(maker) if isinstance(node, ast.Call) and unparsed(node.func).endswith(".__init__"))
    return any(keyword.arg in ("sampler", "batch_sampler") for call in calls for keyword in call.keywords)


def sampler_of(code: Code, call: ast.Call, module: Module) -> ast.expr | None:
    """Return the sampler that a loader is given, unless it surely is None."""
    found = argument(call, "sampler", _SAMPLER) or argument(call, "batch_sampler", _BATCH_SAMPLER)
    return None if found is not None and code.values.of(found, module) is None else found


def calls_made(code: Code) -> Iterator[tuple[Module, ast.Call, str]]:
    """Yield the calls that are reached, with those that a framework may make: of `train_dataloader()`."""
    for module, call, name in code.program.calls if code.has_framework else code.reached.calls:
        if code.reached.of(call, module) or code.may_be_used(call, module):
            yield module, call, name


def is_sampler(code: Code, module: Module, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and code.program.name_of(node.func, module).endswith("DistributedSampler")


def is_for_training(call: ast.Call, module: Module) -> bool:
    """Return whether no word of a call, its variable, function, class and file says that it is for a validation."""
    above, owner = module.function_of(call), class_around(call, module)
    if above is not None and any("no_grad" in unparsed(one) for one in above.decorator_list):
        return False
    if owner is not None and _OF_VALIDATION.search(owner.name) and not trains(owner):
        return False
    if _FILES_OF_VALIDATION.search(module.path) and not trains(module.tree):
        return False
    function = _function_around(call, module)
    last = argument(call, "drop_last", _DROP_LAST)
    own = spelled_with_target(call, module).removesuffix(function)
    own = own.replace(unparsed(last).lower(), "") if last is not None else own  # `mode != "test"`: it is for any
    return not _NOT_TRAINING.search(own if "train" in function else own + function)


def spelled_with_target(call: ast.Call, module: Module) -> str:
    """Return a call with the variable it is assigned to and the function it is in, in lower case."""
    statement = next((n for n in module.above(call) if isinstance(n, ast.stmt)), None)
    target = unparsed(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    return f"{unparsed(call)} {target} {_function_around(call, module)}".lower()


def _function_around(node: ast.AST, module: Module) -> str:
    return next((one.name.lower() for one in module.above(node) if isinstance(one, ast.FunctionDef)), "")
