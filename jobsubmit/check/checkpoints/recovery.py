"""Check that the code can continue after a restart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.origins import beginning_of, origins, parts_returned, words_of
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.configuration import read_text
from jobsubmit.check.program.functions import enter
from jobsubmit.check.program.module import FUNCTIONS, Module, spelled
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.mounts import Mount

_LOADS = frozenset(
    [
        *("load_state_dict", "load_state", "load_checkpoint", "load_from_checkpoint", "load_snapshot", "load_model"),
        *("load_weights", "restore", "load_training_state", "async_load"),
    ]
)
_NEW_NAME = re.compile(r"\$\{now:[^}]*\}|strftime|time\.time\(\)|datetime\.(?:datetime\.)?(?:utc)?now\(\)|uuid\.uuid\d")
# A number that no folder has yet: how many there are, or one more than the last.
_NEXT_NUMBER = re.compile(
    r"len\((?:\w+\()?(?:[\w.]+\.)?(?:glob|listdir|iterdir|scandir)\b"
    r"|max\(\w*(?:ids?|runs?|versions?|nums?|numbers?)\b[^()]*\) \+ 1"
)
_SEARCHES = re.compile(r"\b(?:r?glob|listdir|iterdir|scandir|walk)\(")
_LOADING_FUNCTIONS = ("torch.load", "torch.jit.load", "torch.distributed.checkpoint.load", "joblib.load", "pickle.load")
_MOST_FILES = 200
# Methods that save a checkpoint, with the argument that is its path.
_SAVING = {
    "save_checkpoint": "filepath",
    "save_state": "output_dir",
    "ModelCheckpoint": "dirpath",
    "TrainingArguments": "output_dir",
    "Seq2SeqTrainingArguments": "output_dir",
}
_STARTS_WITH = re.compile(r"(?:^|[._])(?:init_(?:checkpoint|ckpt|weights|model)|pretrain(?:ed)?(?:_\w+)?)$")
_RESULTS = re.compile(r"(?:output|save|work|checkpoint|ckpt|log|run|exp)(?:s?_?(?:dir|path|folder))?")
_OF_NODE = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - folders that a job names
_LOADING_KEYWORDS = ("resume_from_checkpoint", "ckpt_path", "resume", "resume_from")
_OF_LAST = re.compile(r"ckpt|checkpoint|resume|last|latest")


def check_recovery(code: Code, plan: LaunchPlan) -> Iterator[Finding]:
    """Yield a warning if each restart trains from the beginning, or if the code does not get a directory's path."""
    restarts = _restarts(plan)
    is_lost = restarts and not _loads(code)
    if is_lost:
        yield Finding(
            "warning",
            "no-checkpoint",
            "restarts",
            "no code loads a checkpoint: each restart trains from the beginning",
            "save checkpoints to checkpoint_dir regularly, and load the last one at the start "
            "(for an example in a new folder, run `jobsubmit init --sample torchrun example`)",
        )
    else:
        yield from _named_by_start(code) if restarts else ()
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


def _named_by_start(code: Code) -> Iterator[Finding]:
    """Yield a warning where checkpoints go to a place that is new at each start: no restart finds them."""
    saves: list[tuple[Module, ast.expr, ast.expr | None]] = []
    for module, call in code.calls("torch.save"):
        saves += saving_calls(code, call, module)
    for name in ("save", "async_save"):
        for module, call in code.calls(f"torch.distributed.checkpoint.{name}"):
            saves.append((module, call, argument(call, "checkpoint_id")))
    for name in ("os.path.isfile", "os.path.exists"):
        for module, call in code.calls(name):
            if call.args and _OF_LAST.search(ast.unparse(call.args[0])):
                saves.append((module, call, call.args[0]))
    saves += ((module, path, path) for module, path in _places(code))
    for module, place, path in saves:
        words = _words_of_path(code, path, module) if path is not None else ""
        found = _NEW_NAME.search(words) or _NEW_NAME.search(_of_configuration(code, words))
        source = found[0] if found else _numbered_by(code, path, module) if path is not None else ""
        if source:
            yield Finding(
                "warning",
                "no-checkpoint",
                module.where(place),
                f"the path depends on {source}, so it is another one after each restart, which would not find the "
                "checkpoint",
                "use a path that stays the same, such as a name in checkpoint_dir",
            )
            return


def _numbered_by(code: Code, path: ast.expr, module: Module) -> str:
    """Return what gives a path a number that is not yet taken, where nothing looks for the paths of before."""
    for home, part in origins(code, path, module):
        calls = [one for one in ast.walk(part) if isinstance(one, ast.Call) and _takes_free_number(code, one, home)]
        if calls and not _looks_for_all(code, ast.unparse(calls[0].func)):
            return f"{ast.unparse(calls[0].func)}()"
        counted = _NEXT_NUMBER.search(ast.unparse(part))
        if counted and not _looks_for_all(code, counted[0]):
            return "the number of folders that exist"
    return ""


