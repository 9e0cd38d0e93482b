"""A launcher's command line, as people have it in their shell scripts → the fields of a job file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from jobsubmit.errors import UsageError
from jobsubmit.scaffold.draft import JobDraft
from jobsubmit.spec.constraints import INIT_METHOD, SINGLE_NODE_RANKS
from jobsubmit.spec.field_types import env_name_problem

_HINT = 'e.g. --from "torchrun --nproc_per_node=8 train.py --lr 0.1"'
_LAUNCHERS = {
    "torch.distributed.launch": "launch",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launcher": "torchrun",
}
_SECRET = re.compile(r"(?i)(^|_)(api_?key|key|token|secret|password|passwd)($|_)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_NAME = re.compile(r"--[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# The launchers' options (torch.distributed.run --help), with `_` for `-`; those that take no value.
_SWITCHES = ("use_env", "standalone", "module", "no_python", "run_path", "virtual_local_rank")
_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
_UNDERSTOOD = ("nnodes", "nproc_per_node", "use_env", "standalone", "rdzv_backend", "max_restarts")
_NOT_NEEDED = ("node_rank", "master_addr", "master_port", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "local_addr")


def draft_from_command(text: str) -> JobDraft:
    """Return the job that a command line means; raise UsageError where it is no launcher's."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--from: {error}", "quote it as a shell would take it") from None
    if shell := [word for word in words if re.fullmatch(r"\||\|\||&&?|;|\d?>{1,2}.*|<.*", word)]:
        raise UsageError(f"--from: {shell[0]} is the shell's", "give the launcher's command only")
    env, words = _environment(words)
    mode, words = _launcher(words)
    options, script = _options(words)
    if not script or options.get("module") or options.get("no_python"):
        raise UsageError("--from: names no Python file that the launcher starts", _HINT)
    own_words, notes = _without_secrets(script[1:])
    hyperparameters, args, own_notes = _arguments(own_words)
    notes += own_notes
    if mode == "spawn":
        notes += _given_by_the_platform(hyperparameters)
        if args:
            raise UsageError(
                f"--from: {args[0]}: in mode spawn a platform passes --name=value only, and no other words",
                "start it by torchrun, or declare an option for it",
            )
    left = [name for name in options if name not in (*_UNDERSTOOD, *_NOT_NEEDED)]
    notes += [f"--{name} of the launcher is not carried over" for name in left]
    if dropped := [name for name in options if name in _NOT_NEEDED]:
        notes.append(f"{', '.join(f'--{name}' for name in dropped)}: left out, the backend knows them")
    stem = script[0].rpartition("/")[2].removesuffix(".py")
    fields: dict[str, Any] = {"name": job_name(stem) or "job", "mode": mode, "code_dir": "."}
    fields["boot_file"] = script[0].removeprefix("./")
    if mode == "launch" and not options.get("use_env"):
        fields["local_rank"] = "argument"
    if mode == "torchrun" and options.get("rdzv_backend") in ("static", "c10d"):
        fields["rdzv_backend"] = options["rdzv_backend"]
    fields["resources"] = {"nodes": 1} if mode == "spawn" else _resources(options)
    if (restarts := str(options.get("max_restarts", "0"))) != "0" and restarts.isdecimal():
        fields["restarts"] = int(restarts)
    if secrets := {name: f"env:{name}" for name in env if _SECRET.search(name)}:
        notes.append(f"{', '.join(secrets)}: taken from your environment at submission, and not written down")
    if not str(options.get("nproc_per_node", "1")).isdecimal():
        notes.append(f"--nproc_per_node={options['nproc_per_node']}: left out, then a node starts one per accelerator")
    env = {name: value for name, value in env.items() if name not in secrets}
    more = {"hyperparameters": hyperparameters, "args": args, "env": env, "secrets": secrets}
    fields |= {name: value for name, value in more.items() if value}
    return JobDraft(fields, tuple(notes))


def job_name(text: str) -> str:
    """Return a text as the name of a job, as far as it may be one."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:64]


def _environment(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off the assignments before a command."""
    rest = list(words)
    if rest[:1] == ["env"]:
        rest.pop(0)
    env = {}
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        if name != "CUDA_VISIBLE_DEVICES" and not env_name_problem(name):
            env[name] = value
    return env, rest


