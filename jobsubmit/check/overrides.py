"""Arguments for Hydra and OmegaConf, which take NAME=VALUE and refuse a name that the configuration lacks."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from jobsubmit.check.arguments import Word
from jobsubmit.check.code import Code
from jobsubmit.check.parsers.hf_argument_parser import file_of_settings
from jobsubmit.check.program.configuration import parse_text, read_text
from jobsubmit.check.program.hydra import FLAGS
from jobsubmit.check.program.module import unparsed
from jobsubmit.common.finding import Finding


def check_overrides(code: Code, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield options, names that the configuration lacks, and values that are not given."""
    if code.line.kind in ("omegaconf", "argparse"):
        yield from _with_dashes(code, words)
    if code.line.kind == "omegaconf":
        yield from _not_in_class(code, words)
    if code.line.kind == "HfArgumentParser":
        yield from _not_in_dataclasses(code)
    composed = code.values.composed
    if composed is None or code.line.kind != "hydra":
        return
    refused = [word for word in words if word.text.startswith("--") and not FLAGS.match(word.text)]
    if any(
        code.program.name_of(one, home) == "sys.argv" for home, one in code.program.attribute_stores.get("argv", ())
    ):
        refused = []  # it may take the dashes away first
    if code.facts.mode == "spawn" and refused:
        names = ", ".join(word.name for word in refused)
        yield Finding(
            "error",
            "argument-unknown",
            code.program.boot.path,
            f"Hydra takes NAME=VALUE, without dashes: it does not accept {names}, which mode spawn passes",
            "use mode: torchrun with `args`, or a `command:` of your own",
        )
        return
    for word in refused:
        yield Finding(
            "error",
            "argument-unknown",
            word.field,
            f"Hydra does not accept {word.name}: it takes NAME=VALUE, without dashes",
            f"give it in `args`: [{word.text.removeprefix('--')}]",
        )
    if not composed.is_complete:
        return
    fields = {word.text: word.field for word in words}
    for override in composed.refused:
        text = f"{override.name}={override.text}"
        yield Finding(
            "error",
            "argument-unknown",
            fields.get(text, ""),
            f"the configuration has no {override.name}: Hydra refuses to override it",
            f"correct the name, or add the value: +{text}",
        )
    for name in composed.missing:
        if name.rpartition(".")[2] in code.program.attribute_stores:
            continue  # the program sets it: `cfg.model.classes = len(data.classes)`
        yield Finding(
            "warning",
            "argument-missing",
            code.program.boot.path,
            f"{name} must be given: the configuration has `???` for it",
            f"add {name}=… to `args`",
        )


def _not_in_dataclasses(code: Code) -> Iterator[Finding]:
    """Yield an error for a setting of the file that HfArgumentParser reads, if no dataclass has it.

    Source: `HfArgumentParser.parse_dict` of transformers 4 and 5, which `allow_extra_keys` makes lenient.
    """
    file, line = file_of_settings(code.facts.argv), code.line
    settings = parse_text(read_text(code.program, file)) if file and not line.gaps else None
    known = {option.field for option in line.options}
    is_lenient = any(
        node.arg == "allow_extra_keys" and getattr(node.value, "value", None) is True
        for _, node in code.program.of(ast.keyword)
    )
    for name in settings if isinstance(settings, dict) and len(known) > 1 and not is_lenient else ():
        if name not in known and (like := get_close_matches(str(name), known, 1) or not line.may_have_more):
            hint = f"use {like[0]}" if isinstance(like, list) else "remove it, or add it to a dataclass"
            text = f"no dataclass has {name}: HfArgumentParser refuses the file"
            yield Finding("warning" if line.may_have_more else "error", "argument-unknown", file, text, hint)
            return


def _with_dashes(code: Code, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield a warning for options with dashes, which OmegaConf takes as parts of the names.

    They are all that the job gives, or those that a parser leaves: `OmegaConf.from_cli(unknown)`.
    """
    reads = [call for _, call, name in code.reached.calls if name.endswith("OmegaConf.from_cli")]
    takes_rest = any(call.args or call.keywords for call in reads)
    is_left = code.line.kind == "argparse" and not code.line.is_strict and not code.line.gaps
    for word in words if reads and takes_rest is is_left else ():
        is_taken = is_left and code.line.option(word.name) is not None
        if word.text.startswith("--") and word.field and not is_taken:
            yield Finding(
                "warning",
                "argument-unknown",
                word.field,
                f"OmegaConf.from_cli() takes NAME=VALUE: the dashes of {word.name} become part of the name",
                f"give it in `args`: [{word.text.removeprefix('--')}]",
            )


def _not_in_class(code: Code, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield an error for a name that the dataclass lacks which `OmegaConf.structured` makes the configuration of."""
    made = [(module, call) for module, call, name in code.reached.calls if name.endswith("OmegaConf.structured")]
    known = code.values.of(made[0][1], made[0][0]) if len(made) == 1 else None
    if not isinstance(known, dict):
        return
    taken_out = {node.attr for _, node in code.program.of(ast.Attribute) if isinstance(node.ctx, ast.Del)}
    taken_out |= {_entry_taken(call) for _, call, _ in code.reached.calls}
    for word in words:
        name, sign, _ = word.text.partition("=")
        lacking = _lacking(known, name.split("."))
        if sign and lacking and name.split(".")[0] not in taken_out:
            yield Finding(
                "error",
                "argument-unknown",
                word.field,
                f"{unparsed(made[0][1].args[0])} has no field {lacking}: OmegaConf refuses it",
                "correct the name",
            )


def _entry_taken(call: ast.Call) -> str:
    """Return the entry that a call takes out of a mapping: `cfg.pop("config")`."""
    match call:
        case ast.Call(func=ast.Attribute(attr="pop"), args=[ast.Constant(value=str(name)), *_]):
            return name
    return ""


def _lacking(known: Mapping[str, Any], parts: Sequence[str]) -> str:
    """Return the dotted name that a configuration lacks, down to what may have any entries; empty if it has all."""
    inner: Any = known
    for place, part in enumerate(parts):
        if not isinstance(inner, dict) or not inner:
            return ""
        if part not in inner:
            return ".".join(parts[: place + 1])
        inner = inner[part]
    return ""
