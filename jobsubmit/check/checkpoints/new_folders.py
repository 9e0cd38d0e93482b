"""Checkpoints in a place that is new at each start, where no restart finds them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from jobsubmit.check.checkpoints.paths import places_saved_to
from jobsubmit.check.code import ACCELERATOR, Code
from jobsubmit.check.interpreter.memory import MOMENT
from jobsubmit.check.origins import makes_equal, origins, parts_returned, words_of
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.configuration import read_text
from jobsubmit.check.program.functions import enter
from jobsubmit.check.program.module import FUNCTIONS, Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to
from jobsubmit.common.finding import Finding

_NEW_NAME = re.compile(r"\$\{now:[^}]*\}|strftime|time\.time\(\)|datetime\.(?:datetime\.)?(?:utc)?now\(\)|uuid\.uuid\d")
# A number that no folder has yet: how many there are, or one more than the last.
_NEXT_NUMBER = re.compile(
    r"len\((?:\w+\()?(?:[\w.]+\.)?(?:glob|listdir|iterdir|scandir)\b"
    r"|max\(\w*(?:ids?|runs?|versions?|nums?|numbers?)\b[^()]*\) \+ 1"
)
_OWN_NAME = re.compile(r"(?:time\.)?strftime\(|time\.time\(|datetime\.(?:datetime\.)?(?:utc)?now\(|uuid\.uuid[14]\(")
_OF_TIME = re.compile(r"%-?[HIMSsfXcT]")  # in a format: not only the date
_SEARCHES = re.compile(r"\b(?:r?glob|listdir|iterdir|scandir|walk)\(")
_MOST_FILES = 200
_OF_LAST = re.compile(r"ckpt|checkpoint|resume|last|latest")


def new_at_each_start(code: Code) -> Iterator[Finding]:
    """Yield a warning where checkpoints go to a place that is new at each start: no restart finds them."""
    by_time = list(_named_by_time(code))
    yield from by_time
    if by_time:
        return
    saves = list(places_saved_to(code))
    for name in ("os.path.isfile", "os.path.exists"):
        for module, call in code.calls(name):
            if call.args and _OF_LAST.search(unparsed(call.args[0])):
                saves.append((module, call, call.args[0]))
    for module, place, path in saves:
        words = _words_of_path(code, path, module)
        found = _NEW_NAME.search(words) or _NEW_NAME.search(_of_configuration(code, words))
        source = found[0] if found else _numbered_by(code, path, module)
        if source and not _is_given(code, path):
            yield Finding(
                "warning",
                "no-checkpoint",
                module.where(place),
                f"the path depends on {source}, so it is another one after each restart, which would not find the "
                "checkpoint",
                "use a path that stays the same, such as a name in checkpoint_dir",
            )
            return


def _is_given(code: Code, path: ast.expr) -> bool:
    """Return whether the job's configuration names a folder, and the code does so itself only if it does not."""
    fields = [
        node.attr for node in walk(path) if isinstance(node, ast.Attribute) and code.settings_given.get(node.attr)
    ]
    stores = [(field, *store) for field in fields for store in code.program.attribute_stores.get(field, ())]
    stores = [one for one in stores if code.reached.of(one[2], one[1])]
    return bool(fields) and all(
        isinstance(assigned_to(store, home), ast.Constant)
        or any(isinstance(above, ast.If) and field in unparsed(above.test) for above in home.above(store))
        for field, home, store in stores
    )


def check_scattered(code: Code) -> Iterator[Finding]:
    """Yield a warning where all processes save their parts of a checkpoint, each to a folder named by its own clock."""
    if not code.is_parallel:
        return
    for module, call, name in code.reached.calls:
        path = _folder_of_parts(code, call, name)
        if path is None:
            continue
        parts = _origins_with_arguments(code, path, module)
        words = "\n".join(unparsed(part) for _, part in parts if not isinstance(part, ast.Dict))
        found = _OWN_NAME.search(words)
        if found is None or "all_reduce" in words or ("strftime" in found[0] and not _OF_TIME.search(words)):
            continue
        if not makes_equal(code, _names_of_clock(path, parts)) and argument(call, "no_dist") is None:
            yield Finding(
                "warning",
                "scattered-checkpoint",
                module.where(call),
                f"each rank saves its part of the checkpoint to a folder that its own `{found[0]})` names: if the "
                "parts are in different folders, the checkpoint cannot be loaded",
                "let rank 0 choose the name, and send it to the others: dist.broadcast_object_list([name], src=0)",
            )
            return


def _names_of_clock(path: ast.expr, parts: Sequence[tuple[Module, ast.AST]]) -> set[str]:
    """Return the variables and fields of a path and of its origins that hold what a clock says, or are made of it."""
    statements = [home.parents.get(part) for home, part in parts]
    assigned = [one for one in statements if isinstance(one, ast.Assign)]
    found, known = _names_in(path), -1
    while len(found) > known:
        known = len(found)
        for one in assigned:
            if _names_in(one.value) & found or _OWN_NAME.search(unparsed(one.value)):
                found |= {spelled(target).rpartition(".")[2] for target in one.targets} - {""}
    return found


