"""Programs that start a launcher, in each of the processes that another one starts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.origins import origins
from jobsubmit.check.program.module import unparsed
from jobsubmit.common.finding import Finding

_STARTS = (
    *("os.system", "os.popen", "os.execvp", "os.execv", "os.execlp"),
    *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")),
)
_LAUNCHER = re.compile(r"\b(torchrun|torch\.distributed\.(?:launch|run)|accelerate[\"', ]+launch|deepspeed(?=[\"' ]))")
_SETTINGS = re.compile(r"\w*(?:args?|opts?|options|cfg|conf|config|flags|parser)", re.IGNORECASE)


def check_launched_again(code: Code) -> Iterator[Finding]:
    """Yield a warning where each process of a launcher starts another launcher, with processes of its own."""
    if not code.facts.has_launcher or code.facts.nproc == 1:
        return
    for module, call in code.calls(*_STARTS):
        parts = origins(code, call.args[0], module, but=_SETTINGS) if call.args else []
        found = _LAUNCHER.search("\n".join(unparsed(part) for _, part in parts))
        if found is not None and not code.is_of_one(call):
            name = re.sub(r"\W+launch$", " launch", found[1])
            yield Finding(
                "warning",
                "nested-spawn",
                module.where(call),
                f"this starts {name} in each process that mode {code.facts.mode} starts: each of them would start "
                "more processes",
                "name the program that it starts as boot_file, or start this one once per node: command: [python, …]",
            )
            return
