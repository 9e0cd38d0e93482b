"""What the code demands of a job, and this job does not fulfil: the program ends there, whatever its data is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from jobsubmit.check.code import Code, is_count
from jobsubmit.check.order import leading_to
from jobsubmit.check.origins import words_of
from jobsubmit.check.parsers.hf_argument_parser import PARSERS
from jobsubmit.check.program.facts import COUNT_GPUS
from jobsubmit.check.program.gpus import asks_for_gpus, ends_program, leaves_main
from jobsubmit.check.program.module import Module, own_method, spelled, unparsed
from jobsubmit.check.program.operations import is_open
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import is_executed
from jobsubmit.check.start.no_gpus import DIVISIONS, divided_by_gpus
from jobsubmit.common.finding import Finding

_LONGEST_LIST = 60  # letters
_MOST_VALUES = 3
_DEEPEST = 3  # calls above each other
_CHANGE_VALUES = "change the values that the job gives"


def check_conditions(code: Code) -> Iterator[Finding]:
    """Yield an error for the first assertion that surely fails, error that is surely raised, or division by zero.

    It is a warning where that depends on the fields of objects, which something unseen may change.
    """
    strict = replace(code.values, is_strict=True, opened=set())
    sure = next(_failing(replace(code, values=strict)), None)
    trusting = replace(strict, trusts_fields=True, opened=set())
    likely = next(_failing(replace(code, values=trusting)), None) if sure is None else None
    yield from [sure] if sure is not None else [replace(likely, level="warning")] if likely is not None else []


def _failing(code: Code) -> Iterator[Finding]:
    yield from _ended_without_gpus(code)
    yield from _unfulfilled(code)
    yield from _unfulfilled_by_settings(code)
    yield from _divided_by_zero(code)


def _ended_without_gpus(code: Code) -> Iterator[Finding]:
    """Yield an error where the program ends without an error, because it wants GPUs and the nodes have none."""
    for module, node in code.program.of(ast.If) if code.facts.gpus == 0 else ():
        if not code.reached.is_sure(node, module) or not asks_for_gpus(code.values, node.test, module):
            continue
        truth = code.values.truth(node.test, module)
        taken = node.body if truth else node.orelse if truth is False else []
        is_end = ends_program(code.values, taken, module) and not isinstance(taken[-1], ast.Raise)
        is_end = is_end or (leaves_main(code.values, taken, module) and not any(_trainings(code)))
        if is_end and not _trains_before(code, node, module):
            test = unparsed(node.test)
            why = f"`{test}` holds" if truth else f"`{test}` does not hold"
            yield Finding(
                "error",
                "unfulfilled",
                module.where(taken[-1]),
                f"the program ends here, before it trains, because {why}: it asks for GPUs, and {code.facts.no_gpus}",
                "request GPUs in `backend`, or remove the condition for nodes without them",
            )


def _trains_before(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether the program surely trains before a statement, in its scope or in those that lead to it."""
    scope = module.scope_of(node)
    line = getattr(node, "lineno", 0)
    before = [
        (home, call)
        for home, call, _ in code.reached.calls
        if home is module and home.scope_of(call) is scope and call.lineno < line
    ]
    if leading_to(code, before, frozenset(_trainings(code))):
        return True
    function = module.function_of(node)
    callers = code.program.calls_to(function, module) if function is not None and depth < _DEEPEST else ()
    return any(_trains_before(code, call, home, depth + 1) for home, call in callers)


def _trainings(code: Code) -> Iterator[ast.Call]:
    """Yield the calls that surely train: `loss.backward()`, `trainer.fit()`, `Trainer(…).train()`."""
    has_trainer = any(name.endswith("Trainer") for name in code.names)
    trains = {"backward", "fit", *(("train",) if has_trainer else ())}
    for module, call, _ in code.reached.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in trains and code.reached.is_sure(call, module):
            yield call


def _unfulfilled(code: Code) -> Iterator[Finding]:
    for module, node in code.program.of(ast.Assert, ast.Raise):
        if code.reached.is_sure(node, module):
            yield from _judge(code, node, module)


def _unfulfilled_by_settings(code: Code) -> Iterator[Finding]:
    """Yield an error where a dataclass that HfArgumentParser fills in does not accept the arguments."""
    is_whole = all(one.field in code.values.arguments for one in code.line.options if one.settings.get("required"))
    if code.line.kind != "HfArgumentParser" or code.line.gaps or not is_whole:
        return
    parsers = [call for _, call, name in code.reached.calls if name.rpartition(".")[2] in PARSERS]
    given = {spelled(node).rpartition(".")[2] for call in parsers for one in call.args for node in walk(one)}
    own = replace(code, values=replace(code.values, namespaces=code.values.namespaces.with_self()))
    for module, owner in code.program.of(ast.ClassDef):
        maker = own_method(owner, "__post_init__") if owner.name in given else None
        if maker is not None:
            for node in (one for one in walk(maker) if isinstance(one, (ast.Assert, ast.Raise))):
                yield from _judge(own, node, module) if is_executed(node, maker, module, own.values.truth) else ()


