"""Compare the arguments that a boot file gets with those that it accepts."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from jobsubmit.check.parsers.accepted import CommandLine, Option, Refusal
from jobsubmit.common.finding import Finding, Level
from jobsubmit.spec.modes import Start

_NO = ("false", "0", "no", "off", "none")


class Word(NamedTuple):
    """A word of the command line and the field of the job file it is from; empty where the platform adds it."""

    text: str
    field: str

    @property
    def name(self) -> str:
        """Return `--name`, or nothing for a plain word, such as a negative number."""
        is_option = self.text.startswith("-") and not _NEGATIVE.fullmatch(self.text)
        return self.text.partition("=")[0] if is_option else ""

    @property
    def value(self) -> str:
        """Return what comes after `--name=`, or the whole of a plain word."""
        return self.text.partition("=")[2] if self.name else self.text


_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")  # as argparse has it
_SHOWN = 8
_AS_TYPED = ("args", "command")  # fields whose words are passed one by one
_OF_A_PROCESS = ("world_size", "rank", "init_method")
_BOTH = 'declare both spellings: add_argument("--local-rank", "--local_rank", type=int)'
_RANKS = "declare --world_size and --rank, and use them (they count nodes); if parse_known_args() only "
_RANKS += "skips them, each node trains alone"
_LOCAL_RANK = ("--local-rank", "--local_rank")
_ADDED = "torch.distributed.launch adds it: use torchrun, add --use_env, or declare both --local-rank and --local_rank"
_INJECTED = {"--local-rank": _BOTH, "--local_rank": _BOTH, "--world_size": _RANKS, "--rank": _RANKS}
_WHO = {
    "spawn": "mode spawn",
    "launch": "torch.distributed.launch",
    "torchrun": "the launcher",
    "command": "jobsubmit",
}


def check_arguments(line: CommandLine, words: Sequence[Word], boot_file: str, mode: Start) -> Iterator[Finding]:
    """Yield the arguments that the boot file rejects or misreads, and those that are missing."""
    for gap in line.gaps[:1]:
        yield Finding("unknown", "arguments", gap.where, f"not all accepted arguments are known: {gap.why}")
    if line.kind == "none":
        yield from _unread(words, boot_file)
    yield from _without_effect(line, words)
    if line.kind not in ("none", "unknown", "hydra", "omegaconf"):
        yield from _of_commands(line, words, mode) if line.commands else _of_line(line, words, mode)


def _without_effect(line: CommandLine, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield the hyperparameters that args give again: they come later, and the last value counts."""
    names = {word.name for word in words if word.field == "args"} - {""}
    for word in words:
        option = line.option(word.name) if word.name else None
        is_repeatable = option is not None and option.settings.get("action") in ("append", "extend", "count")
        if word.field.startswith("hyperparameters") and word.name in names and not is_repeatable:
            said = f"{word.name} is also in args, which come later: this value has no effect"
            yield Finding("warning", "argument-twice", word.field, said, "change it in args, or remove it there")


def _of_commands(line: CommandLine, words: Sequence[Word], mode: Start) -> Iterator[Finding]:
    """Yield what is wrong before the name of a subcommand, with that name, and after it."""
    texts = [word.text for word in words]
    position, chosen = line.command_at(texts), line.chosen(texts)
    yield from _of_line(line, words[:position], mode)
    if chosen is not None and position is not None:
        yield from _of_line(chosen, words[position + 1 :], mode)
        return
    if line.gaps:
        return
    names = ", ".join(line.commands)
    if position is not None:
        said = f"{words[position].text!r}: {line.parsed_at} has no such command (it has {names})"
        yield Finding("error", "argument-choice", words[position].field, said)
    elif line.needs_command:
        said = f"a command is required but not given (one of {names})"
        yield Finding("error", "argument-missing", line.parsed_at, said, _place_of_words(mode))


