"""Folders that all processes make at the same time, and data that all of them download."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.all_ranks import is_for_all, is_of_one_process
from jobsubmit.check.collectives.calls import finder_of
from jobsubmit.check.collectives.loops import trains_inside
from jobsubmit.check.collectives.rank_conditions import mentions_rank
from jobsubmit.check.collectives.rank_zero import zero_branches
from jobsubmit.check.origins import beginning_of, origins, words_of
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.module import FUNCTIONS, Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_MAKES = ("os.makedirs", "os.mkdir")
_FIRST = ("main_process_first", "local_main_process_first", "rank_zero_first", "torch_distributed_zero_first")
_WRITES = (
    "torch.save",
    "numpy.save",
    "numpy.savez",
    "numpy.savez_compressed",
    "os.replace",
    "os.rename",
    "shutil.move",
)
_FILLS = (*_MAKES, *_WRITES, "urllib.request.urlretrieve")
_READS = (
    *("torch.load", "numpy.load", "numpy.memmap", "open", "pandas.read_parquet", "pandas.read_csv"),
    *("torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder"),
)
_STAGES = re.compile(r"extract|unpack|untar|unzip|copytree|copy|download|stage|prepare", re.IGNORECASE)
_RECORDS = re.compile(r"(?:^|_)(?:logs?|conf(?:ig)?s?|code|backup|ckpts?|checkpoints?|results?|outputs?)(?:_|$)")
_OF_RECORDS = re.compile(r"\b\w*(?:log|out|output|save|ckpt|checkpoint|result|exp|run|work)_?(?:dir|path|folder)\b")
_OF_SETTINGS = re.compile(r"\.(?:ya?ml|json|toml|cfg|ini|py|sh)['\"]\)*$")  # a copy is a record of the job
_MAY_HOLD_ONCE = re.compile(r"exist|isdir|is_dir|==|not in|first|start|^not [\w.]+$|is None")
_RANK_OR_PERIOD = re.compile(r"[\w.]*rank\w*(?:\(\))? == 0|% [\w.]+ == 0")
_DEEPEST = 3  # functions that call each other
_OF_PASS = re.compile(r"step|epoch|iter|time|now|count|idx|version|round|uuid|uniq|next|temp|tmp|incr|num|batch|\bi\b")
_TAKES_AWAY = frozenset(["rmtree", "rmdir", "rename", "replace", "move", "unlink", "removedirs"])
_PATH = re.compile(r"^(?:pathlib\.)?Path\(([\w.]+)\)$")
_ASKS_OR_TAKES_AWAY = re.compile(
    rf"exist|isdir|is_dir|clean|delete|remove|reset|\.(?:{'|'.join(sorted(_TAKES_AWAY))})$"
)
_JOIN = frozenset(["Path", "join", "str"])
_FETCHES = ("torchvision.datasets.", "torchaudio.datasets.")
_FETCHES_BY_ITSELF = ("torch_geometric.datasets.", "ogb.", "dgl.data.")


def check_races(code: Code) -> Iterator[Finding]:
    """Yield a warning for a folder that every process makes, and for data that every process downloads."""
    if (code.processes or 0) <= 1 or not (code.facts.has_launcher or code.is_distributed):
        return
    yield from _folder_of_all(code)
    yield from _folder_of_each_pass(code)
    if code.is_distributed and not code.has_framework:
        yield from _download_by_all(code)
    if code.facts.nodes > 1:
        yield from _staged_by_one(code)


def _folder_of_all(code: Code) -> Iterator[Finding]:
    safe = [
        (_origins_of(code, path, module), _texts(code, path, module)) for module, path in _folders_made_safely(code)
    ]
    for module, call, name in code.reached.calls:
        path = _folder_made(code, call, name, module)
        if path is None or is_of_one_process(code, path, module) or is_handled(call, module):
            continue
        own, texts = _origins_of(code, path, module), _texts(code, path, module)
        is_asked = any("exist" in unparsed(test) or "dir" in unparsed(test) for test in _tests_around(call, module))
        is_same = any(_may_be_same(own, other) or (is_asked and {*own} & {*other}) for other, _ in safe)
        is_same |= is_asked and bool(texts) and any(texts == others for _, others in safe)
        if code.is_of_one(call) or is_same:
            continue
        if is_for_all(code, call, module):
            yield Finding(
                "warning",
                "made-by-all",
                module.where(call),
                "each process makes this folder: all but the first may fail with "
                "FileExistsError, even if they looked whether it exists",
                "pass exist_ok=True",
            )
            return


def _origins_of(code: Code, path: ast.expr, module: Module) -> list[str]:
    """Return what a path is computed from: first the whole of it, then its parts."""
    return [_PATH.sub(r"\1", unparsed(part)) for _, part in origins(code, path, module)]


def _texts(code: Code, path: ast.expr, module: Module) -> set[str]:
    """Return the texts of which a path is made."""
    nodes = (node for _, part in origins(code, path, module) for node in walk(part))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _may_be_same(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether the whole of one path is the other one, or a part of it."""
    return bool(one and other) and (one[0] in other or other[0] in one)


