"""Objects whose classes the program defines: which call makes one, and where the values of its fields come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.module import FUNCTIONS, Module, class_around, is_property, spelled
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters

_DEEPEST = 5
_MODULES = tuple(f"torch.nn.{name}" for name in ("Module", "ModuleList", "ModuleDict", "Sequential"))
_MODELS_TO_DERIVE = ("PreTrainedModel", "diffusers.ModelMixin")  # how the names of such bases of models end
_MAKERS = ("from_pretrained", "from_config")  # methods of classes of models that make one
SAME_MODEL = ("to", "cuda", "cpu", "train", "eval", "float", "half", "bfloat16", "double", "requires_grad_")
# Decorators and bases of classes whose fields get what their makers are given: also those of attrs and pydantic.
_RECORDS = frozenset(["dataclass", "NamedTuple", "frozen", "define", "BaseModel", "Struct"])


class Made(NamedTuple):
    """The class of an object, and the call that makes it, if there is one, with their modules."""

    home: Module
    owner: ast.ClassDef
    at: Module
    call: ast.Call | None


def made(program: Program, node: ast.AST, module: Module, depth: int = 0) -> Made | None:
    """Return how an object was made; None if that is not clear."""
    if depth > _DEEPEST:
        return None
    match node:
        case ast.Call():
            found = program.definition(program.name_of(node.func, module))
            if found is not None and isinstance(found[1], ast.ClassDef):
                return Made(found[0], found[1], module, node)
            if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_MODEL:
                return made(program, node.func.value, module, depth + 1)
            if isinstance(node.func, ast.Attribute) and node.func.attr in _MAKERS:
                found = program.definition(program.name_of(node.func.value, module))
                if found is not None and isinstance(found[1], ast.ClassDef):
                    return Made(found[0], found[1], module, None)
        case ast.Name(id="self"):
            owner = class_around(node, module)
            calls = program.calls_of.get(f"{module.name}.{owner.name}", ()) if owner is not None else ()
            if owner is not None and owner.name not in program.inherited and not calls[1:]:
                at, call = calls[0] if calls else (module, None)
                return Made(module, owner, at, call)
        case ast.Name() | ast.Attribute():
            sources = list(_sources(program, node, module))
            return made(program, sources[0][1], sources[0][0], depth + 1) if len(sources) == 1 else None
    return None


def field_of(program: Program, node: ast.Attribute, module: Module) -> tuple[Module, ast.expr | ast.FunctionDef] | None:
    """Return what the value of a field comes from: an expression, or the function of a property."""
    found = made(program, node.value, module)
    if found is None:
        return None
    if found.call is not None:
        fields = list(fields_of(found.owner))
        position = fields.index(node.attr) if node.attr in fields else None
        if (given := argument(found.call, node.attr, position)) is not None:
            return found.at, given
        if (hides_arguments(found.call) and position is not None) or reads_environment(found.owner):
            return None
    for statement in found.owner.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _sets_field(statement, node.attr):
            default = default_of_field(statement.value)
            return None if default is None else (found.home, default)
        if isinstance(statement, ast.FunctionDef) and statement.name == node.attr and is_property(statement):
            return found.home, statement
    return None


@lru_cache(maxsize=1)
def given_to_fields(program: Program) -> Mapping[str, Sequence[tuple[Module, ast.expr]]]:
    """Return what the fields of dataclasses and named tuples get, by name: defaults, and arguments of their makers."""
    found: dict[str, list[tuple[Module, ast.expr]]] = {}
    for home, owner in program.of(ast.ClassDef):
        if not is_record(owner):
            continue
        fields = fields_of(owner)
        for name, field in fields.items():
            if (default := default_of_field(field.value)) is not None:
                found.setdefault(name, []).append((home, default))
        for at, call in program.calls_of.get(f"{home.name}.{owner.name}", ()):
            for name, given in given_by(call, list(fields)):
                found.setdefault(name, []).append((at, given))
    return found


def fields_of(owner: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    """Return the fields that a dataclass or a named tuple declares, by name, in their order."""
    declared = (one for one in owner.body if isinstance(one, ast.AnnAssign))
    return {one.target.id: one for one in declared if isinstance(one.target, ast.Name)}


@lru_cache(maxsize=1000)
def changed_later(owner: ast.ClassDef) -> frozenset[str]:
    """Return the fields that methods of a class set, other than the one that makes its objects."""
    methods = (one for one in owner.body if isinstance(one, FUNCTIONS) and one.name != "__init__")
    stores = (node for method in methods for node in walk(method) if isinstance(node, ast.Attribute))
    return frozenset(node.attr for node in stores if isinstance(node.ctx, ast.Store) and spelled(node.value) == "self")


def reads_environment(owner: ast.ClassDef) -> bool:
    """Return whether the fields of a class may come from environment variables, as those of pydantic-settings."""
    return any(spelled(base).endswith("BaseSettings") for base in owner.bases)


def is_record(owner: ast.ClassDef) -> bool:
    decorators = [one.func if isinstance(one, ast.Call) else one for one in owner.decorator_list]
    names = [spelled(one).rpartition(".")[2] for one in (*decorators, *owner.bases)]
    return bool(_RECORDS & set(names))


def given_by(call: ast.Call, names: Sequence[str]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a call gives to each field; not what comes after `*values`."""
    for name, given in zip(names, call.args, strict=False):
        if isinstance(given, ast.Starred):
            break
        yield name, given
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg and keyword.arg in names)


def is_torch_module(program: Program, owner: ast.ClassDef, module: Module) -> bool:
    """Return whether a class is a model or a layer: derived from torch.nn.Module, or a list of layers."""
    names = [program.name_of(base, module) for base in owner.bases]
    return any(name in _MODULES or name.endswith(_MODELS_TO_DERIVE) for name in names)


def _sources(program: Program, node: ast.Name | ast.Attribute, module: Module) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the expressions that make the object of a variable, a parameter or an attribute."""
    if isinstance(node, ast.Attribute):
        for home, store in program.attribute_stores.get(node.attr, ()):
            if (value := assigned_to(store, home)) is not None and value is not node:
                yield home, value
        return
    scopes = [above for above in module.above(node) if isinstance(above, FUNCTIONS)]
    for scope in (*scopes, module.tree):
        for place in module.own_stores.get((scope, node.id), ()):
            if (value := assigned_to(place, module)) is not None and value is not node:
                yield module, value
        if (scope, node.id) in module.own_stores:
            return
        if isinstance(scope, FUNCTIONS) and node.id in parameters(scope):
            for home, call in program.calls_to(scope, module):
                if (given := given_for(call, scope, node.id)) is not None:
                    yield home, given
            return


def _sets_field(node: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def default_of_field(node: ast.expr | None) -> ast.expr | None:
    """Return the default of a field of a dataclass: of `field(default=…)`, and what a factory makes."""
    if not isinstance(node, ast.Call) or spelled(node.func).rpartition(".")[2] != "field":
        return node
    factory = argument(node, "default_factory")
    return factory.body if isinstance(factory, ast.Lambda) else argument(node, "default")
