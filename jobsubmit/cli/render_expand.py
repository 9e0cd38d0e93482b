"""Show the arguments and the environment of each process of a job: render --expand."""

from __future__ import annotations

import json
from typing import Any

from jobsubmit.cli.console import out
from jobsubmit.errors import UsageError
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.processes import Environment, Expansion, Process, Value, expand


def show_expansion(plan: LaunchPlan, node: str) -> None:
    """Show the arguments and the environment of the processes of all nodes, or of one."""
    expansion = expand(plan, only=_chosen(node, plan.nodes))
    for note in expansion.notes:
        out.talk(f"note: {note}")
    if out.json:
        out.data(json.dumps(_document(plan, expansion), ensure_ascii=False))
    else:
        _show(expansion, "command" if plan.command is not None else "boot file")


def _chosen(node: str, nodes: int) -> int | None:
    if node == "all":
        return None
    if not node.isdecimal() or int(node) >= nodes:
        raise UsageError(f"--node {node}: must be `all`, or a number from 0 to {nodes - 1}")
    return int(node)


def _document(plan: LaunchPlan, expansion: Expansion) -> dict[str, Any]:
    """Return it as JSON: shared values once; a process has its own `argv` if that differs."""
    shared = expansion.nodes[0].processes[0].argv
    return {
        "name": plan.name,
        "mode": plan.mode,
        "argv": [_value(word) for word in shared],
        "environment": _values(expansion.environment),
        "nodes": [
            {
                "node": node.index,
                "environment": _values(node.environment),
                "processes": [_process(process, shared) for process in node.processes],
            }
            for node in expansion.nodes
        ],
        "notes": list(expansion.notes),
    }


def _process(process: Process, shared: tuple[Value, ...]) -> dict[str, Any]:
    own = {} if process.argv == shared else {"argv": [_value(word) for word in process.argv]}
    environment = _values(process.environment)
    return {"rank": process.rank, "local_rank": process.local_rank, "environment": environment, **own}


def _values(environment: Environment) -> dict[str, Any]:
    return {name: _value(value) for name, value in environment.items()}


def _value(value: Value) -> dict[str, Any]:
    found: dict[str, Any] = {"value": value.text, "origin": value.origin}
    if value.is_open:
        found["open"] = True
    if value.field:
        found["field"] = value.field
    return found


def _show(expansion: Expansion, started: str) -> None:
    out.data("# every process")
    _show_environment(expansion.environment)
    for node in expansion.nodes:
        out.data(f"# node {node.index}")
        _show_environment(node.environment)
        for process in node.processes:
            who = f"its process (the {started} starts the ranks)" if process.rank is None else f"rank {process.rank}"
            out.data(f"# node {node.index}, {who}")
            for word in process.argv:
                out.data(f"  {word.text:<58} {_who(word)}")
            _show_environment(process.environment)


def _show_environment(environment: Environment) -> None:
    for name, value in environment.items():
        out.data(f"  {name + '=' + value.text:<58} {_who(value)}")


def _who(value: Value) -> str:
    return f"{value.origin}{', known on the node' if value.is_open else ''}"
