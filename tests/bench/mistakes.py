"""Make one mistake after another in correct training code, and see which of them the checks notice.

    python tests/bench/mistakes.py                      the correct boot files of tests/corpus; three minutes
    python tests/bench/mistakes.py --jobs DIR           the jobs in the folders of DIR: job.yaml with code/ beside it
    python tests/bench/mistakes.py --only 'set_epoch'   kinds of mistakes that hold this text
    python tests/bench/mistakes.py --missed             show the changes that no check noticed, too

Each mistake is a small change by rule, such as a set_epoch() left out. Some changes leave a program right, for example
where two places do the same: a share of 100% is not to be had, but a share that falls, or a kind that is often missed,
shows where a check gives up too early.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import itertools
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple, TypeAlias
from unittest import mock

import yaml

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]

from corpus import CASES, check_as_case, code_of

from jobsubmit.bundle.scanner import scan
from jobsubmit.check import run
from jobsubmit.check.arguments import Word
from jobsubmit.check.code import Code, is_ddp, look_at
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.objects import made
from jobsubmit.check.program.program import Program
from jobsubmit.common.finding import Finding
from jobsubmit.config import BUILT_IN
from jobsubmit.plan import launch_plan as planning
from jobsubmit.spec.loader import load_mapping

_RANK_TEST = re.compile(
    r"rank\w*(\(\))?\s*(==|in)\s*[\[(]?(0|-1)|is_(main|master|rank_?zero|global_zero|primary)|master_process"
)
_OWN_MODELS = ("model", "net", "self.model", "ddp_model")
_COLLECTIVES = ("all_reduce", "broadcast", "barrier", "all_gather")
_MOST = 2  # mistakes of one kind in one job

Check: TypeAlias = Callable[[Path], tuple[Finding, ...]]


class Job(NamedTuple):
    """Correct code, and how to check it: as it is, or a copy with a change."""

    name: str
    code: Path
    check: Check


class Mistake(NamedTuple):
    """One changed file."""

    kind: str
    path: str
    text: str


class Tried(NamedTuple):
    """What the checks say of a mistake that they do not say of the correct code."""

    job: str
    kind: str
    change: str
    found: tuple[str, ...]


@dataclass(frozen=True)
class File:
    """One module of the code with its text, which is changed where nodes of its tree stand."""

    code: Code
    module: Module
    text: str

    def of(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        begin, end = self._span(node)
        return self.text.encode()[begin:end].decode()

    def instead(self, node: ast.expr | ast.stmt, new: str) -> str:
        """Return the file with other text in the place of a node."""
        begin, end = self._span(node)
        data = self.text.encode()
        return (data[:begin] + new.encode() + data[end:]).decode()

    def before(self, statement: ast.stmt, *lines: str) -> str:
        """Return the file with lines before a statement."""
        indent = " " * statement.col_offset
        return self.instead(statement, f"\n{indent}".join([*lines, self.of(statement)]))

    def after(self, statement: ast.stmt, *lines: str) -> str:
        """Return the file with lines after a statement."""
        indent = " " * statement.col_offset
        return self.instead(statement, f"\n{indent}".join([self.of(statement), *lines]))

    def only(self, test: str, statement: ast.stmt) -> str:
        """Return the file with a statement under a condition."""
        return self.instead(statement, f"if {test}:\n{' ' * (statement.col_offset + 4)}{self.of(statement)}")

    def runs(self, node: ast.AST) -> bool:
        """Return whether a node is reached when the job starts."""
        return bool(self.code.reached.of(node, self.module))

    def with_arguments(self, call: ast.Call, more: str) -> str:
        """Return the file with more arguments of a call."""
        text = self.of(call).removesuffix(")").rstrip().removesuffix(",")
        return self.instead(call, f"{text}, {more})" if call.args or call.keywords else f"{text}{more})")

    @property
    def rank(self) -> str:
        """Return the number of a process."""
        return f"{self.package('torch')}.distributed.get_rank()"

    @property
    def local_rank(self) -> str:
        """Return the number of a process on its node."""
        return f"int({self.package('os')}.environ['LOCAL_RANK'])"

    def package(self, name: str) -> str:
        """Return how the module may name a package."""
        return name if self.module.aliases.get(name) == name else f"__import__('{name}')"

    @property
    def on_rank_zero(self) -> str:
        """Return a condition that holds on the first process only."""
        return f"{self.rank} == 0"

    @property
    def has_nodes(self) -> bool:
        """Return whether a place on a node is another number than the rank."""
        return self.code.facts.nodes > 1 and self.code.facts.has_launcher

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        lines = self.text.encode().split(b"\n")
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line) + 1)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def mistakes(code: Code) -> Iterator[Mistake]:
    """Yield the mistakes that can be made in a program, at most some of each kind."""
    made: Counter[str] = Counter()
    for module in code.program.modules.values():
        source = code.program.sources.get(module.path)
        if module.is_skimmed or source is None:
            continue
        file = File(code, module, Path(source).read_text())
        for kind, text in _of_file(file):
            made[kind] += 1
            if made[kind] <= _MOST and text != file.text and _parses(text):
                yield Mistake(kind, module.path, text)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _of_file(file: File) -> Iterator[tuple[str, str]]:
    """Yield a kind of mistake and the whole text with it."""
    calls = [
        (call, name) for module, call, name in file.code.program.calls if module is file.module and file.runs(call)
    ]
    for call, name in calls:
        statement = _statement_of(call, file.module)
        if statement is None:
            continue
        yield from _of_data(file, call, name, statement)
        yield from _of_models(file, call, name, statement)
        yield from _of_starts(file, call, name, statement)
        if isinstance(statement, ast.Expr) and statement.value is call:
            yield from _of_steps(file, call, statement)
            yield from _of_collectives(file, call, name, statement)
            yield from _of_checkpoints(file, call, name, statement)
    yield from _of_names(file)
    yield from _of_loops(file)
    yield from _of_functions(file)
    yield from _of_tensors(file)
    yield from _of_sizes(file)
    yield from _of_accumulation(file)


def _statement_of(node: ast.AST, module: Module) -> ast.stmt | None:
    return next((above for above in (node, *module.above(node)) if isinstance(above, ast.stmt)), None)


def _of_data(file: File, call: ast.Call, name: str, statement: ast.stmt) -> Iterator[tuple[str, str]]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    is_alone = isinstance(statement, ast.Expr) and statement.value is call
    if is_alone and isinstance(call.func, ast.Attribute) and call.func.attr == "set_epoch":
        yield "set_epoch() left out", file.instead(statement, "pass")
        yield from (("the same epoch each time", file.instead(epoch, "0")) for epoch in call.args)
    if name.rpartition(".")[2] == "DataLoader" and "sampler" in given and "shuffle" not in given:
        yield "shuffle beside a sampler", file.instead(given["sampler"], f"{file.of(given['sampler'])}, shuffle=True")
    if (
        name.rpartition(".")[2] == "DistributedSampler"
        and isinstance(statement, ast.Assign)
        and statement.value is call
    ):
        target = ast.unparse(statement).partition("=")[0].lower()
        if "val" not in target and "test" not in target:
            yield "no DistributedSampler", file.instead(call, "None")
            if call.args:
                plain = f"{file.package('torch')}.utils.data.RandomSampler({file.of(call.args[0])})"
                yield "a plain RandomSampler", file.instead(call, plain)
            if not {"num_replicas", "rank", "seed"} & given.keys() and len(call.args) == 1 and file.has_nodes:
                yield "data divided within a node", file.with_arguments(call, f"num_replicas=8, rank={file.local_rank}")
                yield "a seed for each rank", file.with_arguments(call, f"seed={file.rank}")


def _of_models(file: File, call: ast.Call, name: str, statement: ast.stmt) -> Iterator[tuple[str, str]]:
    if is_ddp(name) and isinstance(statement, ast.Assign) and statement.value is call and call.args:
        yield "DistributedDataParallel left out", file.instead(call, file.of(call.args[0]))
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if "device_ids" in given and file.code.facts.gpus:
            yield "every model on the first GPU", file.instead(given["device_ids"], "[0]")
        yield from _without_place(file, call.args[0], statement)
        yield from _with_unused_layer(file, call)
    if file.code.wraps_models and ast.unparse(call.func) in _OWN_MODELS and _trains(call, file.module):
        yield "model.module called in training", file.instead(call.func, f"{file.of(call.func)}.module")


def _without_place(file: File, model: ast.expr, wraps: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield a model that stays on the CPU: the statement before its wrapper which moves it is left out."""
    for call in file.module.of(ast.Call):
        statement = file.module.parents.get(call)
        moves = isinstance(call.func, ast.Attribute) and call.func.attr in ("cuda", "to") and file.runs(call)
        is_own = moves and isinstance(model, ast.Name) and ast.unparse(call.func.value) == model.id
        is_before = call.lineno < wraps.lineno and file.module.scope_of(call) is file.module.scope_of(wraps)
        if is_own and is_before and isinstance(statement, ast.Assign | ast.Expr) and file.code.facts.gpus:
            yield "a model that stays on the CPU", file.instead(statement, "pass")