def _of_line(line: CommandLine, words: Sequence[Word], mode: Start) -> Iterator[Finding]:
    words = [words[position]._replace(text=text) for position, text in line.joined([word.text for word in words])]
    options, plain = _parted(line, words)
    for word in options:
        yield from _refused(line, word, mode)
    if line.gaps:
        return
    yield from _missing(line, words, mode)
    if not line.is_strict:
        return
    for text in dict.fromkeys(line.leftover([word.text for word in words])):
        for word in plain:
            if word.text == text:
                said = f"{line.parsed_at} does not accept the positional argument {text!r}"
                yield Finding("error", "argument-unknown", word.field, said)


def _parted(line: CommandLine, words: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    """Return the options with their values, also those that are given as two words, and the words that are none."""
    options: list[Word] = []
    plain: list[Word] = []
    rest = list(words)
    before_all = _positionals_before_all(line)
    while rest:
        word = rest.pop(0)
        if word.text == "--" or (plain and len(plain) >= before_all):  # what follows are no options
            plain += [other for other in rest if other.field in _AS_TYPED]
            break
        following = _values_of(line, word, rest)
        if not word.name:
            if word.field in _AS_TYPED:
                plain.append(word)
        elif following is None or word.field not in _AS_TYPED or "=" in word.text:
            options.append(word)
        else:
            text = f"{word.text}={following[0].text}" if len(following) == 1 else word.text
            if len(following) <= 1 or line.meant(word.name) is None:
                options.append(word._replace(text=text))
            del rest[: len(following)]
    return options, plain


def _positionals_before_all(line: CommandLine) -> float:
    """Return after how many words all that follows goes to one argument (argparse.REMAINDER), as launchers have it."""
    positionals = [option for option in line.options if option.is_positional]
    counts = [count for count, option in enumerate(positionals) if option.settings.get("nargs") == argparse.REMAINDER]
    return counts[0] if counts else math.inf


def _values_of(line: CommandLine, word: Word, rest: Sequence[Word]) -> list[Word] | None:
    """Return the words that follow an option as its values; None where that is unknown."""
    option = line.meant(word.name) if word.name else None
    given = list(takewhile(lambda other: not other.name, rest))
    if option is None or option.settings.get("action", "store") not in ("store", "append"):
        return given if option is None and word.name.startswith("--") else []
    return given[:1] if option.settings.get("nargs") is None else given


def _unread(words: Sequence[Word], boot_file: str) -> Iterator[Finding]:
    given = [word for word in words if word.field]
    if given:
        names = ", ".join(word.name or word.text for word in given[:3])
        yield Finding("unknown", "arguments", boot_file, f"no argument parser was found that reads {names}")


def _refused(line: CommandLine, word: Word, mode: Start) -> Iterator[Finding]:
    refusal = line.refusal(word.text)
    if refusal is None:
        option = line.option(word.name)
        if option is not None and _is_trap(option, word):
            yield Finding(
                "error",
                "argument-bool",
                word.field,
                f"{word.text} means True: {option.where} declares it with type=bool, and bool('false') is True",
                "leave it out for False, or declare it with action=argparse.BooleanOptionalAction",
            )
    elif refusal.kind == "unknown":
        yield from _unknown(line, word, mode)
    elif refusal.option is not None and _is_certain(line, refusal.option):
        yield _wrong_value(line, refusal, refusal.option, word)


def _is_certain(line: CommandLine, option: Option) -> bool:
    """Return whether a value is refused in any case: an option that is perhaps not declared would not be known then."""
    return option.is_sure or (line.is_strict and not line.gaps)


def _is_trap(option: Option, word: Word) -> bool:
    return option.is_sure and option.type == "bool" and word.text.partition("=")[2].lower() in _NO


def _wrong_value(line: CommandLine, refusal: Refusal, option: Option, word: Word) -> Finding:
    who = "" if word.field else ", which the platform adds"
    text = f"{word.text}{who}: {refusal.text} (declared at {option.where})"
    hint = "write {flag: true} to switch it on (it takes no value), or leave it out" if refusal.kind == "flag" else ""
    if hint and (off := _switched_off_by(line, option)):
        hint = f"it takes no value: write {{flag: true}} to switch it on, or {off}: {{flag: true}} to switch it off"
    return Finding("error", f"argument-{refusal.kind}", word.field or option.where, text, hint)


def _switched_off_by(line: CommandLine, option: Option) -> str:
    """Return the name of the switch for the opposite, such as `no-cuda` for `--cuda`; empty if there is none."""
    found = (one for one in line.options if one.field == option.field and one.settings.get("action") == "store_false")
    return next((one.names[0].lstrip("-") for one in found if one.names != option.names), "")


def _unknown(line: CommandLine, word: Word, mode: Start) -> Iterator[Finding]:
    meant = _similar(line, word.name) if not line.is_strict else ""
    if not line.gaps and not line.is_strict and word.field and (meant or line.drops_rest):
        text = f"{line.parsed_at} does not declare {word.name} and ignores it"
        hint = f"use {meant}, or declare {word.name}" if meant else _remedy(line, word.name, mode)
        yield Finding("warning", "argument-ignored", word.field, text, hint)
    if line.gaps or not line.is_strict:
        return
    if not word.field:
        yield Finding(
            "error",
            "injected-argument",
            line.parsed_at,
            f"the parser does not accept {word.name}, which {_WHO[mode]} adds on every node (unrecognized arguments)",
            _INJECTED.get(word.name, f"declare {word.name}, or use parse_known_args()"),
        )
        return
    text = f"{line.parsed_at} does not accept {word.name}"
    if line.kind == "fire":
        text += ": Fire runs the whole function without it, and fails only after that"
    level: Level = "warning" if line.may_have_more else "error"
    is_added = word.field == "command" and word.name in _LOCAL_RANK
    yield Finding(level, "argument-unknown", word.field, text, _ADDED if is_added else _remedy(line, word.name, mode))


def _remedy(line: CommandLine, name: str, mode: Start) -> str:
    """Return what the program has instead of an option that it does not know."""
    bare = name.lstrip("-")
    if any(option.is_positional and bare in option.names for option in line.options):
        return f"{bare} is a positional argument, without `--`; {_place_of_words(mode)}"
    if of := next((command for command, own in line.commands.items() if own.option(name)), None):
        return f"{of} accepts it: give it after this word; {_place_of_words(mode)}"
    if meant := _similar(line, name):
        return f"use {meant}, or declare {name}"
    each = [option for option in line.options if option.settings.get("dest") is None or option.takes_value]
    names = [next((own for own in option.names if own.startswith("--")), "") for option in each]
    known = [own for own in dict.fromkeys(names) if own not in ("", "--help")]
    shown = ", ".join(known[:_SHOWN]) + (" …" if known[_SHOWN:] else "")
    return "remove it, or declare it in the parser" + (f" (it has {shown})" if shown else "")


def _similar(line: CommandLine, name: str) -> str:
    """Return the option of a program that may be meant, if one is like it."""
    import difflib

    bare = name.lstrip("-")
    spelled = [own for option in line.options for own in option.names if own.startswith("-")]
    names = {own.lstrip("-"): own for own in sorted(spelled, key=lambda own: own.startswith("--"))}
    same = [own for own in names if own.replace("_", "-") == bare.replace("_", "-")]
    found = same or difflib.get_close_matches(bare, names, 1)
    return names[found[0]] if found else ""


def _place_of_words(mode: Start) -> str:
    """Return where words that are no options are given: in mode spawn a platform passes none."""
    if mode == "spawn":
        return "mode spawn passes no positional arguments: use a `command:` of your own, or mode torchrun with `args`"
    return "give it in `args`"


def _missing(line: CommandLine, words: Sequence[Word], mode: Start) -> Iterator[Finding]:
    for option in line.missing([word.text for word in words]):
        if not option.is_sure:
            continue
        name = max(option.names, key=len)
        hint = f"add it to `hyperparameters` as {name.lstrip('-')}, or with `run` to the command"
        hint = _place_of_words(mode) if option.is_positional else hint
        if name.lstrip("-").replace("-", "_") in _OF_A_PROCESS:
            hint = (
                "read it from the environment, which a launcher sets, or use mode: spawn, which passes --world_size, "
                "--rank and --init_method; a hyperparameter would have the same value on all nodes"
            )
        yield Finding("error", "argument-missing", option.where, f"{name} is required but not given", hint)