def _judge(code: Code, node: ast.Assert | ast.Raise, module: Module) -> Iterator[Finding]:
    """Yield an error for an assertion that surely fails, or an error that is surely raised, with the values in it."""
    test, fails_if = (node.test, False) if isinstance(node, ast.Assert) else _condition_of(node, module)
    if test is None or isinstance(test, ast.Constant) or code.values.truth(test, module) is not fails_if:
        return
    values = _values_in(code, test, module) or (code.facts.no_gpus if _asks_for_gpus(code, test, module) else "")
    if values:
        text = f"the assertion `{unparsed(test)}` fails: {values}"
        if isinstance(node, ast.Raise) and fails_if:
            text = f"the program ends with an error, because `{unparsed(test)}` holds: {values}"
        elif isinstance(node, ast.Raise):
            text = f"the program ends with an error, because `{unparsed(test)}` does not hold: {values}"
        yield Finding("error", "unfulfilled", module.where(node), text, _remedy(code, test, module))


def _asks_for_gpus(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition is about GPUs, and the nodes have none."""
    return code.facts.gpus == 0 and (
        "torch.cuda" in words_of(code, test, module) or asks_for_gpus(code.values, test, module)
    )


def _remedy(code: Code, test: ast.expr, module: Module) -> str:
    if _asks_for_gpus(code, test, module):
        return (
            f"it asks for GPUs, and {code.facts.no_gpus}: request GPUs in `backend`, or remove the condition for nodes "
            "without them"
        )
    if "__version__" in unparsed(test):
        return (
            "name the version that it asks for in the file that `requirements` names, or remove the condition if the "
            "code works with the installed one"
        )
    multiple = _multiple_wanted(code, test, module)
    return f"{_CHANGE_VALUES}: {multiple}" if multiple else _CHANGE_VALUES


def _multiple_wanted(code: Code, test: ast.expr, module: Module) -> str:
    """Return which multiple `steps % world_size == 0` wants."""
    match test:
        case ast.Compare(
            left=ast.BinOp(left=left, op=ast.Mod(), right=right), ops=[ast.Eq()], comparators=[ast.Constant(value=0)]
        ):
            number = code.values.of(right, module)
            return f"{unparsed(left)} must be a multiple of {number}" if is_count(number) else ""
    return ""


def _condition_of(node: ast.Raise, module: Module) -> tuple[ast.expr | None, bool]:
    """Return the condition in one of whose branches an error is raised, at once, and whether it holds there."""
    above = module.parents.get(node)
    if not isinstance(above, ast.If) or "SystemExit" in unparsed(node):
        return None, True
    return above.test, node in above.body


def _divided_by_zero(code: Code) -> Iterator[Finding]:
    if code.processes == 0:
        return  # that is the reason, and an error of its own
    for module, node in code.program.of(ast.BinOp):
        if not isinstance(node.op, DIVISIONS) or isinstance(node.right, ast.Constant):
            continue
        if isinstance(node.op, ast.Mod) and not _is_number(code, node.left, module):
            continue  # it may put a value into a text
        if code.program.name_of(getattr(node.right, "func", node.right), module) in COUNT_GPUS and divided_by_gpus(
            node.right, module
        ):
            continue  # that is among the findings on nodes without GPUs
        value = code.values.of(node.right, module)
        if (
            is_count(value)
            and value == 0
            and _is_executed(code, node, module)
            and not _is_in_no_pass(code, node, module)
        ):
            text = f"`{unparsed(node)}` divides by zero: {unparsed(node.right)} is 0 in this job"
            yield Finding("error", "unfulfilled", module.where(node), text, _CHANGE_VALUES)
            return


def _is_in_no_pass(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a loop over `range(…)` around an expression has no pass."""
    loops = (
        above.iter for above in module.above(node) if isinstance(above, ast.For) and isinstance(above.iter, ast.Call)
    )
    return any(spelled(counts.func) == "range" and code.values.of(counts, module) == [] for counts in loops)


def _is_number(code: Code, node: ast.expr, module: Module) -> bool:
    is_computed = isinstance(node, (ast.BinOp, ast.Call)) or _is_counter(node, module)
    return is_computed or isinstance(code.values.of(node, module), (int, float))


def _is_counter(node: ast.expr, module: Module) -> bool:
    """Return whether a variable counts the passes of a loop: `for i in range(…)`, `for i, batch in enumerate(…)`."""
    for loop in (above for above in module.above(node) if isinstance(above, ast.For) and isinstance(node, ast.Name)):
        counts = spelled(loop.iter.func) if isinstance(loop.iter, ast.Call) else ""
        target = loop.target.elts[0] if counts == "enumerate" and isinstance(loop.target, ast.Tuple) else loop.target
        if counts in ("range", "enumerate") and spelled(target) == spelled(node):
            return True
    return False


def _is_executed(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a statement surely computes an expression: not in a choice, nor in a function inside it."""
    for above in module.above(node):
        if isinstance(above, ast.stmt):
            return not isinstance(above, (ast.FunctionDef, ast.ClassDef)) and code.reached.is_sure(above, module)
        if isinstance(above, (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)) or type(above).__name__.endswith(
            "Comp"
        ):
            return False
    return False


def _values_in(code: Code, test: ast.expr, module: Module) -> str:
    """Return the values of the variables in a condition: `batch is 40, world is 16`."""
    found: dict[str, str] = {}
    for node in walk(test):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            value = code.values.of(node, module)
            is_short = isinstance(value, (list, tuple)) and len(repr(value)) <= _LONGEST_LIST
            if not is_open(value) and (is_short or isinstance(value, (bool, int, float, str, type(None)))):
                found.setdefault(unparsed(node), repr(value))
    return ", ".join(f"{name} is {value}" for name, value in [*found.items()][:_MOST_VALUES])
