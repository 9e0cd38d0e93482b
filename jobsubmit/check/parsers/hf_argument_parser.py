"""Programs that use HfArgumentParser of transformers (or its kin): their options are the fields of dataclasses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from jobsubmit.check.installed.signatures import fields_of
from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.namespaces import Namespaces
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.training_arguments import KNOWN_CLASSES
from jobsubmit.check.program.values import Values

PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser", "PreTrainedArgumentParser")
_PARSES = "parse_args_into_dataclasses"
FROM_FILE = ("parse_json_file", "parse_yaml_file")
_SETTINGS = {"return_remaining_strings", "look_for_args_file"}


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with such a parser accepts; None if it has none."""
    created = [(m, call) for m, call, name in reached.calls if name.rpartition(".")[2] in PARSERS]
    if not created:
        return None
    module, call = created[0]
    classes, options, gaps = declared_by(call, module, program, values)
    if not classes:
        gaps.append(Gap(module.where(call), "its dataclasses are not passed here"))
    sure = [
        (m, c, c.func.attr) for m, c, _ in reached.calls if isinstance(c.func, ast.Attribute) and reached.is_sure(c, m)
    ]
    parses = [
        (m, c) for m, c, name in sure if name == _PARSES and not c.args and {k.arg for k in c.keywords} <= _SETTINGS
    ]
    from_file = [(m, c) for m, c, name in sure if name in FROM_FILE]
    is_named = any("argv" in words_behind(c, m) for m, c in from_file) or file_of_settings(values.facts.argv) != ""
    if from_file and not parses and not is_named:
        return None  # the file is named in another way
    is_partial = any(
        name.rpartition(".")[2] in KNOWN_CLASSES and fields_of(name, values.facts.libraries) is None
        for name in _names(classes, program, module)
        if program.definition(name) is None
    )
    if from_file and not parses:
        where, is_alone = from_file[0][0].where(from_file[0][1]), len(values.facts.argv) == 1
        own = (replace(one, settings={**one.settings, "required": False}, default=UNKNOWN) for one in options)
        line = CommandLine("HfArgumentParser", (Option(("file",), where), *own), is_alone, where)
        return replace(line, gaps=() if is_alone else tuple(gaps), may_have_more=is_partial or bool(gaps))
    if not parses:
        gaps.append(Gap(module.where(call), "it may not parse the command line"))
    place = parses[0] if parses else (module, call)
    rest = argument(place[1], "return_remaining_strings")
    is_strict = bool(parses) and (rest is None or values.of(rest, place[0]) is False)
    line = CommandLine("HfArgumentParser", tuple(options), is_strict, place[0].where(place[1]), tuple(gaps))
    kept = frozenset(name for home, parse in parses for name in _kept(parse, home))
    return replace(line, may_have_more=is_partial, namespaces=Namespaces(kept))


def declared_by(
    call: ast.Call, module: Module, program: Program, values: Values
) -> tuple[list[ast.expr], list[Option], list[Gap]]:
    """Return the dataclasses that a parser is made of, with the options that they declare, and what is not known."""
    given = call.args[0] if call.args else None
    classes = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given] if given is not None else []
    options: list[Option] = []
    gaps = [gap for one in classes for gap in _fields_of(program.name_of(one, module), one, module, values, options)]
    return classes, options, gaps


def file_of_settings(words: Sequence[str]) -> str:
    """Return the file with settings that a program gets as its first word; empty if that is no such file."""
    first = words[0] if words else ""
    return first if first.endswith((".yaml", ".yml", ".json")) and not first.startswith("-") else ""


