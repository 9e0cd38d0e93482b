"""Libraries that make a command line of the fields of dataclasses, or of the parameters of a function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.files import read_file
from jobsubmit.check.interpreter.memory import (
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Record,
)
from jobsubmit.check.program.module import unparsed
from jobsubmit.check.program.operations import UNKNOWN, lifted
from jobsubmit.check.program.training_arguments import KNOWN_CLASSES

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

_TYPES = "[types]"
_HF = ("transformers.HfArgumentParser", "trl.TrlParser", "transformers.hf_argparser.HfArgumentParser")
_TRUE, _FALSE = ("true", "yes", "1", "on", "t", "y"), ("false", "no", "0", "off", "f", "n")
_DEFAULTS: Mapping[str, Any] = {  # of transformers.TrainingArguments
    **dict.fromkeys(("overwrite_output_dir", "do_train", "do_eval", "do_predict", "fp16", "bf16"), False),
    **dict.fromkeys(("resume_from_checkpoint", "deepspeed"), None),
    **{"gradient_accumulation_steps": 1, "max_steps": -1, "seed": 42},
}
_CONVERT: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


def _made(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    made = Record(External(_HF[0]), is_open=True)
    types = args[0] if args else keywords.get("dataclass_types", UNKNOWN)
    made.content[_TYPES] = (types,) if isinstance(types, (ClassValue, External)) else types
    return made


def _from_words(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    words = run.items(run.argv)
    if words is None or not all(isinstance(word, str) for word in words):
        return UNKNOWN
    return _filled(run, args[0], _given(words[1:]))


def _from_file(form: str) -> Callable[[Any, list[Any], dict[str, Any]], Any]:
    def read(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
        file = args[1] if len(args) > 1 else keywords.get(f"{form}_file", UNKNOWN)
        held = read_file(run, file, form)
        is_known = isinstance(held, Container) and isinstance(held.content, dict)
        return _filled(run, args[0], dict(held.content)) if is_known else UNKNOWN

    return read


def _filled(run: Calls, parser: Record, given: dict[str, Any]) -> Any:
    """Return an object of each class, with what is given; of a class of a library, only that is known."""
    types = run.items(parser.content.get(_TYPES, UNKNOWN))
    if types is None:
        return UNKNOWN
    made: list[Any] = []
    for kind in types:
        if isinstance(kind, ClassValue) and not kind.libraries - {"object"}:
            made.append(_object(run, kind, given))
        else:
            record = Record(NAMESPACE, is_open=True)
            record.content.update(_DEFAULTS if _is_training_arguments(kind) else {})
            record.content.update((name, _converted(value, "")) for name, value in given.items())
            made.append(record)
    return tuple(made)


def _is_training_arguments(kind: Any) -> bool:
    names = kind.libraries if isinstance(kind, ClassValue) else {kind.name} if isinstance(kind, External) else ()
    return any(name.rpartition(".")[2] in KNOWN_CLASSES for name in names)


def _object(run: Calls, kind: ClassValue, given: dict[str, Any]) -> Any:
    kinds = _annotations(kind)
    own = {name: _converted(given[name], kinds[name]) for name in kinds if name in given}
    return run.made(kind, [], own, is_open=False)


def _annotations(kind: ClassValue) -> dict[str, str]:
    return {
        statement.target.id: unparsed(statement.annotation)
        for one in reversed(list(kind.line()))
        for statement in one.node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _given(words: list[str]) -> dict[str, Any]:
    """Return what words give to options: a text, True for a switch, or UNKNOWN for several texts."""
    found: dict[str, Any] = {}
    name = ""
    for before, word in pairwise(["", *words]):
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if sign else True
        elif name:
            found[name] = word if before.startswith("--") and "=" not in before else UNKNOWN
    return found


def _converted(value: Any, kind: str) -> Any:
    """Return a value as a type takes it, by the words of its annotation."""
    if not isinstance(value, str):
        return value
    if "bool" in kind:
        return True if value.lower() in _TRUE else False if value.lower() in _FALSE else UNKNOWN
    names = [name for name in _CONVERT if name in kind]
    is_several = any(word in kind.lower() for word in ("list", "dict", "literal", "tuple"))
    return lifted(_CONVERT[names[0]], value) if len(names) == 1 and not is_several else UNKNOWN


def _of_class(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    words = run.items(run.argv)
    if not args or not isinstance(args[0], ClassValue) or words is None:
        return UNKNOWN
    return _object(run, args[0], _given([str(word) for word in words[1:]]))


def _of_function(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Call a function with the words of the command line, as Fire does."""
    words = run.items(run.argv)
    function = args[0] if args else UNKNOWN
    if not isinstance(function, FunctionValue) or words is None or not all(isinstance(word, str) for word in words):
        run.call(function, [], {}, is_open=True)
        return UNKNOWN
    given = {name: _literal(value) for name, value in _given(words[1:]).items()}
    names = {one.arg for one in (*function.node.args.args, *function.node.args.kwonlyargs)}
    is_open = function.node.args.kwarg is None and not given.keys() <= names
    return run.call(function, [], given, is_open=is_open)


def _literal(value: Any) -> Any:
    """Return a word as Fire reads it: as Python, if it is that, else as a text."""
    if not isinstance(value, str):
        return value
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return (
        Container(list(found)) if isinstance(found, list) else found if not isinstance(found, (dict, set)) else UNKNOWN
    )


FIELDS: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    **dict.fromkeys(_HF, _made),
    f"{_HF[0]}.parse_args_into_dataclasses": _from_words,
    f"{_HF[0]}.parse_json_file": _from_file("json"),
    f"{_HF[0]}.parse_yaml_file": _from_file("yaml"),
    **dict.fromkeys(("tyro.cli", "simple_parsing.parse"), _of_class),
    "fire.Fire": _of_function,
}