def _launcher(words: list[str]) -> tuple[str, list[str]]:
    name = words[0].rpartition("/")[2] if words else ""
    if name == "torchrun":
        return "torchrun", words[1:]
    if re.fullmatch(r"python[\d.]*", name) and "-m" in words[1:4]:
        at = words.index("-m")
        module = words[at + 1] if at + 1 < len(words) else ""
        if module in _LAUNCHERS:
            return _LAUNCHERS[module], words[at + 2 :]
    if re.fullmatch(r"python[\d.]*", name) and "-m" not in words[1:4] and any(w.endswith(".py") for w in words[1:3]):
        return "spawn", words[1:]
    raise UsageError(
        "--from: is neither torchrun, python -m torch.distributed.launch (or .run), nor python FILE", _HINT
    )


def _options(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split the launcher's options from the script and its own words."""
    rest, found = list(words), dict[str, Any]()
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, separator, value = word.lstrip("-").partition("=")
        name = _SHORT.get(name, name).replace("-", "_")
        if name in _SWITCHES:
            found[name] = True
        elif separator:
            found[name] = value
        elif rest:
            found[name] = rest.pop(0)
    return found, rest


def _resources(options: dict[str, Any]) -> dict[str, Any]:
    nodes = str(options.get("nnodes", "1"))
    resources: dict[str, Any] = {"nodes": int(nodes) if nodes.isdecimal() else nodes}
    nproc = str(options.get("nproc_per_node", "1"))  # both launchers' default
    if nproc.isdecimal():
        resources["nproc_per_node"] = int(nproc)
    return resources


def _arguments(words: Sequence[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return hyperparameters, further words, and what to look at; an option with several values stays as it is."""
    hyperparameters: dict[str, Any] = {}
    args: list[str] = []
    notes: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        name, separator, value = word.partition("=")
        following = _until_option(words[index + 1 :])
        index += 1
        is_new = _NAME.fullmatch(name) and name.removeprefix("--") not in hyperparameters
        if not is_new:
            args.append(word)
        elif separator:
            hyperparameters[name.removeprefix("--")] = _typed(value)
        elif len(following) == 1:
            hyperparameters[name.removeprefix("--")] = _typed(following[0])
            index += 1
        elif not following:
            hyperparameters[name.removeprefix("--")] = {"flag": True}
        else:
            args += [word, *following]
            index += len(following)
            notes.append(f"{name} with {len(following)} words is in args as it was")
    if args and hyperparameters and words.index(args[0]) < len(words) - len(args):
        return {}, list(words), [*notes, "a word stands before an option: all are in args, in order"]
    return hyperparameters, args, notes


def _without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return words without the options that hold secrets, and a note of each."""
    kept: list[str] = []
    notes: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, separator, value = word.partition("=")
        following = [] if separator else _until_option(rest)[:1]
        is_secret = word.startswith("-") and _SECRET.search(name.lstrip("-").replace("-", "_"))
        if is_secret and isinstance(_typed(value or "".join(following) or "0"), str):
            notes.append(f"{name}: left out, it looks like a secret: give it as a variable, by `secrets`")
            del rest[: len(following)]
        else:
            kept.append(word)
    return kept, notes


def _given_by_the_platform(hyperparameters: dict[str, Any]) -> list[str]:
    """Take out what the platform, or jobsubmit, passes in mode spawn, and say so."""
    own = [name for name in (*SINGLE_NODE_RANKS, INIT_METHOD) if hyperparameters.pop(name, None) is not None]
    return [f"{', '.join(f'--{name}' for name in own)}: left out, each node is given its own"] if own else []


def _until_option(words: Sequence[str]) -> list[str]:
    found = []
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[\d.].*", word):
            break
        found.append(word)
    return found


def _typed(text: str) -> Any:
    """Return a number where it is spelled as such in the shortest way, else the text."""
    if re.fullmatch(r"-?(0|[1-9]\d{0,17})", text):
        return int(text)
    if re.fullmatch(r"-?(0|[1-9]\d*)\.\d*[1-9]", text) and str(float(text)) == text:
        return float(text)
    return text
