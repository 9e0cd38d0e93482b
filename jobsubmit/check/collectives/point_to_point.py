"""Messages between two ranks: where all ranks wait for another one first, none comes."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.all_ranks import is_for_all
from jobsubmit.check.program.module import FUNCTIONS, Module
from jobsubmit.common.finding import Finding

_RECV, _SEND, _ISEND = (f"torch.distributed.{name}" for name in ("recv", "send", "isend"))
_MESSAGES = (_RECV, _SEND, _ISEND, "torch.distributed.irecv", "torch.distributed.batch_isend_irecv")
_ANSWERS = {_RECV: (_SEND, _ISEND), _SEND: (_RECV,)}  # what a rank comes to only after it has waited


def check_point_to_point(code: Code) -> Iterator[Finding]:
    """Yield a warning where all ranks call recv() before send(), or send() before recv()."""
    if code.world_size == 1:
        return
    messages: dict[ast.AST, list[tuple[ast.Call, str, Module]]] = {}
    for module, call, name in code.reached.calls:
        if name in _MESSAGES:
            messages.setdefault(module.scope_of(call), []).append((call, name, module))
    for found in messages.values():
        (first, name, module), *others = sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset))
        answers = [call for call, kind, _ in others if kind in _ANSWERS.get(name, ())]
        if answers and all(_is_for_all(code, call, module) for call in (first, answers[0])):
            yield Finding(
                "warning",
                "recv-before-send",
                module.where(first),
                "every rank waits in this recv() before it sends anything: the job would hang"
                if name == _RECV
                else "every rank waits in this send() until another one receives, and none does yet: the job may hang",
                "send first on some ranks (if rank % 2 == 0), or use isend(), then recv(), then wait()",
            )
            return


def _is_for_all(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether all ranks surely come to a call, whatever else the function that it is in asks for."""
    around = itertools.takewhile(lambda one: not isinstance(one, FUNCTIONS), module.above(call))
    return not any(isinstance(one, (ast.If, ast.IfExp, ast.Match)) for one in around) and is_for_all(code, call, module)
