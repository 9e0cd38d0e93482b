"""Check that the code can continue after a restart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.checkpoints.lightning_versions import last_written_to_new_version, sought_in_new_version
from jobsubmit.check.checkpoints.names import sought_under_other_names
from jobsubmit.check.checkpoints.new_folders import new_at_each_start
from jobsubmit.check.checkpoints.paths import places_saved_to
from jobsubmit.check.checkpoints.resuming import not_asked_to_resume, options_to_resume
from jobsubmit.check.code import Code
from jobsubmit.check.origins import beginning_of
from jobsubmit.check.program.configuration import read_text
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.mounts import Mount

_LOADS = frozenset(
    [
        *("load_state_dict", "load_state", "load_checkpoint", "load_from_checkpoint", "load_snapshot", "load_model"),
        *("load_weights", "restore", "load_training_state", "async_load"),
    ]
)
_LOADING_FUNCTIONS = ("torch.load", "torch.jit.load", "torch.distributed.checkpoint.load", "joblib.load", "pickle.load")
_OF_STATE = re.compile(r"(?:fabric|accelerator|checkpointer|ckpt|saver|manager)\w*\.load$", re.IGNORECASE)
_MOST_FILES = 200
_STARTS_WITH = re.compile(r"(?:^|[._])(?:init_(?:checkpoint|ckpt|weights|model)|pretrain(?:ed)?(?:_\w+)?)$")
_RESULTS = re.compile(r"(?:output|save|work|checkpoint|ckpt|log|run|exp)(?:s?_?(?:dir|path|folder))?")
_FILES_OF_DATA = re.compile(r"(?:^|/)data(?:s|sets?|loaders?)?(?:/|\.py$)")
_OF_NODE = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - folders that a job names
_LOADING_KEYWORDS = ("resume_from_checkpoint", "ckpt_path", "resume", "resume_from")


def check_recovery(code: Code, plan: LaunchPlan) -> Iterator[Finding]:
    """Yield a warning if each restart trains from the beginning, or if the code does not get a directory's path."""
    restarts = _restarts(plan)
    unasked = list(not_asked_to_resume(code)) if restarts else []
    is_lost = restarts and not _loads(code)
    is_new = restarts and any(new_at_each_start(code))
    if is_lost and not unasked and not is_new:
        said = "no code loads a checkpoint: each restart trains from the beginning"
        if (options := options_to_resume(code)) and options[0].field in code.names:
            asked = max(options[0].names, key=len)
            said = f"no code loads a checkpoint unless {asked} is given: each restart trains from the beginning"
        yield Finding(
            "warning",
            "no-checkpoint",
            "restarts",
            said,
            "save checkpoints to checkpoint_dir regularly, and load the last one at the start "
            "(for an example in a new folder, run `jobsubmit init --sample torchrun example`)",
        )
    else:
        yield from new_at_each_start(code) if restarts else ()
        yield from unasked
        yield from sought_under_other_names(code) if restarts else ()
        yield from sought_in_new_version(code) if restarts else ()
        yield from last_written_to_new_version(code) if restarts else ()
        yield from _beside_code(code, plan)
        yield from _on_disk_of_node(code) if restarts and not plan.backend.is_this_machine else ()
    for mount in plan.mounts:
        if mount.kind == "checkpoint" and not _gets(code, plan, mount):
            option = _option_for(code, mount)
            if option is not None and not (plan.mode == "spawn" and plan.backend.starts_boot_file):
                yield _not_passed(mount, *option)
            elif option is None and not is_lost and not _may_declare(code, mount):
                yield _not_read(mount, plan)


def _restarts(plan: LaunchPlan) -> bool:
    return plan.restarts is not None and plan.restarts.max > 0


def _gets(code: Code, plan: LaunchPlan, mount: Mount) -> bool:
    """Return whether the code has the path of a directory, from a variable or an argument."""
    shell = " ".join((*code.facts.argv, *(plan.command or ()), plan.setup or ""))
    return (
        mount.passed_as == "hyperparameter"
        or mount.variable in (*code.names, *_variables(shell))
        or any(mount.variable in read_text(code.program, path) for path in [*code.program.configurations][:_MOST_FILES])
        or any(word.startswith("--") and _name_of(word) == _plain(mount.name) for word in code.facts.argv)
    )


def _option_for(code: Code, mount: Mount) -> tuple[str, str] | None:
    """Return the option that would take the path of a directory, and where it is declared."""
    return next(
        (
            (name, option.where)
            for option in code.options
            if option.takes_value
            for name in option.names
            if name.startswith("--") and _name_of(name) == _plain(mount.name)
        ),
        None,
    )


def _may_declare(code: Code, mount: Mount) -> bool:
    return f"--{mount.name}" in code.names or bool(code.line.gaps) or bool(code.program.unread)


def _not_passed(mount: Mount, name: str, where: str) -> Finding:
    return Finding(
        "warning",
        "no-checkpoint",
        mount.field,
        f"the code does not get the path: {where} declares {name}, but nothing passes it",
        f"set checkpoint_dir: {{uri: {mount.uri}, as: hyperparameter, name: {name[2:]}}}",
    )