def _takes_free_number(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a function of the program looks in a loop for a path that does not exist, and may do so here."""
    found = code.program.called(call, module)
    if found is None or not isinstance(found[1], FUNCTIONS):
        return False
    entered = enter(code.values, call, module)
    for loop in (node for node in ast.walk(found[1]) if isinstance(node, (ast.For, ast.While))):
        tests = [one.test for one in ast.walk(loop) if isinstance(one, (ast.If, ast.While))]
        around = [above.test for above in found[0].above(loop) if isinstance(above, ast.If)]
        is_entered = entered is None or not any(entered[0].truth(test, found[0]) is False for test in around)
        if is_entered and any("exists(" in ast.unparse(test) for test in tests):
            return True
    return False


def _looks_for_all(code: Code, source: str) -> bool:
    """Return whether what is loaded is looked for in all folders, and not only in the new one, as its words show."""
    loads = (words_of(code, call.args[0], module) for module, call in code.calls("torch.load") if call.args)
    return any(_SEARCHES.search(words) and source not in words for words in loads)


def _words_of_path(code: Code, path: ast.expr, module: Module) -> str:
    """Return a path and all that it is made of; of several values that a function returns, only those in the path."""
    names = [node for node in ast.walk(path) if isinstance(node, ast.Name)]
    stores = {name: module.stores.get((module.scope_of(name), name.id), ()) for name in names}
    parts = {name: [part for store in stores[name] for part in parts_returned(code, store, module)] for name in names}
    if not any(parts.values()):
        return words_of(code, path, module)
    sources = (source for name in names for source in parts[name] or [(module, name)])
    return "\n".join([ast.unparse(path), *(words_of(code, source, home) for home, source in sources)])


def _of_configuration(code: Code, words: str) -> str:
    """Return the lines of Hydra's configurations for the settings that some words name."""
    if code.values.composed is None:
        return ""
    names = set(re.findall(r"\.(\w+)", words))
    texts = [read_text(code.program, path) for path in [*code.program.configurations][:_MOST_FILES]]
    lines = (line for text in texts for line in text.splitlines())
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in names)


def saving_calls(code: Code, call: ast.Call, module: Module) -> Iterator[tuple[Module, ast.Call, ast.expr | None]]:
    """Yield a call that saves, with the path: where a function only passes on what it is given, its calls."""
    function = module.function_of(call)
    passes_on = bool(call.args) and isinstance(call.args[0], ast.Starred) and function is not None
    if not passes_on or function is None or function.args.vararg is None:
        yield module, call, argument(call, "f", 1)
        return
    for home, outer in code.program.calls_of.get(module.called_as(function), ()):
        if code.reached.of(outer, home) and not hides_arguments(outer):
            yield home, outer, argument(outer, "f", 1)


def _beside_code(code: Code, plan: LaunchPlan) -> Iterator[Finding]:
    """Yield a warning where all checkpoints go to a folder beside the code, which the next attempt does not have."""
    restarts = _restarts(plan)
    if not (restarts or plan.backend.uses_containers) or not _starts_in_code(code, plan):
        return
    places = [(module.where(path), beginning_of(code, path, module)) for module, path in _places(code)]
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


def _places(code: Code) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the paths that checkpoints are saved to."""
    for module, call, name in code.reached.calls:
        last = call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]
        path = None
        if name == "torch.save":
            path = argument(call, "f", 1)
        elif name in ("torch.distributed.checkpoint.save", "torch.distributed.checkpoint.async_save"):
            path = argument(call, "checkpoint_id") or argument(call, "storage_writer") or call
        elif last in _SAVING and code.program.definition(name) is None and last not in code.program.methods:
            path = argument(call, _SAVING[last], 0)
        if path is not None:
            yield module, path


def _is_relative(path: str) -> bool:
    return bool(path) and not path.startswith(("/", "~", "$", "<")) and "://" not in path


def _name_of(word: str) -> str:
    return _plain(word.removeprefix("--").partition("=")[0])


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _loads(code: Code) -> bool:
    """Return whether anything loads what an earlier attempt may have saved; what was not read may."""
    if code.program.unread:
        return True
    calls = code.program.calls if code.looks_up_names or code.has_framework else code.reached.calls
    for module, call, name in calls:
        last = call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]
        if name in _LOADING_FUNCTIONS and not _is_of_data(call) and not _is_of_start(call):
            return True
        if last in _LOADS and _is_skipped(code, call, module):
            continue
        if last in _LOADS and not any(".state_dict(" in ast.unparse(given) for given in call.args):
            return True
        if any(keyword.arg in _LOADING_KEYWORDS for keyword in call.keywords if not _is_declared_only(call)):
            return True
    return False


def _is_skipped(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call enters a function of the program that loads nothing with the values of this job."""
    found = code.program.called(call, module)
    if found is None or isinstance(found[1], ast.ClassDef):
        return False
    calls = [node for node in ast.walk(found[1]) if isinstance(node, ast.Call)]
    loading = [one for one in calls if "load" in spelled(one.func).lower() or "restore" in spelled(one.func)]
    return bool(loading) and not any(code.reached.of(one, found[0]) for one in loading)


def _is_of_data(call: ast.Call) -> bool:
    text = ast.unparse(call).lower()
    return "data" in text and not any(word in text for word in ("ckpt", "checkpoint", "snapshot", "resume", "state"))


def _is_of_start(call: ast.Call) -> bool:
    """Return whether a call loads the weights that a training begins with: `torch.load(args.init_checkpoint)`."""
    return bool(_STARTS_WITH.search(ast.unparse(call.args[0]))) if call.args else False


def _is_declared_only(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("add_argument", "field")