def _folder_of_each_pass(code: Code) -> Iterator[Finding]:
    """Yield a warning for a folder that every pass of a loop makes: the second one finds it there, and fails."""
    for module, call, name in code.reached.calls:
        path = _folder_made(code, call, name, module)
        if path is None or is_handled(call, module):
            continue
        around = list(takewhile(lambda one: not isinstance(one, FUNCTIONS), module.above(call)))
        loop = next((one for one in around if isinstance(one, (ast.For, ast.While))), None)
        if loop is None or not trains_inside(code, loop, module) or any(map(_may_hold_once, _conditions(around))):
            continue
        inside, nodes = walk(loop), walk(path)
        changing = {spelled(node) for node in inside if isinstance(getattr(node, "ctx", None), ast.Store)} - {""}
        if any(getattr(one, "attr", "") in _TAKES_AWAY for one in inside):
            continue
        called = {spelled(one.func).rpartition(".")[2] for one in nodes if isinstance(one, ast.Call)}
        if called <= _JOIN and changing.isdisjoint(map(spelled, nodes)):
            yield Finding(
                "warning",
                "made-again",
                module.where(call),
                f"each pass of the loop makes {unparsed(path)} again: the second one ends with FileExistsError",
                "pass exist_ok=True",
            )
            return
    yield from _folder_of_each_call(code)


def _folder_of_each_call(code: Code) -> Iterator[Finding]:
    """Yield a warning for a folder that a function makes which a training calls again and again."""
    for module, call, name in code.reached.calls:
        path = _folder_made(code, call, name, module)
        function = module.function_of(call)
        if path is None or function is None or is_handled(call, module):
            continue
        words = words_of(code, path, module)
        if not _is_called_again(code, call, module, words):
            continue
        asks_or_takes_away = any(_ASKS_OR_TAKES_AWAY.search(spelled(one)) for one in walk(function))
        if not asks_or_takes_away and not _OF_PASS.search(words):
            yield Finding(
                "warning",
                "made-again",
                module.where(call),
                f"each call of {function.name}() makes {unparsed(path)} again: the second one ends with "
                "FileExistsError",
                "pass exist_ok=True",
            )
            return


def _is_called_again(code: Code, call: ast.Call, module: Module, words: str, depth: int = 0) -> bool:
    """Return whether a call is made in a loop that trains, perhaps in a function that such a loop calls.

    A loop through what the `words` of a path name makes another path in each pass.
    """
    around = list(takewhile(lambda one: not isinstance(one, FUNCTIONS), module.above(call)))
    if any(map(_may_hold_once, _conditions(around))):
        return False
    loops = [one for one in around if isinstance(one, (ast.For, ast.While)) and depth]
    if training := [one for one in loops if trains_inside(code, one, module)]:
        targets = [one.target for one in training if isinstance(one, ast.For)]
        names = {node.id for one in targets for node in walk(one) if isinstance(node, ast.Name)}
        return not any(re.search(rf"\b{name}\b", words) for name in names)
    function = module.function_of(call)
    callers = code.program.calls_to(function, module) if function is not None and depth < _DEEPEST else ()
    callers = [(home, one) for home, one in callers if code.reached.of(one, home)]
    return any(_is_called_again(code, one, home, words, depth + 1) for home, one in callers)


def _tests_around(node: ast.AST, module: Module) -> Iterator[ast.expr]:
    return _conditions(takewhile(lambda one: not isinstance(one, FUNCTIONS), module.above(node)))