def _not_read(mount: Mount, plan: LaunchPlan) -> Finding:
    hint = f"declare --{mount.name}, read the variable, or pass the path as another argument: "
    hint += "checkpoint_dir: {uri: …, as: hyperparameter, name: NAME}"
    if plan.command is not None:
        hint = "read the variable, or pass it in the command"
    text = f"no code reads the variable {mount.variable} or the argument --{mount.name}"
    return Finding("warning", "no-checkpoint", mount.field, text, hint)


def _variables(shell: str) -> list[str]:
    return re.findall(r"\w+", shell)


def _beside_code(code: Code, plan: LaunchPlan) -> Iterator[Finding]:
    """Yield a warning where all checkpoints go to a folder beside the code, which the next attempt does not have."""
    restarts = _restarts(plan)
    if not (restarts or plan.backend.uses_containers) or not _starts_in_code(code, plan):
        return
    places = [(module.where(path), beginning_of(code, path, module)) for module, _, path in places_saved_to(code)]
    if {"HfArgumentParser", "TrainingArguments"} <= code.names and "output_dir" not in code.program.attribute_stores:
        places.append(("hyperparameters", str(code.values.arguments.get("output_dir") or "")))
    if not places or not all(_is_relative(path) for _, path in places):
        return
    where, path = places[0]
    why = "it is gone after a restart" if restarts else "it is gone when the job has ended"
    yield Finding(
        "warning" if restarts or plan.mounts else "hint",
        "no-checkpoint" if restarts else "lost-checkpoint",
        where,
        f"checkpoints go to {path}, below the code directory of the node: {why}",
        "save them to checkpoint_dir: read the path from JOBSUBMIT_CHECKPOINT_DIR, or declare --checkpoint_dir",
    )


def _on_disk_of_node(code: Code) -> Iterator[Finding]:
    """Yield a warning for an argument that has the results of a job with restarts written to /tmp."""
    for word in code.facts.argv:
        name, _, path = word.partition("=")
        if name.startswith("--") and _RESULTS.fullmatch(_name_of(name)) and path.startswith(_OF_NODE):
            yield Finding(
                "warning",
                "no-checkpoint",
                "hyperparameters",
                f"{name} is {path}, on the disk of a node: after a restart, the checkpoints are gone or elsewhere",
                "use a folder that all nodes see, or checkpoint_dir",
            )
            return


def _starts_in_code(code: Code, plan: LaunchPlan) -> bool:
    """Return whether relative paths surely are below the code directory."""
    shell = " ".join((*(plan.command or ()), plan.setup or ""))
    return not re.search(r"\bcd\b|\bln\b", shell) and "chdir" not in code.names and not code.program.imports("hydra")


def _is_relative(path: str) -> bool:
    return bool(path) and not path.startswith(("/", "~", "$", "<")) and "://" not in path


def _name_of(word: str) -> str:
    return _plain(word.removeprefix("--").partition("=")[0])


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _loads(code: Code) -> bool:
    """Return whether anything loads what an earlier attempt may have saved; what was not read may."""
    if code.program.unread or (code.has_framework and any(map(_says_what_to_load, code.facts.argv))):
        return True
    calls = code.program.calls if code.looks_up_names or code.has_framework else code.reached.calls
    for module, call, name in calls:
        if code.passes_by(call, module) or code.is_never_made(call):
            continue
        last = call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]
        if name in _LOADING_FUNCTIONS and not _is_of_data(call, module) and not _is_of_start(call):
            return True
        if last == "load" and _OF_STATE.search(unparsed(call.func)):
            return True
        if last in _LOADS and _is_skipped(code, call, module):
            continue
        if last in _LOADS and not any(".state_dict(" in unparsed(given) for given in call.args):
            return True
        given = [keyword.value for keyword in call.keywords if keyword.arg in _LOADING_KEYWORDS]
        if not _is_declared_only(call) and any(not _is_none(code, one, module) for one in given):
            return True
    return False


def _says_what_to_load(word: str) -> bool:
    """Return whether an argument gives a framework the checkpoint to load: `--ckpt_path=last`."""
    name, _, value = word.partition("=")
    return name.startswith("--") and name[2:].rpartition(".")[2] in _LOADING_KEYWORDS and value not in ("null", "None")


def _is_skipped(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call enters a function of the program that loads nothing with the values of this job."""
    found = code.program.called(call, module)
    if found is None or isinstance(found[1], ast.ClassDef):
        return False
    calls = [node for node in walk(found[1]) if isinstance(node, ast.Call)]
    loading = [one for one in calls if "load" in spelled(one.func).lower() or "restore" in spelled(one.func)]
    return bool(loading) and not any(code.reached.of(one, found[0]) for one in loading)


def _is_of_data(call: ast.Call, module: Module) -> bool:
    """Return whether a call loads data, as it says itself or as its file is called."""
    text = unparsed(call).lower()
    return ("data" in text or _FILES_OF_DATA.search(module.path.lower()) is not None) and not any(
        word in text for word in ("ckpt", "checkpoint", "snapshot", "resume", "state")
    )


def _is_of_start(call: ast.Call) -> bool:
    """Return whether a call loads the weights that a training begins with: `torch.load(args.init_checkpoint)`."""
    return bool(_STARTS_WITH.search(unparsed(call.args[0]))) if call.args else False


def _is_none(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether an argument surely is None: nothing to load is given."""
    seen = [one.values.get(node, UNKNOWN) for one in code.followed]
    return (bool(seen) and all(value is None for value in seen)) or code.values.of(node, module) is None


def _is_declared_only(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("add_argument", "field")
