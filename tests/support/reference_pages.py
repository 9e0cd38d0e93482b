"""Write the reference pages of the documentation from the code: `python tests/support/reference_pages.py`."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

import jobsubmit
from jobsubmit import errors
from jobsubmit.backends.shared import failure_hints
from jobsubmit.cli import app, upload
from jobsubmit.cli.commands import ABOUT, ALIASES, COMMANDS, Command
from jobsubmit.spec.json_schema import json_schema

FOLDER = Path(__file__).resolve().parents[2] / "docs/reference"
_MODES = {"SpawnSpec": "spawn", "LaunchSpec": "launch", "TorchrunSpec": "torchrun", "CommandSpec": "command"}
_MADE = "<!-- Made by tests/support/reference_pages.py: do not edit. -->\n"


@cache
def pages() -> dict[str, str]:
    """Return every page by the name of its file."""
    made = {
        "fields.md": _fields(),
        "commands.md": _commands(),
        "exit-codes.md": _exit_codes(),
        "failures.md": _failures(),
        "python-api.md": _python_api(),
    }
    return {**{name: f"{_MADE}{text.rstrip()}\n" for name, text in made.items()}, "../llms.txt": _llms_text()}


# ── fields ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fields() -> str:
    definitions: dict[str, Any] = json_schema()["$defs"]
    shared: dict[str, tuple[Any, list[str]]] = {}
    for name, mode in _MODES.items():
        for field, schema in definitions[name]["properties"].items():
            shared.setdefault(field, (schema, []))[1].append(mode)
    shared.pop("mode")
    parts = [
        "# Fields of a job file\n\nRequired are `name`, `code_dir`, and either `mode` with `boot_file`, or `command`. "
        "How a file is read: [The job file](../job-file.md).\n",
        "## Top level\n",
        "`mode`: `spawn`, `launch` or `torchrun`. It may be left out with `command`, which mode `spawn` cannot have.\n",
        *_entries({field: schema for field, (schema, _) in shared.items()}, {f: m for f, (_, m) in shared.items()}),
    ]
    for name in sorted(definitions.keys() - _MODES):
        title = name.removesuffix("Spec")
        kind = title.removesuffix("Backend").lower() if title.endswith("Backend") else ""
        heading = f"`backend`, `kind: {kind}`" if kind else title
        about = str(definitions[name].get("description", "")).partition("\n")[0]
        parts += [f"## {heading}\n", f"{about}\n", *_entries(definitions[name]["properties"])]
    return "\n".join(parts)


def _entries(properties: Mapping[str, Any], modes: Mapping[str, list[str]] | None = None) -> Iterator[str]:
    for field, schema in properties.items():
        facts = [_type_of(schema)]
        if schema.get("default") not in (None, [], {}):
            facts.append(f"default `{json.dumps(schema['default'])}`")
        if modes and len(modes[field]) < len(_MODES):
            facts.append(f"{'mode' if len(modes[field]) == 1 else 'modes'} {', '.join(modes[field])}")
        yield f"`{field}` ({'; '.join(filter(None, facts))})\n: {schema.get('description', '')}"
        for example in schema.get("examples", ())[:1]:
            yield f"  Example: `{field}: {_as_yaml(example)}`"
        yield ""


def _type_of(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2].removesuffix("Spec")
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = schema.get("discriminator", {}).get("mapping")
    if values or kinds:
        return f"{'mapping with `kind`: ' if kinds else ''}{' or '.join(f'`{value}`' for value in values or kinds)}"
    if "anyOf" in schema:
        types = dict.fromkeys(_type_of(one) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(filter(None, types))
    kind = schema.get("type", "")
    if kind == "array":
        return f"list of {_type_of(schema.get('items', {})) or 'values'}"
    named = {"object": "mapping", "string": "text"}
    return " or ".join(named.get(one, str(one)) for one in (kind if isinstance(kind, list) else [kind]))


def _as_yaml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_as_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_yaml, value)) + "]"
    return json.dumps(value) if not isinstance(value, str) or not _is_plain(value) else value


def _is_plain(text: str) -> bool:
    return all(sign.isalnum() or sign in "/._-" for sign in text) and not text.replace(".", "").isdigit()


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _commands() -> str:
    parts = [
        "# Commands\n",
        "Every command also takes `-o json` and `--debug`; `--help` shows the same as this page.\n",
    ]
    for name, (file, function, *_) in COMMANDS.items():
        if name in ALIASES:
            continue
        also = ", ".join(f"`{alias}`" for alias, of in ALIASES.items() if of == name)
        command = getattr(importlib.import_module(f"jobsubmit.cli.{file}"), function)
        parts += [f"## {name}\n", *([f"Also: {also}.\n"] if also else [])]
        parts += _own_parser(name) if name in ("upload", "download") else _typer_command(name, command)
        parts += _examples(COMMANDS[name])
    return "\n".join(parts)


def options_of(name: str) -> set[str]:
    """Return the names of a command's options."""
    if ALIASES.get(name, name) in ("upload", "download"):
        return {option for action in upload.make_parser(name)._actions for option in action.option_strings}
    return {option for param in _command(name).params for option in (*param.opts, *param.secondary_opts)}