def _names_in(node: ast.AST) -> set[str]:
    names = {getattr(one, "id", getattr(one, "attr", "")) for one in walk(node)}
    return names - {""}


def _origins_with_arguments(code: Code, path: ast.expr, module: Module) -> list[tuple[Module, ast.AST]]:
    """Return what a path comes from, and what is given to the calls among it: `self.make_folder(base, name)`."""
    parts = origins(code, path, module)
    given = [(home, one) for home, part in parts if isinstance(part, ast.Call) for one in part.args]
    return [*parts, *(origin for home, one in given for origin in origins(code, one, home))]


def _folder_of_parts(code: Code, call: ast.Call, name: str) -> ast.expr | None:
    """Return the folder that a call saves a part of each process to, if it does so."""
    if name in ("torch.distributed.checkpoint.save", "torch.distributed.checkpoint.async_save"):
        return argument(call, "checkpoint_id", 1)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "save_state" and method not in code.program.methods and any(code.calls(ACCELERATOR)):
        return argument(call, "output_dir", 0)
    is_of_deepspeed = method == "save_checkpoint" and method not in code.program.methods and code.uses("deepspeed")
    return argument(call, "save_dir", 0) if is_of_deepspeed else None


def _named_by_time(code: Code) -> Iterator[Finding]:
    """Yield a warning where every path that the first process saves to has the time in it."""
    events = [event for one in code.followed[:1] for event in one.events.values() if event.name == "torch.save"]
    paths = [str(event.argument("f", 1, "")) for event in events]
    if paths and all(MOMENT in path for path in paths):
        yield Finding(
            "warning",
            "no-checkpoint",
            events[0].module.where(events[0].call),
            "the path depends on the time, so it is another one after each restart, which would not find the "
            "checkpoint",
            "use a path that stays the same, such as a name in checkpoint_dir",
        )


def _numbered_by(code: Code, path: ast.expr, module: Module) -> str:
    """Return what gives a path a number that is not yet taken, where nothing looks for the paths of before."""
    for home, part in origins(code, path, module):
        calls = [one for one in walk(part) if isinstance(one, ast.Call) and _takes_free_number(code, one, home)]
        if calls and not _looks_for_all(code, unparsed(calls[0].func)):
            return f"{unparsed(calls[0].func)}()"
        counted = _NEXT_NUMBER.search(unparsed(part))
        counted_as = counted[0] if counted else _next_of_found(code, part, home)
        if counted_as and not _looks_for_all(code, counted_as):
            return "the number of folders that exist"
    return ""


def _next_of_found(code: Code, part: ast.AST, module: Module) -> str:
    """Return how the function around takes the number after that of the last folder it found: `max(found) + 1`."""
    function = module.function_of(part)
    if function is None or code.passes_by(part, module) or not _SEARCHES.search(unparsed(function)):
        return ""
    sums = (node for node in walk(function) if isinstance(node, ast.BinOp) and code.reached.of(node, module))
    return next((text for one in sums if re.fullmatch(r"max\(\w+\) \+ 1", text := unparsed(one))), "")


def _takes_free_number(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a function of the program looks in a loop for a path that does not exist, and may do so here."""
    found = code.program.called(call, module)
    if found is None or not isinstance(found[1], FUNCTIONS) or not code.reached.of(call, module):
        return False
    entered = enter(code.values, call, module)
    for loop in (node for node in walk(found[1]) if isinstance(node, (ast.For, ast.While))):
        tests = [one.test for one in walk(loop) if isinstance(one, (ast.If, ast.While))]
        around = [above.test for above in found[0].above(loop) if isinstance(above, ast.If)]
        is_entered = entered is None or not any(entered[0].truth(test, found[0]) is False for test in around)
        if is_entered and any("exists(" in unparsed(test) for test in tests):
            return True
    return False


def _looks_for_all(code: Code, source: str) -> bool:
    """Return whether what is loaded is looked for in all folders, and not only in the new one, as its words show."""
    loads = (words_of(code, call.args[0], module) for module, call in code.calls("torch.load") if call.args)
    return any(_SEARCHES.search(words) and source not in words for words in loads)


def _words_of_path(code: Code, path: ast.expr, module: Module) -> str:
    """Return a path and all that it is made of; of several values that a function returns, only those in the path."""
    names = [node for node in walk(path) if isinstance(node, ast.Name)]
    stores = {name: module.stores.get((module.scope_of(name), name.id), ()) for name in names}
    parts = {name: [part for store in stores[name] for part in parts_returned(code, store, module)] for name in names}
    if not any(parts.values()):
        return words_of(code, path, module)
    sources = (source for name in names for source in parts[name] or [(module, name)])
    return "\n".join([unparsed(path), *(words_of(code, source, home) for home, source in sources)])


def _of_configuration(code: Code, words: str) -> str:
    """Return the lines of Hydra's configurations for the settings that some words name."""
    if code.values.composed is None:
        return ""
    names = set(re.findall(r"\.(\w+)", words))
    texts = [read_text(code.program, path) for path in [*code.program.configurations][:_MOST_FILES]]
    lines = (line for text in texts for line in text.splitlines())
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in names)
