"""Programs that use HfArgumentParser of transformers (or its kin): their options are the fields of dataclasses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.modules import Module, Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import UNKNOWN, Values

_CLASSES = ("HfArgumentParser", "TrlParser", "H4ArgumentParser", "PreTrainedArgumentParser")
_PARSES = "parse_args_into_dataclasses"


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with such a parser accepts; None if it has none."""
    created = [(m, call) for m, call, name in reached.calls if name.rpartition(".")[2] in _CLASSES]
    if not created:
        return None
    module, call = created[0]
    given = call.args[0] if call.args else None
    classes = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given] if given is not None else []
    options: list[Option] = []
    gaps: list[Gap] = []
    for item in classes:
        gaps += _fields_of(program.name_of(item, module), item, module, values, options)
    if not classes:
        gaps.append(Gap(module.where(call), "its dataclasses are not told here"))
    parses = [(m, c) for m, c, _ in reached.calls if isinstance(c.func, ast.Attribute) and c.func.attr == _PARSES]
    strict = [(m, c) for m, c in parses if reached.is_sure(c, m) and not c.args and not c.keywords]
    if not strict:
        gaps.append(Gap(module.where(call), "it is not sure that the command line is parsed"))
    place = strict[0] if strict else (module, call)
    return CommandLine("HfArgumentParser", tuple(options), bool(strict), place[0].where(place[1]), tuple(gaps))


def _fields_of(name: str, node: ast.AST, module: Module, values: Values, options: list[Option]) -> Iterator[Gap]:
    found = values.program.definition(name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        yield Gap(module.where(node), f"the options of {name or 'a class'} are not in the code directory")
        return
    home, owner = found[0], found[1]
    for base in owner.bases:
        yield from _fields_of(values.program.name_of(base, home), base, home, values, options)
    for item in owner.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            options.append(_option(item, item.target.id, home, values))
            if "bool" in ast.unparse(item.annotation):
                options.append(
                    Option(
                        (f"--no_{item.target.id}", f"--no-{item.target.id}"),
                        home.where(item),
                        {"action": "store_true"},
                        is_sure=False,
                    )
                )


def _option(item: ast.AnnAssign, name: str, home: Module, values: Values) -> Option:
    names = tuple(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))
    kind = ast.unparse(item.annotation).strip("'\"")
    for wrapper in ("Optional[", "typing.Optional["):
        kind = kind.removeprefix(wrapper).removesuffix("]") if kind.startswith(wrapper) else kind
    kind = kind.removesuffix(" | None")
    is_required, choices, default = item.value is None, None, UNKNOWN
    if isinstance(item.value, ast.Call) and values.program.name_of(item.value.func, home).rpartition(".")[2] == "field":
        keywords = {keyword.arg: keyword.value for keyword in item.value.keywords}
        is_required = not {"default", "default_factory", None} & set(keywords)
        default = values.of(keywords.get("default"), home)
        metadata = keywords.get("metadata")
        if isinstance(metadata, ast.Dict):
            by_key = {values.of(k, home): v for k, v in zip(metadata.keys, metadata.values, strict=True) if k}
            choices = values.of(by_key.get("choices"), home) if "choices" in by_key else None
    elif item.value is not None:
        default = values.of(item.value, home)
    settings: dict[str, object] = {"required": is_required}
    if isinstance(choices, list):
        settings["choices"] = choices
    if kind not in ("int", "float", "str"):
        settings["nargs"], kind = "*" if "ist" in kind else "?", ""
    return Option(names, home.where(item), settings, kind, default)