def _command(name: str) -> Any:
    app.register(name)
    command: Any = typer.main.get_command(app.app)
    return getattr(command, "commands", {name: command})[name]


def _typer_command(name: str, function: Any) -> Iterator[str]:
    command = _command(name)
    arguments = [param for param in command.params if not param.opts[0].startswith("-")]
    words = [param.metavar if param.required else f"[{param.metavar}]" for param in arguments]
    yield from _page_of(" ".join(["jobsubmit", name, "[OPTIONS]", *words]), inspect.getdoc(function) or "")
    for param in arguments:
        yield _option(param.metavar, "", param.help, param.show_default)
    for param in command.params:
        if param not in arguments and param.name not in ("format_", "debug"):
            names = ", ".join((*param.opts, *param.secondary_opts))
            yield _option(
                names, "" if param.default in (True, False) else param.metavar or "", param.help, param.show_default
            )


def _own_parser(name: str) -> Iterator[str]:
    parser = upload.make_parser(name)
    yield from _page_of(
        f"jobsubmit {name} [OPTIONS] {'DIR URI' if name == 'upload' else 'URI DIR'}", parser.description or ""
    )
    for action in parser._actions:
        if not set(action.option_strings) & {"-h", "-o", "--debug"}:
            metavar = str(action.metavar or "/".join(action.choices or ()))
            yield _option(
                ", ".join(action.option_strings) or metavar,
                metavar if action.option_strings and action.nargs != 0 else "",
                action.help,
                None,
            )


def _examples(command: Command) -> list[str]:
    """Return the examples of a command, a line each, and links to related ones."""
    shown = "\n".join(f"jobsubmit {example}" for example in command.examples)
    links = (f"[{name}](#{name.partition(' ')[0]})" for name in command.see_also)
    return [f"```sh\n{shown}\n```\n", f"See also: {', '.join(links)}\n"]


def _page_of(usage: str, text: str) -> Iterator[str]:
    """Yield how a command is called, and what it does."""
    yield f"```text\n{usage}\n```\n"
    for part in text.split("\n\n"):
        yield f"{' '.join(part.split())}\n"


def _option(names: str, metavar: str, about: str | None, default: object) -> str:
    shown = f" Default: {default}." if isinstance(default, str) else ""
    return f"`{names}{' ' if metavar else ''}{metavar}`\n: {(about or '').rstrip('.')}.{shown}\n"


# ── exit codes, failures ────────────────────────────────────────────────────────────────────────────────────────────


def _exit_codes() -> str:
    rows = [f"| {code} | {meaning} |" for code, meaning in errors.EXIT_CODES.items()]
    return "\n".join(
        [
            "# Exit codes\n",
            "| code | meaning |",
            "|---|---|",
            *rows,
            "",
            "- `--propagate-exit-code` (`create`, `run`, `rerun`, `wait`): a failed job exits with the code of the "
            "process that failed first, 128+N for signal N.",
            "- A command that only shows something ends by SIGPIPE (141) when its reader is gone, as in "
            "`jobsubmit logs JOB | head`. A command that changes something finishes, and keeps its exit code.",
            "- SIGTERM and SIGHUP end a command (143, 129) after it has removed its temporary files and released its "
            "lease. `--debug` changes no exit code.",
        ]
    )


