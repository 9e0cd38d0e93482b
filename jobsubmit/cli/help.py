"""The output of `jobsubmit --help`: all commands in groups, with frames on a terminal and plain in a pipe."""

from __future__ import annotations

import sys

from jobsubmit.cli.commands import ABOUT, ALIASES, BEGIN, GROUPS
from jobsubmit.cli.console import out

_USAGE = "jobsubmit COMMAND [OPTIONS] [ARGUMENTS]"
_OPTIONS = {
    "--version": "Print the version.",
    "-h, --help": "Show this help, or the help of a command.",
    "--debug": "Show the traceback of an error.",
    "-o, --output": "text for people, json for programs (after the command).",
}
_NEXT = "Options and examples: jobsubmit COMMAND --help · Topics: jobsubmit help"


def show_help() -> None:
    """Show all commands."""
    if sys.stdout.isatty():
        _draw()
    else:
        out.data("\n".join(_lines()))


def _sections() -> dict[str, dict[str, str]]:
    commands = {
        group: {_named(name): command.about for name, command in found.items()} for group, found in GROUPS.items()
    }
    return {**commands, "Options": _OPTIONS}


def _named(name: str) -> str:
    alias = next((alias for alias, of in ALIASES.items() if of == name), "")
    return f"{name}, {alias}" if alias else name


def _lines() -> list[str]:
    sections = _sections()
    width = max(len(name) for section in sections.values() for name in section)
    lines = [f"Usage: {_USAGE}", "", ABOUT]
    for title, rows in sections.items():
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {about}" for name, about in rows.items())]
    return [*lines, "", BEGIN, _NEXT]


def _draw() -> None:
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    sections = _sections()
    width = max(len(name) for section in sections.values() for name in section)
    out.stdout.print(Text.assemble("\n ", ("Usage: ", "bold yellow"), (_USAGE, "bold"), "\n"))
    out.stdout.print(Padding(ABOUT, (0, 1, 1, 1)), soft_wrap=False)
    for title, rows in sections.items():
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold cyan", no_wrap=True, min_width=width)
        table.add_column()
        for name, about in rows.items():
            table.add_row(name, about)
        out.stdout.print(Panel(table, title=title, title_align="left", border_style="dim"), soft_wrap=False)
    out.stdout.print(Text.assemble("\n ", (BEGIN, "bold"), "\n ", _NEXT, "\n"))
