"""Programs that every node of a job starts in the same way, and that do not find each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import SPAWNS
from jobsubmit.check.shell.started import Started
from jobsubmit.common.finding import Finding

# Variables that say which node or process this is: those of launchers, schedulers and platforms.
# Not those of torch's launchers, which nobody sets here.
_NUMBERS = re.compile(
    r"(?!(?:LOCAL_)?(?:RANK|WORLD_SIZE)$)"
    r"(?:[A-Z]+_)*(?:RANK|NODE_?ID|PROCID|TASK_INDEX|NODE_INDEX|WORLD_SIZE|MACHINE_RANK)"
)
_PLAIN = "python"


def check_alone(code: Code, started: Started, last: Started) -> Iterator[Finding]:
    """Yield a warning where `python train.py` trains on several nodes, and nothing says which node each one is."""
    if code.facts.nodes == 1 or started.launch.launcher != _PLAIN or code.has_framework or "backward" not in code.names:
        return
    names = {name for name, value in last.environment.items() if started.environment.get(name) != value}
    is_numbered = started.words != last.words or not names <= {contract.NODE_RANK, contract.NODE_INDEX}
    sets_rank = any(
        isinstance(node.ctx, ast.Store) and code.values.of(node.slice, module) == contract.RANK
        for module, node in code.program.of(ast.Subscript)
        if code.program.name_of(node.value, module) == "os.environ"
    )
    if not is_numbered and not sets_rank and not any(map(_NUMBERS.fullmatch, code.texts)) and not code.program.unread:
        text = f"nothing says to the program which of the {code.facts.nodes} nodes it is on: each would train by itself"
        hint = "start it with torchrun, which needs $NNODES, $NODE_RANK and $MASTER_ADDR, or set resources.nodes: 1"
        if any(name in SPAWNS for _, _, name in code.program.calls):
            hint = "pass it its number, $NODE_RANK, with `bash -c`, or set resources.nodes: 1"
        yield Finding("warning", "launcher-nodes", started.where, text, hint)