def _with_unused_layer(file: File, wraps: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield a model with a layer that nothing calls."""
    allows = any(keyword.arg == "find_unused_parameters" for keyword in wraps.keywords)
    model = None if allows else made(file.code.program, wraps.args[0], file.module)
    starts = model.owner.body if model is not None and model.home is file.module else []
    for method in starts:
        first = method.body[0] if isinstance(method, ast.FunctionDef) and method.name == "__init__" else None
        if isinstance(first, ast.Expr) and "__init__" in ast.unparse(first):
            yield (
                "a layer that nothing calls",
                file.after(first, f"self.unused_head = {file.package('torch')}.nn.Linear(4, 4)"),
            )


def _trains(node: ast.AST, module: Module) -> bool:
    """Return whether a node is in a loop that goes backward."""
    return any(isinstance(above, ast.For | ast.While) and _goes_backward(above) for above in module.above(node))


def _goes_backward(loop: ast.AST) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in ast.walk(loop))


def _of_starts(file: File, call: ast.Call, name: str, statement: ast.stmt) -> Iterator[tuple[str, str]]:
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        return
    if name == "torch.cuda.set_device" and file.code.facts.gpus:
        yield "set_device() left out", file.instead(statement, "pass")
    if name == "torch.distributed.init_process_group":
        yield "init_process_group() left out", file.instead(statement, "pass")
        if not {"rank", "world_size"} & {keyword.arg for keyword in call.keywords} and file.has_nodes:
            number = f"rank={file.local_rank}, world_size={file.package('torch')}.cuda.device_count()"
            yield "a group of one node's ranks", file.with_arguments(call, number)
        if file.code.facts.nodes > 1:
            lines = ("import os", "os.environ['MASTER_ADDR'] = 'localhost'")
            yield "MASTER_ADDR is localhost", file.before(statement, *lines)


def _of_steps(file: File, call: ast.Call, statement: ast.stmt) -> Iterator[tuple[str, str]]:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "backward") or not _trains(call, file.module):
        return
    yield "only rank 0 goes backward", file.only(file.on_rank_zero, statement)
    loss = _loss_of(call)
    if loss:
        yield (
            "a step left out where the loss is not finite",
            file.before(statement, f"if {loss}.isnan():", "    continue"),
        )
        yield "a loop left where the loss is small", file.after(statement, f"if {loss}.item() < 0.01:", "    break")
        if not file.code.has_framework:
            number = file.on_rank_zero.replace("get_rank() == 0", "get_world_size()")
            yield "a loss divided by the world size", file.before(statement, f"{loss} = {loss} / {number}")


def _loss_of(call: ast.Call) -> str:
    """Return the variable of `loss.backward()`, `scaler.scale(loss).backward()` or `engine.backward(loss)`."""
    assert isinstance(call.func, ast.Attribute)
    inner = call.func.value
    is_value = isinstance(inner, ast.Name) and not call.args  # else an engine, which is given the loss
    for node in (*([inner] if is_value else ()), *getattr(inner, "args", ()), *call.args):
        if isinstance(node, ast.Name):
            return node.id
    return ""


def _of_collectives(file: File, call: ast.Call, name: str, statement: ast.stmt) -> Iterator[tuple[str, str]]:
    package, _, function = name.rpartition(".")
    if package != "torch.distributed" or function not in _COLLECTIVES or _conditions_on_rank(call, file.module):
        return
    yield f"only rank 0 calls {function}()", file.only(file.on_rank_zero, statement)
    if function == "all_reduce":
        yield "all_reduce() left out", file.instead(statement, "pass")
    function_around = file.module.function_of(call)
    block = file.module.parents[statement]
    if function_around is block and isinstance(block, ast.FunctionDef):
        yield (
            f"other ranks return before {function}()",
            file.before(statement, f"if {file.on_rank_zero.replace('==', '!=')}:", "    return"),
        )
    if function == "broadcast":
        source = next((keyword.value for keyword in call.keywords if keyword.arg == "src"), None)
        source = source or (call.args[1] if len(call.args) > 1 else None)
        if source is not None:
            yield "each rank broadcasts its own", file.instead(source, file.rank)


def _conditions_on_rank(node: ast.AST, module: Module) -> list[ast.If]:
    found = (above for above in module.above(node) if isinstance(above, ast.If))
    return [one for one in found if _RANK_TEST.search(ast.unparse(one.test))]


def _of_checkpoints(file: File, call: ast.Call, name: str, statement: ast.stmt) -> Iterator[tuple[str, str]]:
    conditions = _conditions_on_rank(call, file.module)
    if name == "torch.save" and len(conditions) == 1:
        yield "a checkpoint saved by all", file.instead(conditions[0].test, "True")
        if file.has_nodes:
            yield "a checkpoint saved by each node", file.instead(conditions[0].test, f"{file.local_rank} == 0")
        if not conditions[0].orelse:
            barrier = file.on_rank_zero.replace("get_rank() == 0", "barrier()")
            yield "a barrier for rank 0 only", file.after(conditions[0].body[-1], barrier)
    exist_ok = next((keyword.value for keyword in call.keywords if keyword.arg == "exist_ok"), None)
    if name == "os.makedirs" and exist_ok is not None and not conditions:
        yield "a folder made by all", file.instead(exist_ok, "False")
    receiver = ast.unparse(call.func)
    if receiver.endswith(".load_state_dict") and re.search("optim|sched", receiver):
        yield "only rank 0 loads the optimizer", file.only(file.on_rank_zero, statement)


def _of_names(file: File) -> Iterator[tuple[str, str]]:
    names = {module.name for module in file.code.program.modules.values()}
    for node in file.module.of(ast.ImportFrom):
        first = node.names[0].name
        if not node.level and node.module in names and first != "*" and file.runs(node):
            yield (
                "a name that is not there",
                file.instead(node, re.sub(rf"(?<=import\s){first}\b", f"{first}_v2", file.of(node))),
            )
    for node in file.module.of(ast.Constant):
        is_asked_for = not isinstance(file.module.parents.get(node), ast.Compare)
        if node.value == "LOCAL_RANK" and is_asked_for and file.runs(node) and _has_gpus_on_several_nodes(file.code):
            yield "RANK in the place of LOCAL_RANK", file.instead(node, "'RANK'")


def _has_gpus_on_several_nodes(code: Code) -> bool:
    return bool(code.facts.gpus) and code.facts.nodes > 1


def _of_functions(file: File) -> Iterator[tuple[str, str]]:
    """Yield calls of own functions with collectives in a training loop, that only rank 0 makes."""
    program = file.code.program
    for call in file.module.of(ast.Call):
        statement = file.module.parents.get(call)
        found = program.called(call, file.module)
        if found is None or not isinstance(statement, ast.Expr) or not isinstance(found[1], ast.FunctionDef):
            continue
        inner = [node for node in ast.walk(found[1]) if isinstance(node, ast.Call)]
        names = {program.name_of(one.func, found[0]) for one in inner if not _conditions_on_rank(one, found[0])}
        is_met = not names.isdisjoint(f"torch.distributed.{one}" for one in _COLLECTIVES)
        if is_met and file.runs(call) and not _conditions_on_rank(call, file.module):
            yield "only rank 0 calls a function with a collective", file.only(file.on_rank_zero, statement)


def _of_tensors(file: File) -> Iterator[tuple[str, str]]:
    """Yield tensors that stay on the CPU although NCCL combines them."""
    for call in file.module.of(ast.Call):
        name = file.code.program.name_of(call.func, file.module)
        statement = file.module.parents.get(call)
        place = next((keyword.value for keyword in call.keywords if keyword.arg == "device"), None)
        is_made = name in ("torch.tensor", "torch.zeros", "torch.ones", "torch.as_tensor") and place is not None
        target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
        if not is_made or not isinstance(target, ast.Name) or not file.runs(call) or not file.code.is_on_nccl_only:
            continue
        scope = file.module.scope_of(call)
        combined = [
            one
            for one in ast.walk(scope)
            if isinstance(one, ast.Call)
            and file.code.program.name_of(one.func, file.module) == "torch.distributed.all_reduce"
        ]
        if place is not None and any(ast.unparse(one.args[0]) == target.id for one in combined if one.args):
            yield "a CPU tensor for NCCL", file.instead(place, "None")


def _of_sizes(file: File) -> Iterator[tuple[str, str]]:
    """Yield numbers of processes that are those of one node."""
    for call in file.module.of(ast.Call):
        name = file.code.program.name_of(call.func, file.module)
        statement = file.module.parents.get(call)
        is_whole = isinstance(statement, ast.Assign) and not call.args and file.runs(call) and file.has_nodes
        if is_whole and name == "torch.distributed.get_world_size":
            yield "a fixed world size", file.instead(call, "8")
        if is_whole and name == "torch.distributed.get_rank":
            yield "the rank within the node", file.instead(call, file.local_rank)


def _of_accumulation(file: File) -> Iterator[tuple[str, str]]:
    for call in file.module.of(ast.Call):
        statement = file.module.parents.get(call)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method == "unscale_" and isinstance(statement, ast.Expr) and file.runs(call):
            yield "gradients clipped as they are scaled", file.instead(statement, "pass")
        if method == "no_sync" and file.runs(call):
            tests = (above for above in file.module.above(call) if isinstance(above, ast.If | ast.IfExp))
            for above in itertools.islice(tests, 1):
                yield "no_sync() in the wrong steps", file.instead(above.test, f"not ({file.of(above.test)})")


def _of_loops(file: File) -> Iterator[tuple[str, str]]:
    for loop in file.module.of(ast.For):
        if isinstance(loop.target, ast.Name) and "epoch" in loop.target.id and _goes_backward(loop) and file.runs(loop):
            test = f"if {loop.target.id} >= 0 and {file.on_rank_zero}:"
            yield "rank 0 ends early", file.after(loop.body[-1], test, "    break")


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def jobs_of_corpus() -> Iterator[str]:
    """Yield the names of the correct cases that are scripts of their own."""
    yield from (case["name"] for case in CASES if not case["wrong"] and "of" not in case)


def job_of_corpus(name: str) -> Job:
    """Return a case of the corpus."""
    case = next(case for case in CASES if case["name"] == name)
    return Job(name, code_of(case, Path()), lambda root: check_as_case(case, root))


def job_of_folder(folder: Path) -> Job:
    """Return the job of a folder with job.yaml, and the code beside it."""
    spec = yaml.safe_load((folder / "job.yaml").read_text())

    def check(root: Path) -> tuple[Finding, ...]:
        plan = planning.build_plan(load_mapping({**spec, "code_dir": str(root)}).spec, BUILT_IN)
        return tuple(run.check_code(plan, scan(root)))

    return Job(folder.name, folder / spec["code_dir"], check)


def try_all(source: tuple[str, str]) -> list[Tried]:
    """Make each mistake in a copy of the code of a job that is named by its folder, or in the corpus."""
    where, only = source
    job = job_of_folder(Path(where)) if "/" in where else job_of_corpus(where)
    code, said = _read(job)
    tried = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "code"
        shutil.copytree(job.code, root, symlinks=True)
        for mistake in mistakes(code):
            if only not in mistake.kind:
                continue
            changed = root / mistake.path
            correct = changed.read_text()
            changed.write_text(mistake.text)
            found = [finding for finding in _wrong(job.check(root)) if finding not in said]
            changed.write_text(correct)
            change = "\n".join(difflib.unified_diff(correct.split("\n"), mistake.text.split("\n"), n=0, lineterm=""))
            tried.append(Tried(f"{job.name}/{mistake.path}", mistake.kind, change, tuple(found)))
    return tried


def _read(job: Job) -> tuple[Code, set[str]]:
    """Return the code of a job as the checks see it, and what they say of it as it is."""
    seen: list[Code] = []

    def remember(program: Program, facts: Facts, words: tuple[Word, ...]) -> Code:
        seen.append(look_at(program, facts, words))
        return seen[-1]

    with mock.patch.object(run, "look_at", remember):
        said = _wrong(job.check(job.code))
    return seen[-1], set(said)


def _wrong(found: tuple[Finding, ...]) -> list[str]:
    """Return what is said to be wrong, without places: a change moves lines."""
    return [re.sub(r":\d+", "", f"{one.check} {one.text}") for one in found if one.level in ("error", "warning")]


def main() -> None:
    """Print for each kind of mistakes how many were noticed."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=Path, help="a folder with jobs, in the place of the corpus")
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds of mistakes that hold this text")
    parser.add_argument("--missed", action="store_true", help="show the changes that no check noticed")
    options = parser.parse_args()
    sources = [*jobs_of_corpus()]
    if options.jobs:
        sources = [str(file.parent) for file in sorted(options.jobs.resolve().rglob("job.yaml"))]
    made: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    with Pool(2, maxtasksperchild=8) as pool:
        for tried in pool.imap_unordered(try_all, [(source, options.only) for source in sources]):
            for one in tried:
                made[one.kind] += 1
                noticed[one.kind] += bool(one.found)
                if options.missed and not one.found:
                    print(f"{one.kind}: {one.job}\n{one.change}\n", flush=True)
    for kind in sorted(made, key=lambda kind: noticed[kind] / made[kind]):
        print(f"{noticed[kind]:5} of {made[kind]:4}  {kind}")
    print(f"{noticed.total():5} of {made.total():4}  together")


if __name__ == "__main__":
    main()
