"""Shell scripts and commands that start a job: what their shells make of them, and what differs between the nodes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import Code
from jobsubmit.check.shell.commands import SHELLS
from jobsubmit.check.shell.parsing import has_errors, parse_shell
from jobsubmit.check.shell.started import Started
from jobsubmit.check.shell.texts import is_open
from jobsubmit.common.finding import Finding, Level
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.launchers import OF_NODES, OF_SCHEDULERS
from jobsubmit.plan.processes import Value, build_boot_words

_OF_PROCESS = re.compile(r"\$\{?(LOCAL_RANK|RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)\b")
_SAID = re.compile(r"line (\d+): (.*)")
_CONDITIONS = ("if_statement", "case_statement", "list", "while_statement")
_TAKES_ARGUMENTS = re.compile(r"\bin \"?\$@|\bshift\b|\bgetopts?\b|=\"?\$\{?[1-9]|\bcase \"?\$\{?1")
_BY_NUMBER = re.compile(r"\$\{?([1-9])")
_TAKES_ALL = re.compile(r"\$\{?[@*]|\bshift\b|\bgetopts?\b|\bBASH_ARGV\b|\bsource\b|^\s*\. ", re.MULTILINE)
_SHELL_AND_SCRIPT = 2  # words
_STORES = re.compile(r"\b([A-Za-z_]\w*)\+?=")
_NEEDED_BY_NONE = ("echo", "printf", "set", "shift", ":", "[", "[[", "test")
_LONGEST_S = 5
_LONG_VALUE = 8  # letters that are in a word by chance no more
# What each node has another one of.
_OWN = r"(\$RANDOM\b|\$\$|\$HOSTNAME\b|\$\((?:date|uuidgen|hostname|shuf)\b[^)]*\))"
_OWN_ID = re.compile(rf"(--rdzv[_-]id)[=\s]\S*?{_OWN}")
_OWN_SEED = re.compile(rf"(--\w*seed)[=\s]{_OWN}")
_OWN_PORT = re.compile(
    rf"(--(?:dist|master|rdzv|init|main)[_-](?:url|port|endpoint|method|process_port))[=\s]\S*?{_OWN}"
)
_OWN_NAME = r"(\$HOSTNAME\b|\$\((?:hostname|ip|ifconfig)\b[^)]*\))"
_OWN_ADDRESS = re.compile(rf"(--(?:master[_-]addr|main[_-]process[_-]ip|rdzv[_-]endpoint)|MASTER_ADDR)[=\s]{_OWN_NAME}")


# What a node says of itself: a value of the job may be the same number.
_OF_NODES = (contract.NNODES, contract.NODE_RANK, contract.NPROC_PER_NODE, contract.MASTER_PORT)
# Commands that change only the shell in which they are executed.
_OF_THIS_SHELL = re.compile(
    r"(?:export|declare|source|\.|ulimit|umask|cd|alias|unset|module\s+(?:load|add|use|swap)|ml|(?:conda|mamba|micromamba)\s+activate)\s|\w+=\S*\s*$"
)


def check_shell(job: LaunchPlan, started: Started, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield options that a shell takes for a command, variables that it lacks, and texts that nodes do not share."""
    yield from _of_setup_alone(job)
    yield from _unreadable(job, read)
    yield from _cut(started, read)
    yield from _ended(started, read)
    launch = started.launch
    if not launch.launcher:
        return
    yield from _unset_variables(started)
    yield from _dropped(job, started, read)
    if job.nodes > 1:
        yield from _own_texts(started)


def check_replaced(code: Code, job: LaunchPlan) -> Iterator[Finding]:
    """Yield an error for a variable of the nodes in a word that no shell reads: the program gets `$NNODES` as it is."""
    if "expandvars" in code.names:
        return
    given = [(value.text, value.field) for value in build_boot_words(job) if value.field]
    command = job.command or ()
    if not any(word.rpartition("/")[2] in SHELLS for word in command):
        given += [(word, "command") for word in command]
    for text, field in given:
        found = OF_NODES.search(text)
        if found is not None and not any(map(str.isspace, text)):  # several words may be for a shell of the program
            said = f"{text}: no shell replaces {found[0]} here, so the program gets it as it is"
            hint = "have a shell read it: command: [bash, -c, 'exec python train.py --nodes $NNODES']"
            yield Finding("error", "not-replaced", field, said, hint)
            return


