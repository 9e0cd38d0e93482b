"""Programs that use tyro: their options are the fields of a dataclass, or the parameters of a function.

Source: tyro 1.0: `-` and `_` are the same in a name, the fields of a field have its name and a dot before theirs, a
boolean with a default is a switch that takes no value, and no option may be shortened.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.calls import argument, parameters_with_defaults
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, unparsed
from jobsubmit.check.program.namespaces import Namespaces
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values

_PLAIN_BASES = (
    *("object", "abc.ABC", "typing.Generic", "typing.Protocol"),
    *("typing.NamedTuple", "typing.TypedDict", "pydantic.BaseModel"),
)
_MAKE_CLASSES = ("dataclass", "define", "frozen", "attrs", "s")
_PLAIN = ("int", "float", "str")
_OTHER, _MAPPING = ("other", None), ("mapping", None)
_UNCLEAR = {
    "conf": "a marker of tyro.conf changes an option here",
    "classes": "one of several classes is chosen here",
    "other_class": "the default may be of another class, with other fields",
    "mapping": "the keys of a mapping are options here",
}
_DEEPEST = 8


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what tyro accepts for a class or a function; None if tyro is not called on the words of the job."""
    found = next(((m, c, n) for m, c, n in reached.calls if n.startswith("tyro.")), None)
    if found is None:
        return None
    module, call, name = found
    where = module.where(call)
    if name != "tyro.cli" or not call.args:
        return CommandLine("tyro", gaps=(Gap(where, f"{name} makes its options at run time"),))
    if argument(call, "args") is not None:
        return None
    fields = _Fields(values)
    fields.add_of(call.args[0], "", module)
    if changing := [name for name in ("config", "default") if argument(call, name) is not None]:
        fields.gaps.append(Gap(where, f"`{changing[0]}` changes what tyro accepts"))
    rest = argument(call, "return_unknown_args")
    is_strict = rest is None or values.of(rest, module) is False
    settings = {"allow_abbrev": False}
    kept = Namespaces(frozenset(_kept(call, module)))
    return CommandLine("tyro", tuple(fields.options), is_strict, where, tuple(fields.gaps), settings, kept)


def _kept(call: ast.Call, module: Module) -> Iterator[str]:
    """Yield the variable that holds what tyro has made, if it holds nothing else."""
    statement = module.parents.get(call)
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        if isinstance(target, ast.Name) and len(module.stores.get((module.scope_of(target), target.id), ())) == 1:
            yield target.id


@dataclass
class _Fields:
    """Collect the options of classes; where a default `is_given` for the whole, none of them is required."""

    values: Values
    is_given: bool = False
    options: list[Option] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def add_of(self, node: ast.expr, prefix: str, module: Module) -> None:
        """Add the fields of a class, with those of its bases, or the parameters of a function."""
        name = self.values.program.name_of(node, module)
        found = self.values.program.definition(name)
        where = module.where(node)
        if found is None or prefix.count(".") > _DEEPEST:
            self.gaps.append(Gap(where, f"{name or unparsed(node)} is not a class or a function of the code"))
            return
        home, definition = found
        if isinstance(definition, FUNCTIONS):
            self._add_parameters(definition, prefix, home)
        elif not _makes_fields(definition, self.values.program, home):
            self.gaps.append(Gap(home.where(definition), f"{name} is not a dataclass"))
        else:
            for base in definition.bases:
                root = base.value if isinstance(base, ast.Subscript) else base
                if self.values.program.name_of(root, home) not in _PLAIN_BASES:
                    self.add_of(root, prefix, home)
            for item in definition.body:
                is_field = isinstance(item, ast.AnnAssign) and "init=False" not in unparsed(item.value or item)
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and is_field:
                    self._add(item, item.value, prefix, home)

    def _add_parameters(self, function: Function, prefix: str, module: Module) -> None:
        own = function.args
        for arg, default in parameters_with_defaults(function):
            self._add(arg, default, prefix, module)
        if own.vararg or own.kwarg or own.posonlyargs:
            self.gaps.append(Gap(module.where(function), "it takes *args, **kwargs or positional arguments"))

    def _add(self, place: ast.AnnAssign | ast.arg, default: ast.expr | None, prefix: str, module: Module) -> None:
        """Add the options of one field: several for a switch, those of its class for a field of fields."""
        name = place.arg if isinstance(place, ast.arg) else unparsed(place.target)
        annotation, names = _unquoted(place.annotation), _spellings(prefix, name)
        where = module.where(place)
        is_required = _is_required(default, self.values.program, module) and not self.is_given
        value = self._default(default, module)
        settings: dict[str, Any] = {"required": is_required, "dest": prefix + name}
        kind = self._kind(annotation, module)
        if kind[0] == "class" and _may_be_another(default, kind[1], self.values.program, module):
            kind = ("other_class", None)
        match kind:
            case ("ClassVar", _):
                return
            case (str(what), _) if what in _UNCLEAR:
                self.gaps.append(Gap(where, _UNCLEAR[what]))
            case ("class", _):
                inner = replace(self, is_given=not is_required)
                if annotation is not None:
                    inner.add_of(annotation, f"{prefix}{name}.", module)
            case ("bool", _) if not is_required:
                for own, action in ((names, "store_true"), (_spellings(prefix, f"no_{name}"), "store_false")):
                    self.options.append(Option(own, where, {"action": action, "dest": prefix + name}, "", value))
            case ("bool", _):
                self.options.append(Option(names, where, {"choices": ["True", "False"], **settings}))
            case ("choices", list(words)):
                self.options.append(Option(names, where, {"choices": words, **settings}, "", value))
            case ("int" | "float" | "str" as plain, bool(is_optional)):
                self.options.append(Option(names, where, settings, "" if is_optional else plain, value))
            case _:
                self.options.append(Option(names, where, {"nargs": "*", **settings}, is_sure=not is_required))

    def _default(self, default: ast.expr | None, module: Module) -> Any:
        if isinstance(default, ast.Call) and self.values.program.name_of(default.func, module).endswith(".field"):
            default = argument(default, "default")
        return UNKNOWN if default is None else self.values.of(default, module)

    def _kind(self, node: ast.expr | None, module: Module) -> tuple[str, Any]:
        """Return what a field takes: the name of a plain type with whether None is allowed, or words, or a class."""
        program = self.values.program
        if isinstance(node, ast.Subscript):
            return self._subscripted(node, module)
        if isinstance(node, ast.BinOp):
            sides = [node.left] if unparsed(node.right) == "None" else [node.left, node.right]
            return self._optional(node.left, module) if len(sides) == 1 else self._one_of(sides, module)
        name = program.name_of(node, module) if node is not None else ""
        found = program.definition(name)
        if found is not None and isinstance(found[1], ast.ClassDef):
            members = _members(found[1], program, found[0])
            return ("choices", members) if members else _OTHER if members is not None else ("class", name)
        if name == "dict":
            return _MAPPING
        return (name, False) if name in (*_PLAIN, "bool") else _OTHER

    def _subscripted(self, node: ast.Subscript, module: Module) -> tuple[str, Any]:
        owner = self.values.program.name_of(node.value, module)
        last = owner.rpartition(".")[2]
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if owner == "tyro.conf.Suppress":
            return _OTHER
        if owner.startswith("tyro.conf") or (last == "Annotated" and "conf" in unparsed(node)):
            return "conf", None
        if last == "Literal":
            words = [self.values.of(item, module) for item in items]
            return ("choices", [str(word) for word in words]) if UNKNOWN not in words else _OTHER
        if last == "Optional":
            return self._optional(items[0], module)
        if last == "Union":
            return self._one_of(items, module)
        return {"ClassVar": ("ClassVar", None), "dict": _MAPPING, "Dict": _MAPPING}.get(last, _OTHER)

    def _optional(self, node: ast.expr, module: Module) -> tuple[str, Any]:
        kind, _ = self._kind(node, module)
        return (kind, True) if kind in _PLAIN else ("classes", None) if kind == "class" else _OTHER

    def _one_of(self, nodes: Sequence[ast.expr], module: Module) -> tuple[str, Any]:
        """Return what a field of several types takes: of classes, that depends on a word."""
        kinds = [self._kind(one, module)[0] for one in nodes]
        return ("classes", None) if {"class", "classes"} & {*kinds} else _OTHER


