"""The command line that a shell script executes last, with the variables that the script sets in their places."""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections.abc import Callable, Container, Mapping, Sequence

_TAKES = re.compile(r"(?:local +)?([A-Za-z_]\w*)=\"?\$\{?(\d)\}?\"?")
_HARMLESS = r"(?:PYTHONPATH|(?!\w*(?:RANK|WORLD_SIZE|MASTER_|PATH))\w+)="  # a variable that says nothing of the start
_PREPARES = re.compile(
    r"set\s+-|echo\b|ulimit\b|mkdir\b|nvidia-smi\b|(?:python\d?\s+-m\s+)?pip\d?\s+install\b|date\b|env$|hostname\b"
    rf"|export\s+{_HARMLESS}|{_HARMLESS}(?:[^\s\"']*|\"[^\"]*\"|'[^']*'|\$\(\([^()]*\)\))$"
)
_NUMBERS_NODES = re.compile(r"(?:export\s+)?(?:\w*RANK|\w*WORLD_SIZE|MASTER_\w+)=[^`()]*")
_TORCH_LAUNCHER = re.compile(r"(?:\S*/)?torchrun\b|(?:\S*/)?python[\d.]*\s+-m\s+torch\.distributed\.\w+")
_COMMENT = re.compile(r"""(?m)^\s*#.*$|\s#\s[^\n"']*$""")
_ARRAY = re.compile(r"^(\w+)=\(([^()]*)\)\s*$", re.MULTILINE)  # ARGS=(--a 1 --b 2)
_REST = re.compile(r"\$@|\$\{@(?::([1-9]))?\}")  # "${@:2}": from the second argument on
_SUM = re.compile(r"\$\(\([^()]*\)\)")
_OUTPUT = re.compile(r"\$\((?!\()[^()]*\)")
_SETS = re.compile(r"(?:export\s+|local\s+)?([A-Za-z_]\w*)=(?:([^\s\"'`()]*)|\"([^\"`()]*)\"|'([^']*)')$")
_QUOTED = re.compile(r"(?m)^\s*(?:export\s+|local\s+)?[A-Za-z_]\w*=(?:\"[^\"`]*\"|'[^']*')")  # several lines, too
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}$]*))?\})")
_OF_NODES = re.compile(
    r"\d+|NNODES|NODE_RANK|NPROC_PER_NODE|MASTER_(?:ADDR|PORT)|(?:MA|VC|JOBSUBMIT|SLURM|OMPI|CUDA|NCCL)_\w+|HOME|USER|PWD|\w*PATH|TMPDIR"
)
# Launchers set these for their processes only, so that a start command has the default: `NODE_RANK=${RANK:-0}`.
_OF_PROCESSES = re.compile(r"\$\{(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE):-([^{}$]*)\}")
COMPUTED = "$COMPUTED"  # stands for the output of a command, in the words of another one
_TO_FOLDER = re.compile(r"cd\s+[\"']?((?!/)(?!\.\.)[\w./-]+)[\"']?")  # one below the code directory
_TO_OWN_FOLDER = re.compile(
    r'cd\s+"?\$\(dirname\s+(?:--\s+)?"?\$(?:0|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?\})"?\)"?/?([./]*)"?'
)


def shell_text(command: Sequence[str], read: Callable[[str], str]) -> tuple[str, Sequence[str]]:
    """Return what a shell executes for a start command, and its arguments from $0 on; empty where there is no shell.

    Comments are left out: nothing in them is executed.
    """
    text, arguments = _given_to_shell(list(command), read)
    return _COMMENT.sub("", text), arguments


def text_of_command(command: Sequence[str], read: Callable[[str], str]) -> str:
    """Return what a start command executes, as text: of a shell, what that executes."""
    return shell_text(command, read)[0] or " ".join(command)


def _given_to_shell(words: list[str], read: Callable[[str], str]) -> tuple[str, Sequence[str]]:
    if not words or words[0].rpartition("/")[2] not in ("bash", "sh"):
        return (read(words[0]), words) if words and words[0].endswith(".sh") else ("", [])
    rest = list(itertools.dropwhile(lambda word: re.fullmatch(r"-[elux]+", word), words[1:]))
    if rest[:1] == ["-c"]:
        return "".join(rest[1:2]), rest[2:]
    return (read(rest[0]), rest) if rest else ("", [])