def _conditions(around: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield the conditions on which something inside of some nodes depends: `exists(path) or makedirs(path)`."""
    for one in around:
        if isinstance(one, (ast.If, ast.IfExp)):
            yield one.test
        elif isinstance(one, ast.BoolOp):
            yield one.values[0]


def _may_hold_once(test: ast.expr) -> bool:
    """Return whether a condition may hold in one pass only: not that of a rank, or of every so many passes."""
    return _MAY_HOLD_ONCE.search(_RANK_OR_PERIOD.sub("", unparsed(test))) is not None


def _folders_made_safely(code: Code) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the folders that each process may make, whether they exist or not."""
    for module, call, name in code.reached.calls:
        if code.values.of(argument(call, "exist_ok"), module) is not True:
            continue
        if name in _MAKES and call.args:
            yield module, call.args[0]
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir":
            made = call.func.value
            if isinstance(made, ast.Call) and made.args and spelled(made.func).rpartition(".")[2] == "Path":
                made = made.args[0]
            yield module, made


def _folder_made(code: Code, call: ast.Call, name: str, module: Module) -> ast.expr | None:
    """Return the folder that a call makes, and that must not exist."""
    if hides_arguments(call) or code.values.of(argument(call, "exist_ok") or ast.Constant(False), module) is not False:
        return None
    if name in _MAKES:
        return argument(call, "name", 0)
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" and not call.args
    return call.func.value if is_method else None  # type: ignore[attr-defined] # it is an attribute


def is_handled(node: ast.AST, module: Module) -> bool:
    """Return whether the function around a node handles errors there."""
    return any(isinstance(above, ast.Try) and above.handlers for above in module.above(node))


def _download_by_all(code: Code) -> Iterator[Finding]:
    for module, call, name in code.reached.calls:
        if not name.startswith(_FETCHES) or code.values.of(argument(call, "download"), module) is not True:
            continue
        tests = [above.test for above in module.above(call) if isinstance(above, ast.If)]
        may_be_other_data = any(code.values.truth(test, module) is None for test in tests)
        if may_be_other_data or _others_wait(code, call, module):
            continue
        if is_for_all(code, call, module):
            yield Finding(
                "warning",
                "fetched-by-all",
                module.where(call),
                "each process downloads the data, and unpacks it where others read it",
                "download it on rank 0 first: if rank == 0: …(download=True); then dist.barrier() on all ranks",
            )
            return


def _staged_by_one(code: Code) -> Iterator[Finding]:
    """Yield a warning where only rank 0 puts data on the disk of its node, which the other nodes do not see."""
    read_by_all = _read_by_all(code)
    for module, body in zero_branches(code):
        tests = [unparsed(above.test) for above in module.above(body[0]) if isinstance(above, ast.If)]
        if any("local" in test.lower() for test in tests):
            continue
        own_of_branch = {node for statement in body for node in walk(statement)}
        for call in (node for statement in body for node in walk(statement) if isinstance(node, ast.Call)):
            is_file = code.program.name_of(call.func, module) in _WRITES or _opens_to_write(code, call, module)
            is_download = code.values.of(argument(call, "download"), module) is True
            is_fetch = is_download or code.program.name_of(call.func, module).startswith(_FETCHES_BY_ITSELF)
            name = unparsed(call.func).rpartition(".")[2]
            if not (is_file or is_fetch) and _RECORDS.search(name):
                continue
            is_copy = name.startswith("copy") and len(call.args) > 1
            copied_to = unparsed(call.args[1]) if is_copy else ""
            is_record = (_OF_RECORDS.search(copied_to) or _OF_SETTINGS.search(copied_to)) is not None
            is_stage = _STAGES.search(name) and not is_record
            if not (is_file or is_fetch or is_stage):
                if (place := _made_for_all(code, call, body, module)) is not None:
                    yield _staged(module, call, place)
                    return
                for home, caller, place in _given_to_do(code, call, module):
                    yield _staged(home, caller, place)
                    return
                continue
            places = [code.values.of(given, module) for given in (*call.args, *(one.value for one in call.keywords))]
            on_node = [str(one) for one in places if code.facts.is_on_node(one)]
            on_node += _own_folders(code, call, module)
            if is_download and _is_made_without(code, call, own_of_branch, module):
                on_node += [str(one) for one in places[:1] if isinstance(one, str) and _is_below_code(one)]
            place = next((one for one in on_node if not is_file or one in read_by_all), None)
            place = place or _filled_inside(code, call, body, module)
            if place is not None:
                yield _staged(module, call, place)
                return


def _filled_inside(code: Code, call: ast.Call, body: list[ast.stmt], module: Module) -> str | None:
    """Return the folder on a node's disk that a function fills which a call enters, and that others read."""
    calls = (node for statement in body for node in walk(statement) if isinstance(node, ast.Call))
    entered = [found for one in calls if (found := code.program.called(one, module)) is not None]
    found = code.program.called(call, module)
    if found is None or isinstance(found[1], ast.ClassDef):
        return None
    own = {node for root in (*body, *(function for _, function in entered)) for node in walk(root)}
    for inner in (node for node in walk(found[1]) if isinstance(node, ast.Call)):
        name = code.program.name_of(inner.func, found[0])
        if name not in _FILLS and not _opens_to_write(code, inner, found[0]) and spelled(inner.func)[-7:] != ".tofile":
            continue
        for place in (str(code.values.of(given, found[0])) for given in inner.args):
            folder = place if name in _MAKES else posixpath.dirname(place)
            is_of_node = code.facts.is_on_node(place) or _is_below_code(folder)
            if is_of_node and _is_used_outside(code, folder, own):
                return folder
    return None


def _is_used_outside(code: Code, folder: str, own: set[ast.AST]) -> bool:
    """Return whether a call gets a path in a folder, other than some that are known, and those that only ask for it."""
    for module, call, name in code.reached.calls:
        if call in own or name in _MAKES or name.startswith("os.path."):
            continue
        if any(beginning_of(code, given, module).startswith(folder) for given in call.args):
            return True
    return False


def _is_made_without(code: Code, call: ast.Call, own: set[ast.AST], module: Module) -> bool:
    """Return whether the same data is opened elsewhere, and not downloaded there."""
    name = code.program.name_of(call.func, module)
    others = [(home, one) for home, one in code.calls(name) if one not in own]
    return bool(others) and not any(code.values.of(argument(one, "download"), home) is True for home, one in others)


def _own_folders(code: Code, call: ast.Call, module: Module) -> list[str]:
    """Return the folders below the code of the node that a call downloads to: `local_dir="./"`."""
    given = (code.values.of(argument(call, name), module) for name in ("local_dir", "cache_dir"))
    return [one for one in given if isinstance(one, str) and _is_below_code(one)]


def _is_below_code(path: str) -> bool:
    return bool(path) and path[0] not in "/~$<" and "://" not in path


def _given_to_do(code: Code, call: ast.Call, module: Module) -> Iterator[tuple[Module, ast.Call, str]]:
    """Yield the calls that give away a function which puts data on the disk of a node: `run_on_main(prepare)`."""
    function = module.function_of(call)
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if function is None or name not in parameters(function):
        return
    for home, caller in code.program.calls_to(function, module):
        given = given_for(caller, function, name)
        if given is None or not _STAGES.search(spelled(given)) or not code.reached.of(caller, home):
            continue
        parts = [part for arg in (*caller.args, *(one.value for one in caller.keywords)) for part in _items(arg)]
        places = [str(code.values.of(part, home)) for part in parts]
        place = next((one for one in places if code.facts.is_on_node(one)), None)
        if place is not None:
            yield home, caller, place


def _items(node: ast.expr) -> list[ast.expr]:
    """Return what a literal mapping or sequence holds; any other expression is itself."""
    if isinstance(node, ast.Dict):
        return node.values
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]