def _may_be_another(default: ast.expr | None, name: str, program: Program, module: Module) -> bool:
    """Return whether the default of a field may be an object of another class than the field says."""
    if isinstance(default, ast.Call) and program.name_of(default.func, module).rpartition(".")[2] in ("field", "ib"):
        default = argument(default, "default_factory") or argument(default, "default")
    made = default.func if isinstance(default, ast.Call) else default
    return default is not None and (made is None or program.name_of(made, module) != name)


def _unquoted(node: ast.expr | None) -> ast.expr | None:
    """Return an annotation that is written as a text as the expression that it is."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return ast.copy_location(ast.parse(node.value, mode="eval").body, node)
        except SyntaxError:
            return None
    return node


def _spellings(prefix: str, name: str) -> tuple[str, ...]:
    whole = f"--{prefix}{name}"
    return tuple(dict.fromkeys((whole.replace("_", "-"), whole, whole.replace("--no_", "--no-"))))


def _is_required(default: ast.expr | None, program: Program, module: Module) -> bool:
    """Return whether a field has no default: none is written, or a `field()` without one, or tyro.MISSING."""
    if isinstance(default, ast.Call) and program.name_of(default.func, module).rpartition(".")[2] in ("field", "ib"):
        return not {"default", "default_factory", "factory", None} & {keyword.arg for keyword in default.keywords}
    return default is None or program.name_of(default, module).startswith("tyro.MISSING")


def _makes_fields(owner: ast.ClassDef, program: Program, module: Module) -> bool:
    """Return whether the annotations of a class are fields that are given when an object of it is made."""
    decorators = [one.func if isinstance(one, ast.Call) else one for one in owner.decorator_list]
    made = {program.name_of(one, module).rpartition(".")[2] for one in decorators}
    bases = {program.name_of(base, module).rpartition(".")[2] for base in owner.bases}
    return bool(made & set(_MAKE_CLASSES) or bases & {"BaseModel", "NamedTuple", "TypedDict"})


def _members(owner: ast.ClassDef, program: Program, module: Module) -> list[str] | None:
    """Return the names of the members of an enumeration; None for any other class."""
    bases = {program.name_of(base, module).rpartition(".")[2] for base in owner.bases}
    if not bases & {"Enum", "StrEnum", "IntEnum"}:
        return None
    return [
        target.id
        for item in owner.body
        if isinstance(item, (ast.Assign, ast.AnnAssign))
        for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
        if isinstance(target, ast.Name)
    ]