def _failures() -> str:
    parts = [
        "# What failures mean\n",
        "`status`, `wait`, `create --follow` and the page of `report --html` say what a failure means and what to do. "
        "The reasons of the first section have an explanation of their own. Otherwise the first pattern below that "
        "matches the last lines of the process counts, and then the signal that ended it. `{0}` and `{1}` stand for "
        "what the first and the second group of the pattern matched.\n",
        "## By reason\n",
    ]
    parts += [
        f"- **{reason}**: {known.meaning}. Hint: {known.hint}.\n" for reason, known in failure_hints.REASONS.items()
    ]
    for row in failure_hints.TABLE:
        parts += [f"## {_as_title(row.meaning)}\n", f"{_as_title(row.hint)}.\n"]
        parts += [f"```text\n{row.pattern}\n```\n"]
    parts.append("## By signal\n")
    for number, known in failure_hints.SIGNALS.items():
        parts.append(f"- **{signal.Signals(number).name}**: {known.meaning}. Hint: {known.hint}.\n")
    return "\n".join(parts)


def _as_title(text: str) -> str:
    """Return a text with a capital, unless it begins with a name in code, such as `torch.load`."""
    first = text.split(maxsplit=1)[0]
    return text if "." in first or "_" in first else f"{text[:1].upper()}{text[1:]}"


# ── Python ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _python_api() -> str:
    names = [name for name in jobsubmit.__all__ if not name.startswith("_")]
    functions = [name for name in names if inspect.isfunction(getattr(jobsubmit, name))]
    parts = ["# Python API\n", f"{(jobsubmit.__doc__ or '').partition('    import')[0].strip()}\n"]
    parts += ['```python\nimport jobsubmit\n\njob = jobsubmit.load("job.yaml")\nhandle = jobsubmit.create(job)']
    parts += ["print(jobsubmit.wait(handle).state)\n```\n", "## Functions\n"]
    for name in functions:
        parts += [
            f"### {name}\n",
            *_described(getattr(jobsubmit, name), f"{name}{_signature(getattr(jobsubmit, name))}"),
        ]
    parts.append("## Results and errors\n")
    for name in sorted(set(names) - set(functions), key=str.lower):
        value = getattr(jobsubmit, name)
        if inspect.isclass(value):
            parts += [f"### {name}\n", *_described(value, "")]
            fields = [field for field in getattr(value, "__annotations__", {}) if not field.startswith("_")]
            if fields and not issubclass(value, Exception):
                parts.append(f"Fields: {', '.join(f'`{field}`' for field in fields)}.\n")
    return "\n".join(parts)


def _signature(function: Any) -> str:
    return str(inspect.signature(function)).replace("'", "")


def _described(value: Any, call: str) -> Iterator[str]:
    if call:
        yield f"```text\n{call}\n```\n"
    about, *rest = (inspect.getdoc(value) or "").split("\n\n")
    yield f"{about}\n"
    for part in rest:
        is_code = any(sign in part for sign in ("jobsubmit.", "print(", " = "))
        yield f"```python\n{part}\n```\n" if is_code else f"{part}\n"


# ── for programs ────────────────────────────────────────────────────────────────────────────────────────────────────


def _llms_text() -> str:
    """Return the list of pages that coding assistants look for (the format of llmstxt.org)."""
    docs = FOLDER.parent
    index = (docs / "index.md").read_text(encoding="utf-8")
    parts = [f"# jobsubmit\n\n> {ABOUT}\n"]
    for caption, names in re.findall(r"^:caption: (.+)\n:maxdepth: 1\n\n((?:[\w/-]+\n)+)", index, re.MULTILINE):
        parts.append(f"## {caption.rstrip(' …')}\n")
        for name in names.split():
            title = re.search(r"^# (.+)$", (docs / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)
            parts.append(f"- [{title[1] if title else name}]({name}.md)")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {FOLDER}\n")