def words_behind(call: ast.Call, module: Module) -> str:
    """Return what a call is given as one text, with what a variable is set to in the same function."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [unparsed(one) for one in given]
    for one in given:
        stores = module.stores.get((module.scope_of(call), one.id), ()) if isinstance(one, ast.Name) else ()
        texts += [unparsed(above) for store in stores for above in module.above(store) if isinstance(above, ast.Assign)]
    return " ".join(texts)


def _kept(parse: ast.Call, module: Module) -> Iterator[str]:
    """Yield the variables that hold the parsed dataclasses: each field is in one of them only."""
    statement = module.parents.get(parse)
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        for item in target.elts if isinstance(target, ast.Tuple) else [target]:
            stores = module.stores.get((module.scope_of(item), item.id), ()) if isinstance(item, ast.Name) else ()
            if isinstance(item, ast.Name) and all(store is item or _is_same(store, module) for store in stores):
                yield item.id


def _is_same(store: ast.expr, module: Module) -> bool:
    """Return whether a variable is set to what a parser read from a file, or only said to be of a type."""
    parent = module.parents.get(store)
    statement = module.parents.get(parent) if isinstance(parent, ast.Tuple) else parent
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    made = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in FROM_FILE


def _names(classes: Iterable[ast.expr], program: Program, module: Module) -> set[str]:
    """Return the names of classes and of those that they are derived from."""
    found: set[str] = set()
    for item in classes:
        name = program.name_of(item, module)
        found.add(name)
        definition = program.definition(name)
        if definition and isinstance(definition[1], ast.ClassDef):
            bases = [base for base in definition[1].bases if program.name_of(base, definition[0]) != name]
            found |= _names(bases, program, definition[0])
    return found


def _fields_of(name: str, node: ast.AST, module: Module, values: Values, options: list[Option]) -> Iterator[Gap]:
    found = values.program.definition(name)
    known = _known_fields(name, values)
    if found is None and known:
        options.extend(option for field, kind in known.items() for option in _known(field, kind, module.where(node)))
        return
    if found is None or not isinstance(found[1], ast.ClassDef):
        is_class = "." in name or name[:1].isupper()
        why = (
            f"{name}, which defines options, is not in the code directory"
            if is_class
            else "its dataclasses are chosen at run time"
        )
        yield Gap(module.where(node), why)
        return
    home, owner = found[0], found[1]
    for base in owner.bases:
        name = values.program.name_of(base, home)
        if values.program.definition(name) == found:  # `class TrainingArguments(TrainingArguments)`
            known = _known_fields(name, values)
            options.extend(one for field, kind in known.items() for one in _known(field, kind, home.where(base)))
            continue
        yield from _fields_of(name, base, home, values, options)
    for item in owner.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            options.append(_option(item, item.target.id, home, values))
            if "bool" in unparsed(item.annotation):
                options.append(
                    Option(
                        (f"--no_{item.target.id}", f"--no-{item.target.id}"),
                        home.where(item),
                        {"action": "store_true"},
                        is_sure=False,
                    )
                )


def _known_fields(name: str, values: Values) -> dict[str, str]:
    """Return field → kind of a library's class: of the installed version, or of all versions if that is not known."""
    table = KNOWN_CLASSES.get(name.rpartition(".")[2], {})
    installed = fields_of(name, values.facts.libraries)
    return table if installed is None else {one: table.get(one) or _kind(text) for one, text in installed.items()}


def _kind(annotation: str) -> str:
    """Return what kind of values a field has, from its annotation."""
    kinds = {"bool": "bool", "list": "several", "List": "several", "int": "int", "float": "float"}
    words = re.findall(r"\w+", annotation)
    is_mixed = len({"int", "float", "str", "dict"} & set(words)) > 1
    return "str" if is_mixed else next((kinds[word] for word in words if word in kinds), "str")


def _known(field: str, kind: str, where: str) -> Iterator[Option]:
    """Yield the options of a field of a library's class."""
    names = tuple(dict.fromkeys((f"--{field}", f"--{field.replace('_', '-')}")))
    settings = {"nargs": {"bool": "?", "several": "*"}[kind]} if kind in ("bool", "several") else {}
    yield Option(names, where, settings, kind if kind in ("int", "float") else "")
    if kind == "bool":
        yield Option((f"--no_{field}", f"--no-{field}"), where, {"action": "store_true"}, is_sure=False)


def _option(item: ast.AnnAssign, name: str, home: Module, values: Values) -> Option:
    names = tuple(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))
    kind = unparsed(item.annotation).strip("'\"")
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
    choices = choices if isinstance(choices, list) else _choices(item.annotation, home, values)
    if choices:
        settings["choices"] = choices
        return Option(names, home.where(item), settings, "", default)
    if kind == "bool":
        settings |= {"nargs": "?", "const": True}
        return Option(names, home.where(item), settings, "yes_no", default)
    if kind not in ("int", "float", "str"):
        settings["nargs"], kind = "*" if "ist" in kind else "?", ""
    return Option(names, home.where(item), settings, kind, default)


def _choices(annotation: ast.expr, home: Module, values: Values) -> list[str]:
    """Return the words that a field of a Literal or of an enumeration takes; none where it may take others."""
    if isinstance(annotation, ast.Subscript):
        kind = values.program.name_of(annotation.value, home).rpartition(".")[2]
        items = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if kind == "Optional":
            return _choices(items[0], home, values)
        words = [values.of(item, home) for item in items] if kind == "Literal" else []
        return [word for word in words if isinstance(word, str)] if all(isinstance(w, str) for w in words) else []
    return enumerated(values.program.name_of(annotation, home), values.program)


def enumerated(name: str, program: Program) -> list[str]:
    """Return the values of an enumeration of the program whose values are words; none for anything else."""
    found = program.definition(name)
    if not found or not isinstance(found[1], ast.ClassDef):
        return []
    bases = {program.name_of(base, found[0]).rpartition(".")[2] for base in found[1].bases}
    if not {"Enum", "StrEnum", "ExplicitEnum"} & bases:
        return []
    values = [item.value for item in found[1].body if isinstance(item, ast.Assign)]
    words = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return words if len(words) == len(values) else []