def _staged(module: Module, call: ast.Call, place: str) -> Finding:
    return Finding(
        "warning",
        "staged-by-one",
        module.where(call),
        f"only rank 0 puts data into {place}, on the disk of its node: no other node has it",
        "let the first process of each node do it: if local_rank == 0",
    )


def _made_for_all(code: Code, call: ast.Call, body: list[ast.stmt], module: Module) -> str | None:
    """Return the folder on a node's disk that a function of the program fills, and that all ranks read below it."""
    found = code.program.called(call, module)
    if found is None or isinstance(found[1], ast.ClassDef):
        return None
    calls = [inner for inner in walk(found[1]) if isinstance(inner, ast.Call)]
    if not any(
        code.program.name_of(one.func, found[0]) in _WRITES or _opens_to_write(code, one, found[0]) for one in calls
    ):
        return None
    own = {inner for statement in body for inner in walk(statement)}
    scope = module.scope_of(call)
    reads = [
        one
        for one in walk(scope)
        if isinstance(one, ast.Call) and one not in own and code.program.name_of(one.func, module) in _READS
    ]
    for given in (one for one in call.args if isinstance(one, (ast.Name, ast.Attribute))):
        is_read = any(unparsed(given) == unparsed(part) for one in reads for arg in one.args for part in walk(arg))
        places = [str(code.values.of(part, home)) for home, part in origins(code, given, module)] if is_read else []
        place = next((one for one in places if code.facts.is_on_node(one)), None)
        if place is not None:
            return place
    return None


def _read_by_all(code: Code) -> set[str]:
    """Return the files that all processes read."""
    own = {inner for _, body in zero_branches(code) for statement in body for inner in walk(statement)}
    reads = [(module, call) for module, call in code.calls(*_READS) if call not in own and call.args]
    return {
        str(code.values.of(call.args[0], module)) for module, call in reads if not _opens_to_write(code, call, module)
    }


def _opens_to_write(code: Code, call: ast.Call, module: Module) -> bool:
    mode = code.values.of(argument(call, "mode", 1), module)
    is_open = code.program.name_of(call.func, module) == "open"
    return is_open and isinstance(mode, str) and mode[:1] in ("w", "x", "a")


def _others_wait(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a barrier in the same function lets one rank come here first: by `if rank != 0: barrier()`."""
    finder = finder_of(code)
    for node in walk(module.scope_of(call)):
        if isinstance(node, ast.With) and any(name in unparsed(item) for item in node.items for name in _FIRST):
            return True
        if isinstance(node, ast.If) and mentions_rank(node.test) and next(finder.collectives(node.body, module), None):
            return True
    return False