def words_of_shell(text: str, arguments: Sequence[str], set_by_job: Container[str] = ()) -> list[str]:
    """Return the words of a shell's text with its arguments in their places; none where it is not clear which count.

    Steps before the last command that do not change how it is started are left out, as `set -e` and `pip install`.
    `set_by_job` are variables that the nodes have: the default in `${NAME:-1}` is not for them.
    """
    stripped = _steps(text)
    steps = [part for part in stripped if _TAKES.fullmatch(part) or not _PREPARES.match(part)]
    if steps and _TORCH_LAUNCHER.match(steps[-1]):
        # These are for its options: it sets the variables of its processes itself.
        steps = [step for step in steps if not _NUMBERS_NODES.fullmatch(step)]
    if steps and ((arguments and _goes_to_code(steps[0], arguments[0])) or _TO_FOLDER.fullmatch(steps[0])):
        steps = steps[1:]
    values = dict(enumerate(arguments))  # of $0, $1 …
    variables: dict[str, str] = {}
    while len(steps) > 1:
        if steps[0] == "shift":
            values = {0: values.get(0, ""), **{place - 1: word for place, word in values.items() if place > 1}}
        elif (taken := _TAKES.fullmatch(steps[0])) and int(taken[2]) in values:
            variables[taken[1]] = values[int(taken[2])]
        else:
            break
        steps = steps[1:]
    last = _OUTPUT.sub(COMPUTED, steps[0]) if len(steps) == 1 else ""
    if not last or re.search(r"[|&<>`]|\$\(", last.replace("$((", "")):
        return []
    last = _filled(last, _texts_set(stripped, set_by_job), set_by_job)
    try:
        words = shlex.split(_SUM.sub(lambda found: found[0].replace(" ", ""), last))
    except ValueError:
        return []
    words = list(itertools.dropwhile(re.compile(_HARMLESS).match, words))
    rest = [word for place, word in sorted(values.items()) if place]
    known = {f"${name}": word for name, word in (*variables.items(), *((str(n), word) for n, word in values.items()))}
    given: list[str] = []
    for word in words:
        if part := _REST.fullmatch(word):
            given += rest[int(part[1] or 1) - 1 :]
        else:
            given.append(known.get(re.sub(r"[{}]", "", word), word))
    return given


def folder_of_shell(text: str) -> str:
    """Return the folder of the code to which a shell's text goes before its last command; empty for none."""
    steps = [step for step in _steps(text) if not _PREPARES.match(step)]
    found = _TO_FOLDER.fullmatch(steps[0]) if len(steps) > 1 else None
    folder = posixpath.normpath(found[1]) if found is not None else ""
    return "" if folder == "." else folder


def _steps(text: str) -> list[str]:
    """Return the steps of a shell's text, each on one line, with the elements of arrays in their places."""
    text = _OF_PROCESSES.sub(r"\1", re.sub(r"\\\n", " ", text))
    text = _QUOTED.sub(lambda found: " ".join(found[0].split()), text)
    for name, content in _ARRAY.findall(text):
        words_given = " ".join(content.split()).replace("\\", "\\\\")
        text = re.sub(rf'"?\$\{{{name}\[@\]\}}"?', words_given, text)
    parts = re.split(r"\n|;|&&", _ARRAY.sub("", text))
    return [part.strip() for part in parts if part.strip()]


def _texts_set(steps: Sequence[str], set_by_job: Container[str]) -> dict[str, str]:
    """Return the texts that steps set variables to, but for those that take an argument of the script."""
    texts: dict[str, str] = {}
    for step in steps:
        if (found := _SETS.match(step)) and not _TAKES.fullmatch(step):
            is_literal = found[4] is not None
            texts[found[1]] = found[4] if is_literal else _filled(found[2] or found[3] or "", texts, set_by_job)
    return texts


def _filled(text: str, set_to: Mapping[str, str], set_by_job: Container[str]) -> str:
    """Return a text with the values of the variables that the script sets, and the defaults of those that nobody sets.

    Those that a node has anyway stay as they are, such as HOME and NNODES.
    """

    def value(found: re.Match[str]) -> str:
        name, default = found[1] or found[2], found[3]
        if name in set_to:
            return set_to[name]
        is_given = default is None or name in set_by_job or _OF_NODES.fullmatch(name)
        return f"${name}" if is_given else default

    return _VARIABLE.sub(value, text)


def _goes_to_code(step: str, script: str) -> bool:
    """Return whether a step changes to the code directory, by the place of the script: `cd "$(dirname "$0")/.."`."""
    found = _TO_OWN_FOLDER.fullmatch(step)
    return found is not None and posixpath.normpath(posixpath.join(posixpath.dirname(script), found[1])) == "."