def _of_setup_alone(job: LaunchPlan) -> Iterator[Finding]:
    """Yield a warning where the setup ends with what is to change the training's shell, such as `conda activate`."""
    node = parse_shell(job.setup or "").root_node
    while statements := [one for one in node.named_children if one.type != "comment"]:
        node = statements[-1]
        if node.type != "list":
            break
    last = (node.text or b"").decode(errors="replace").strip()
    if not _OF_THIS_SHELL.match(f"{last} "):
        return
    said = f"`{last}` has no effect on your program: the setup runs in a shell of its own"
    hint = "name the Python of the environment in backend.python, or use command: [bash, -c, '… && exec torchrun …']"
    if last.startswith(("export", "declare")) or "=" in last.partition(" ")[0]:
        hint = "set it in `env` of the job file"
    yield Finding("warning", "setup-alone", "setup", said, hint)


def _unreadable(job: LaunchPlan, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield an error for a script that bash cannot parse; bash says so itself, and executes nothing of it (-n)."""
    script = next((word for word in job.command or () if word.endswith(".sh")), "")
    text = read(script)
    if not text or not parse_shell(text).root_node.has_error:
        return
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["bash", "--norc", "-n", "-s"],
            input=text,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
            env={"LC_ALL": "C", "PATH": os.defpath},
        )
        said = _SAID.search(done.stderr)
        if done.returncode and said:
            text = f"bash cannot parse this script: {said[2].strip()}"
            yield Finding(
                "error", "shell-syntax", f"{script}:{said[1]}", text, f"correct it, and test it with `bash -n {script}`"
            )


def _ended(started: Started, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield an error for a script that surely ends as failed, by a condition on what the job gives it."""
    for one in started.executed:
        is_failure = one.words[0] == "exit" and one.words[1:2] > ("0",) and one.words[1].isdecimal()
        if is_failure and one.is_sure and _is_conditional(one.where, read):
            said = f"the script ends here, with exit code {one.words[1]}"
            hint = "check the condition above this line, and the arguments and variables of the job"
            yield Finding("error", "script-ends", one.where, said, hint)
            return


def _is_conditional(where: str, read: Callable[[str], str]) -> bool:
    """Return whether a line of a script is executed only under a condition: else its author wants it."""
    script, _, line = where.partition(":")
    text = read(script)
    if not line or not text:
        return False
    place = (int(line) - 1, len(text.splitlines()[int(line) - 1]) - 1)
    node = parse_shell(text).root_node.descendant_for_point_range(place, place)
    while node is not None and node.type not in _CONDITIONS:
        node = node.parent
    return node is not None


def _cut(started: Started, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield an error for options that a shell takes for a command: the line before does not go on."""
    for one in started.executed:
        script = read(one.where.partition(":")[0])
        if one.words[0].startswith("--") and one.is_sure and not has_errors(script):
            said = f"the shell runs {one.words[0]} as a command: the command above ends before this line"
            hint = (
                "end each line but the last with a backslash and nothing after it, and put no comment between the lines"
            )
            yield Finding("error", "cut-command", one.where, said, hint)
            return


def _unset_variables(started: Started) -> Iterator[Finding]:
    """Yield an error for a variable that only launchers set, and only for the processes they start."""
    if started.launch.launcher in OF_SCHEDULERS or started.launch.options.get("no_python"):
        return  # each of their tasks may have a shell of its own
    found = next(
        (found for word in started.words if (found := _OF_PROCESS.match(word.partition("=")[2] or word))), None
    )
    if found:
        yield Finding(
            "error",
            "launcher-nodes",
            started.where,
            f"${found[1]} is empty in the command: only launchers set it, for the processes that they start",
            "use $NODE_RANK for the number of the node, $NNODES and $NPROC_PER_NODE",
        )


def _dropped(job: LaunchPlan, started: Started, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a warning for arguments of the job that a script takes and passes to nothing."""
    given = [value for value in build_boot_words(job) if value.field]
    script = read(started.where.partition(":")[0])
    takes_some = _TAKES_ARGUMENTS.search(script) is not None
    words = started.words if takes_some else started.launch.program  # some may be for the launcher
    used = [one for one in given if _is_used(one.text, words, started) or _is_asked_for(one.text, script)]
    dropped = given if not used else [one for one in _after_last(job, given, script) if one not in used]
    if dropped and not any(map(is_open, started.words)) and started.words[0] not in (job.command or ()):
        names = ", ".join(one.text.partition("=")[0] for one in dropped[:3])
        said = f"the script does not pass on the arguments of the job: {names}"
        hint = 'put "$@" at the end of the line that starts the program'
        yield Finding("warning", "arguments-dropped", started.where, said, hint)


def _after_last(job: LaunchPlan, given: Sequence[Value], script: str) -> Sequence[Value]:
    """Return the arguments after the last one that a script takes by its number, if it takes them only so."""
    numbers = [int(number) for number in _BY_NUMBER.findall(script)]
    command = job.command or ()
    if not numbers or _TAKES_ALL.search(script) or len(command) != _SHELL_AND_SCRIPT:
        return ()
    return given[max(numbers) :]


def _is_used(argument: str, words: Sequence[str], started: Started) -> bool:
    """Return whether an argument, or its value, is a word of a command, or a part of one or of a variable."""
    name, _, value = argument.partition("=")
    own = [text for name, text in started.environment.items() if name not in _OF_NODES]
    parts = {part for text in (*words, *own) for part in re.split(r"[=\s,:]", text)}
    is_long = len(value) >= _LONG_VALUE and any(value in text for text in started.words)
    commands = [one.words for one in started.executed if one.words[0] not in _NEEDED_BY_NONE]
    is_in_other = any(argument in each for each in commands if each != started.words)
    is_number = name.isdecimal() and name in parts  # such as the port of the launcher
    return argument in started.words or value in parts or is_long or is_in_other or is_number


def _is_asked_for(argument: str, script: str) -> bool:
    """Return whether a script asks for an argument, and does something: `[ "$1" = debug ]`, `--debug) export A=1;;`."""
    name = re.escape(argument.partition("=")[0])
    if re.search(rf"=\s*[\"']?{name}[\"']?\s*\]", script):
        return True
    found = re.search(rf"[\s|(]{name}(?:=\*)?\s*(?:\|[^)\n]*)?\)(.*?);;", script, re.DOTALL)
    stored = _STORES.findall(found[1]) if found else []
    is_read = any(re.search(rf"\$\{{?{each}\b", script) for each in stored)
    return found is not None and (is_read or re.search(r"\bexport\b", found[1]) is not None)


def _own_texts(started: Started) -> Iterator[Finding]:
    """Yield addresses, ports, names of a rendezvous and seeds that each node makes for itself."""
    text = " ".join(started.words)
    port = started.environment.get("MASTER_PORT", "")
    if started.launch.launcher == "python":
        text = f"MASTER_ADDR={started.environment.get('MASTER_ADDR', '')} {text}"
    if found := _OWN_ID.search(text):
        said = f"{found[1]} is another text on each node ({found[2]}): the nodes would never meet"
        hint = "use $JOBSUBMIT_JOB_ID, which is the same on all nodes"
        yield Finding("error", "launcher-nodes", started.where, said, hint)
    elif found := _OWN_PORT.search(text):
        said = f"{found[1]} is another port on each node ({found[2]}): the nodes would never meet"
        hint = "use $MASTER_PORT, which is the same on all nodes"
        if text[found.end() :].startswith(":"):
            said = f"{found[1]} is another address on each node ({found[2]}): the nodes would never meet"
            hint = "use $MASTER_ADDR, which is the same on all nodes"
        yield Finding("error", "launcher-nodes", started.where, said, hint)
    elif found := _OWN_ADDRESS.search(text):
        said = f"{found[1]} is the address of the node itself on each node ({found[2]}): the nodes would never meet"
        hint = "use $MASTER_ADDR, which is that of the first node on all nodes"
        if found[1] == "MASTER_ADDR":
            hint = "leave MASTER_ADDR as it is: it is that of the first node on all nodes"
        level: Level = "warning" if started.launch.launcher == "python" else "error"  # the program may not use it
        yield Finding(level, "launcher-nodes", started.where, said, hint)
    elif started.launch.launcher == "python" and (found := re.search(_OWN, port)):
        said = f"MASTER_PORT is another port on each node ({found[1]}): the nodes would never meet"
        hint = "leave MASTER_PORT as it is: it is the same on all nodes"
        yield Finding("error", "launcher-nodes", started.where, said, hint)
    if found := _OWN_SEED.search(text):
        said = f"{found[1]} is another number on each node: their processes shuffle and split the data in other ways"
        yield Finding("warning", "launcher-nodes", started.where, said, "give a number that is the same on all nodes")
