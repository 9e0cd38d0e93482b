"""Write docs/develop/node-contract.md from the table that the code uses."""

from __future__ import annotations

from pathlib import Path

from jobsubmit.agent import node_contract as contract

PAGE = Path(__file__).resolve().parents[2] / "docs/develop/node-contract.md"
_HEAD = """# The node contract

What the processes of a node find in their environment. This page is made from the table in
`jobsubmit/agent/node_contract.py`, which also decides what a job file must not set, what is removed from a node's
environment, and what `render --expand`, the commands of `render --hosts` and the environment of pods hold.

A *reserved* variable cannot be set in `env` or `secrets`. On the backends that pass on the environment of your shell,
local and Slurm, it is removed if your shell has set it. The same applies to all variables that begin with {prefixes}.
"""
_SOURCES = {
    contract.PLATFORM: "Set by the platform (ModelArts, Volcano), or by jobsubmit under the same names elsewhere",
    contract.JOBSUBMIT: "Given by jobsubmit",
    contract.SCRIPT: "Set by the start script, from those of the platform",
    contract.LAUNCHER: "Set by the launcher (torch.distributed.run) for each process",
    contract.SHELL: "Reserved because they change how bash runs the start script",
}


def page() -> str:
    """Return the page."""
    prefixes = ", ".join(f"`{prefix}`" for prefix in contract.RESERVED_PREFIXES)
    parts = [_HEAD.format(prefixes=prefixes)]
    for source, title in _SOURCES.items():
        rows = [
            f"| `{variable}` | {variable.meaning} | {_differs(variable)} | {'yes' if variable.is_reserved else 'no'} |"
            for variable in contract.TABLE
            if variable.given_by == source and not variable.meaning.startswith("of the agent")
        ]
        parts.append(
            "\n".join([f"{title}:\n", "| variable | meaning | differs by | reserved |", "|---|---|---|---|", *rows])
        )
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _differs(variable: contract.Variable) -> str:
    if not variable.same_in_all_processes:
        return "process"
    return "" if variable.same_on_all_nodes else "node"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
