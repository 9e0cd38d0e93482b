"""Results of a validation that each process computes on its own part of the data."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Sequence

from jobsubmit.check.code import LOADERS, Code
from jobsubmit.check.collectives.calls import BARRIERS, CollectiveFinder, finder_of
from jobsubmit.check.collectives.rank_conditions import is_guarded_by_rank
from jobsubmit.check.origins import keywords_of, last_value, origins
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import (
    FUNCTIONS,
    Function,
    Module,
    class_around,
    is_of_self,
    own_method,
    returned_values,
    spelled,
    unparsed,
)
from jobsubmit.check.program.objects import made
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

# Anything that may add up the parts of all processes.
_ADDS_UP = frozenset(
    [
        *("all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object", "reduce_tensor"),
        *("all_gather_into_tensor", "gather_for_metrics", "reduce_dict", "synchronize_between_processes"),
        *("torchmetrics", "sync_dist", "evaluate", "DistributedEvalSampler", "all_reduce_mean", "pad_across_processes"),
    ]
)

_DEEPEST = 2  # functions that call each other
_OF_TIME = re.compile(r"time|elapsed|latency|duration|memory")
_EVALUATES = re.compile(r"_*(?:(?:run|do)_)?(?:val|valid|validate|validation|evaluate|evaluation|eval|test)(?:_\w+)?")
_FILLS = re.compile(r"(?:update|add|append|set|load|sync|reduce|reset)(?:_|$)")  # methods that change a meter
_OF_PURPOSE = re.compile(r"train|split|phase|mode|subset")
_EVALUATOR = re.compile(r"Evaluat|Validat|Tester")


def check_evaluation(code: Code) -> Iterator[Finding]:
    """Yield a warning where a count of one process is divided by the number of all samples."""
    if not (code.leaves_data_to_program and code.is_parallel):
        return
    yield from _not_combined(code)
    finder = finder_of(code)
    for module, node in code.program.of(ast.BinOp):
        if not isinstance(node.op, ast.Div) or not code.reached.of(node, module):
            continue
        loader = _counted(code, node.right, module)
        if loader is not None and _is_divided(code, loader, module) and not _is_combined(finder, node, module):
            yield Finding(
                "warning",
                "part-as-whole",
                module.where(node),
                f"each process has seen its own part of the data only, and divides by the size of all of it "
                f"({unparsed(node.right)})",
                "add up the counts of all processes with dist.all_reduce, or divide by the number of samples seen",
            )
            return


def _is_combined(finder: CollectiveFinder, node: ast.BinOp, module: Module) -> bool:
    """Return whether a result may be combined: where it is computed, by what gets it, or by another method."""
    if "torchmetrics" in finder.code.names_in_use:
        return True
    function, owner = module.function_of(node), class_around(node, module)
    is_kept = any(is_of_self(part) for part in walk(node.left))
    if _combines(finder, walk(owner if is_kept and owner is not None else module.scope_of(node)), module):
        return True
    callers = finder.code.program.calls_to(function, module) if function is not None else ()
    return any(_combines(finder, _uses(call, home), home) for home, call in callers)


def _not_combined(code: Code) -> Iterator[Finding]:
    """Yield a warning for a function that tests on a part of the data in each process, and whose results stay apart."""
    if code.program.imports("torchmetrics"):
        return
    finder = finder_of(code)
    for module, call, _ in code.reached.calls:
        found = _validation(code, call, module)
        if found is None:
            continue
        home, function, name = found
        if (alone := _left_alone(finder, function, home)) is not None:
            yield _not_this_one(name, alone, home)
            return
        looped = [(module, one) for one in _looped(call, function)]
        looped += [(home, one) for one in (*_looped_fields(function), *_looped_variables(function))]
        tested = ((at, loader) for at, loader in looped if "train" not in unparsed(loader).lower())
        if not any(_is_divided(code, loader, at) for at, loader in tested):
            continue
        if (alone := _meter_left_alone(finder, function, home)) is not None:
            yield _not_this_one(name, alone, home)
            return
        if (meter := _returned_as_it_is(finder, function, home)) is not None:
            yield Finding(
                "warning",
                "part-as-whole",
                home.where(meter),
                f"{name}() returns {unparsed(meter)}, which holds the figures of one process only: what is combined is "
                "not put into it",
                "put the combined figures into it, or return them",
            )
            return
        is_combined = _combines(finder, walk(function), home) or _combines(finder, _uses(call, module), module)
        is_combined = is_combined or _shares_files(function)
        if returned_values(function) and not is_combined and not _is_for_one(code, call, module):
            yield Finding(
                "warning",
                "part-as-whole",
                module.where(call),
                f"each process tests its own part of the data, and nothing combines the results of {name}()",
                "add up the counts of all processes with dist.all_reduce, or test without a DistributedSampler",
            )
            return


def _shares_files(function: Function) -> bool:
    """Return whether a function waits for all processes, and loads files: those that each of them has written."""
    names = {spelled(node.func).rpartition(".")[2] for node in walk(function) if isinstance(node, ast.Call)}
    return not names.isdisjoint(BARRIERS) and any(map(_is_loading, walk(function)))


def _is_for_one(code: Code, call: ast.Call, module: Module, depth: int = 0) -> bool:
    """Return whether the rank decides whether a call is made, or every call that leads to it."""
    if is_guarded_by_rank(code, call, module) or code.is_of_one(call):
        return True
    function = module.function_of(call)
    callers = code.program.calls_to(function, module) if function is not None and depth < _DEEPEST else ()
    return bool(callers) and all(_is_for_one(code, one, home, depth + 1) for home, one in callers)


def _not_this_one(name: str, alone: ast.Call, home: Module) -> Finding:
    text = f"{name}() combines other figures of all processes, but not {unparsed(alone.args[0])}"
    hint = "combine it as well, before the meter gets it"
    return Finding("warning", "part-as-whole", home.where(alone), text, hint)


def _validation(code: Code, call: ast.Call, module: Module) -> tuple[Module, Function, str] | None:
    """Return the function that a call enters, with its name, if it is a validation or an object that makes one."""
    found = code.program.called(call, module)
    if found is not None and isinstance(found[1], FUNCTIONS):
        is_of_model = found[1].name == "eval" and not call.args and isinstance(module.parents.get(call), ast.Expr)
        if is_of_model and isinstance(call.func, ast.Attribute) and made(code.program, call.func.value, module) is None:
            return None
        return (found[0], found[1], found[1].name) if _EVALUATES.fullmatch(found[1].name) else None
    evaluator = None if found is not None else made(code.program, call.func, module)
    if evaluator is None or _EVALUATOR.search(evaluator.owner.name) is None:
        return None
    method = own_method(evaluator.owner, "__call__")
    return None if method is None else (evaluator.home, method, spelled(call.func))


def _left_alone(finder: CollectiveFinder, function: Function, home: Module) -> ast.Call | None:
    """Return the call that gives a meter, which the function returns, a figure of one process; others are combined."""
    combined = _combined_in(finder, function, home)
    returned = {spelled(node).partition(".")[0] for value in _returned(function) for node in walk(value)}
    updates = [
        (node, {one.id for one in walk(node.args[0]) if isinstance(one, ast.Name)})
        for node in walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "update"
        and node.args
        and spelled(node.func.value) in returned
        and not _OF_TIME.search(unparsed(node))
    ]
    together = [node for node, names in updates if names & combined]
    alone = [node for node, names in updates if names and not names & combined]
    alone = [node for node in alone if not any(_is_instead(node, other, home) for other in together)]
    if len(alone) == len(updates):
        return next(_averages_left_alone(finder, function, home, alone, combined), None)
    return alone[0] if alone else None


def _is_instead(one: ast.Call, other: ast.Call, module: Module) -> bool:
    """Return whether two updates of one meter are in the two branches of a condition."""
    return spelled(one.func) == spelled(other.func) and module.excludes(one, other)


def _meter_left_alone(finder: CollectiveFinder, function: Function, home: Module) -> ast.Call | None:
    """Return the same for meters from which results are computed, where others are combined in place.

    `dist.all_reduce(loss)`, but not the counts of which the accuracy is made that the function returns.
    """
    nodes = [node for node in walk(function) if isinstance(node, ast.Call)]
    sums = [node for node in nodes if _combines(finder, [node], home)]
    inside = [one for _, _, one in finder.code.program.methods.get("update", ())]
    if not sums or any(_is_adding_up(node) for one in inside for node in walk(one)):
        return None
    given = _names_in(*(one for node in sums for one in (*node.args, *node.keywords)))
    given |= {spelled(node.func).partition(".")[0] for node in sums if isinstance(node.func, ast.Attribute)}
    loops = (node for node in walk(function) if isinstance(node, ast.For))
    given |= {name for loop in loops if _names_in(loop.target) & given for name in _names_in(loop.iter)}
    combined = _leading_from(function, given | _combined_in(finder, function, home))
    sources, sent = _leading_to(function, _names_in(*returned_values(function))), _leading_to(function, given)
    updates = [
        node
        for node in nodes
        if isinstance(node.func, ast.Attribute)
        and (node.func.attr == "update" and node.args and isinstance(node.func.value, ast.Name))
        and (node.func.value.id in sources and not _OF_TIME.search(unparsed(node)))
    ]
    alone = [node for node in updates if not _names_in(*node.args) & combined and not _names_in(node.func) & sent]
    return alone[0] if alone and len(alone) < len(updates) else None


def _names_in(*nodes: ast.AST) -> set[str]:
    return {one.id for node in nodes for one in walk(node) if isinstance(one, ast.Name)}


def _leading_to(function: Function, names: set[str]) -> set[str]:
    """Return some variables of a function, and those from which these are computed."""
    return _linked(names, [*_assigned_names(function)])


def _leading_from(function: Function, names: set[str]) -> set[str]:
    """Return some variables of a function, and those that are computed from them."""
    return _linked(names, [(sources, targets) for targets, sources in _assigned_names(function)])


def _assigned_names(function: Function) -> Iterator[tuple[set[str], set[str]]]:
    """Yield the variables that each assignment of a function sets, with those that it reads."""
    for node in walk(function):
        if isinstance(node, ast.Assign):
            yield _names_in(*node.targets), _names_in(node.value)


def _linked(names: set[str], links: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """Return some names, and all to which links lead from them."""
    found, before = names, set[str]()
    while found != before:
        before = found
        found = found.union(*(ends for begins, ends in links if begins & found))
    return found


def _combined_in(finder: CollectiveFinder, function: Function, home: Module) -> set[str]:
    """Return the variables of a function that are set to combined figures, also those of loops over such."""
    found = set[str]()
    for node in walk(function):
        if isinstance(node, ast.Assign) and _combines(finder, walk(node.value), home):
            targets = (part for target in node.targets for part in getattr(target, "elts", (target,)))
            found |= {part.id for part in targets if isinstance(part, ast.Name)}
    loops = (node for node in walk(function) if isinstance(node, ast.For))
    return found.union(*(_names_in(loop.target) for loop in loops if _names_in(loop.iter) & found))


def _returned_as_it_is(finder: CollectiveFinder, function: Function, home: Module) -> ast.Name | None:
    """Return the meter that a function returns with the figures of one process, and combines them for its log only."""
    returned = [one for one in returned_values(function) if not isinstance(one, ast.Constant)]
    meter = returned[0] if len(returned) == 1 else None
    if not isinstance(meter, ast.Name) or _is_mapping(meter, function):
        return None
    nodes = [node for node in walk(function) if isinstance(node, ast.Call)]
    named = [(node, *spelled(node.func).rpartition(".")[::2]) for node in nodes]
    calls = [(node, method) for node, owner, method in named if owner == meter.id]
    in_place = {one.id for node in nodes if _is_adding_up(node) for one in node.args if isinstance(one, ast.Name)}
    combined = _combined_in(finder, function, home) | in_place
    filled = [node for node, method in calls if _FILLS.match(method)]
    inside = [one for _, method in calls for _, _, one in finder.code.program.methods.get(method, ())]
    adds_up = any(_is_adding_up(node) for one in inside for node in walk(one))
    adds_up |= any(_adds_up_inside(finder.code, node, home) for node, _ in calls)
    if not combined or not filled or adds_up:
        return None
    is_put_in = any(_names_one(node, combined) for node in filled)
    is_put_in |= any(_names_one(node, {meter.id}) and _names_one(node, combined) for node in _stored_in(function))
    return None if is_put_in or len(inside) < len({method for _, method in calls}) else meter


def _is_mapping(name: ast.Name, function: Function) -> bool:
    """Return whether a variable is set to a mapping that is put together here, of figures that are known by then."""
    stores = (node for node in walk(function) if isinstance(node, ast.Assign))
    return any(
        isinstance(node.value, (ast.Dict, ast.DictComp)) and spelled(node.targets[0]) == name.id for node in stores
    )


def _stored_in(function: Function) -> Iterator[ast.AST]:
    """Yield the assignments to fields and entries of objects: `meter.total = …`."""
    for node in walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):
            yield node


def _averages_left_alone(
    finder: CollectiveFinder, function: Function, home: Module, updates: Sequence[ast.Call], combined: Container[str]
) -> Iterator[ast.Call]:
    """Yield those of some updates whose meters' averages are returned as they are, beside one that is combined."""
    meters = [owner for _, owner, _ in finder.code.program.methods.get("update", ())]
    if any(_is_adding_up(node) for meter in meters for node in walk(meter)):
        return  # they combine what they hold
    beside = [node for value in _returned(function) for node in walk(value)]
    if not any(isinstance(node, ast.Name) and node.id in combined for node in beside):
        return
    given = {
        spelled(part)
        for node in walk(function)
        if isinstance(node, ast.Call) and _combines(finder, [node], home)
        for part in walk(node)
    }
    as_they_are = {spelled(node.value) for node in beside if isinstance(node, ast.Attribute)} - given
    for node in updates:
        if isinstance(node.func, ast.Attribute) and spelled(node.func.value) in as_they_are:
            yield node


def _returned(function: Function) -> Iterator[ast.expr]:
    """Yield what a function returns, and what the variables were set to that it returns."""
    for value in returned_values(function):
        yield value
        names = {node.id for node in walk(value) if isinstance(node, ast.Name)}
        for node in walk(function):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names:
                yield node.value


def _looped(call: ast.Call, function: Function) -> Iterator[ast.expr]:
    """Yield what a call gives for the parameters that its function goes through in a loop."""
    loops = [node.iter for node in walk(function) if isinstance(node, ast.For)]
    names = {node.id for loop in loops for node in walk(loop) if isinstance(node, ast.Name)}
    for name in sorted(names & parameters(function)):
        if (given := given_for(call, function, name)) is not None:
            yield given


def _looped_fields(function: Function) -> Iterator[ast.expr]:
    """Yield the fields of its object that a method goes through in a loop."""
    for loop in (node for node in walk(function) if isinstance(node, ast.For)):
        yield from (one for one in walk(loop.iter) if isinstance(one, ast.Attribute) and spelled(one.value) == "self")


def _looped_variables(function: Function) -> Iterator[ast.Name]:
    """Yield the variables that a function sets itself and goes through in a loop."""
    stored = {one.id for one in walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for loop in (node for node in walk(function) if isinstance(node, ast.For)):
        names = (one for one in walk(loop.iter) if isinstance(one, ast.Name))
        yield from (one for one in names if one.id in stored - parameters(function))


def _uses(call: ast.Call, module: Module) -> Iterator[ast.Call]:
    """Yield the calls that get what a call has returned, and the calls around it."""
    yield from (above for above in module.above(call) if isinstance(above, ast.Call))
    statement = module.parents.get(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {node.id for target in targets for node in walk(target) if isinstance(node, ast.Name)}
    nodes = list(walk(module.scope_of(call)))
    for node in nodes:  # in their order: what is computed from the results counts as well
        if isinstance(node, ast.Assign) and node.lineno > call.lineno and _names_one(node.value, names):
            names |= {one.id for target in node.targets for one in walk(target) if isinstance(one, ast.Name)}
    yield from (node for node in nodes if isinstance(node, ast.Call) and _names_one(node, names))


def _names_one(node: ast.AST, names: Container[str]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in names for one in walk(node))


def _combines(finder: CollectiveFinder, nodes: Iterable[ast.AST], module: Module) -> bool:
    """Return whether one of some nodes may combine results of all processes, itself or by a function that it calls."""
    for node in nodes:
        if isinstance(node, ast.Name) and _hands_on(finder.code, node, module):
            return True
        if not isinstance(node, ast.Call):
            continue
        first = next(finder.collectives([ast.Expr(node)], module), None)
        if _is_adding_up(node) or (first is not None and first.name not in BARRIERS):
            return True
        is_of_groups = finder.may_combine(node, module)  # those of each node, and then their first ranks
        if (first is not None or is_of_groups) and _adds_up_inside(finder.code, node, module):
            return True
    return False


def _adds_up_inside(code: Code, call: ast.Call, module: Module, depth: int = 0) -> bool:
    """Return whether what waits for all then adds up, or reads what each has written, itself or in what it calls."""
    for home, function in _entered(code, call, module):
        calls = [one for one in walk(function) if isinstance(one, ast.Call)]
        if any(_is_adding_up(one) or _is_loading(one) for one in calls):
            return True
        if depth < _DEEPEST and any(_adds_up_inside(code, one, home, depth + 1) for one in calls):
            return True
    return False


def _hands_on(code: Code, name: ast.Name, module: Module) -> bool:
    """Return whether a name is that of a function which adds up: `map(reduce_meter, meters)`."""
    found = code.program.definition(code.program.name_of(name, module))
    is_function = found is not None and isinstance(found[1], FUNCTIONS)
    return found is not None and is_function and any(map(_is_adding_up, walk(found[1])))


def _entered(code: Code, call: ast.Call, module: Module) -> list[tuple[Module, ast.AST]]:
    """Return the function that a call enters, or all methods of its name; of a class, what makes its objects."""
    if (found := code.program.called(call, module)) is not None:
        maker = own_method(found[1], "__init__") if isinstance(found[1], ast.ClassDef) else found[1]
        return [] if maker is None else [(found[0], maker)]
    methods = code.program.methods.get(call.func.attr, ()) if isinstance(call.func, ast.Attribute) else ()
    return [(home, method) for home, _, method in methods]


def _is_adding_up(node: ast.AST) -> bool:
    name = spelled(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return name in _ADDS_UP - {"evaluate"}


def _is_loading(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and spelled(node.func).rpartition(".")[2] in ("load", "loads", "read_csv")


def _counted(code: Code, node: ast.expr, module: Module) -> ast.expr | None:
    """Return the loader all of whose samples an expression counts: `len(loader.dataset)`."""
    for _, part in origins(code, node, module) if isinstance(node, ast.Name) else ((module, node),):
        match part:
            case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(attr="dataset", value=loader)]):
                return loader
    return None


def _is_divided(code: Code, loader: ast.expr, module: Module) -> bool:
    """Return whether every loader that a variable may hold gives each process its own part."""
    own = last_value(loader, module) if isinstance(loader, ast.Name) else None
    is_loader = isinstance(own, ast.Call) and code.program.name_of(own.func, module) in LOADERS
    parts = [(module, own)] if own is not None and is_loader else origins(code, loader, module)
    made = [found for home, part in parts for found in _loaders(code, part, home)]
    return bool(made) and all(_has_sampler(code, call, home) for home, call in made)


def _loaders(code: Code, part: ast.AST, module: Module, depth: int = 0) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the loaders that an expression makes, those that functions of the program return included."""
    if not isinstance(part, ast.Call) or depth > _DEEPEST:
        return
    name = code.program.name_of(part.func, module)
    if name in LOADERS and code.reached.of(part, module):
        yield module, part
    found = code.program.definition(name)
    if found is not None and isinstance(found[1], FUNCTIONS):
        home, function = found
        for inner in (node for node in walk(function) if isinstance(node, ast.Call)):
            if code.program.name_of(inner.func, home) in LOADERS and code.reached.of(inner, home):
                yield home, inner
        for value in returned_values(function):
            yield from _loaders(code, value, home, depth + 1)


def _has_sampler(code: Code, call: ast.Call, module: Module) -> bool:
    place, sampler = keywords_of(code, call, module).get("sampler", (module, None))
    if sampler is None:
        return False
    if isinstance(sampler, ast.IfExp) and _OF_PURPOSE.search(unparsed(sampler.test)):
        return False  # `sampler if train else None`: the data of a validation may be whole
    parts = [(home, one) for home, part in origins(code, sampler, place) for one in _choices(part)]
    names = [
        code.program.name_of(part.func, home)
        for home, part in parts
        if isinstance(part, ast.Call) and code.reached.of(part, home)
    ]
    made = [name for name in names if name.endswith("Sampler")]
    return bool(made) and all(_divides(code, name) for name in made)


def _divides(code: Code, name: str) -> bool:
    """Return whether a sampler gives each process its own part: that of torch, or one that knows how many there are."""
    found = code.program.definition(name)
    maker = own_method(found[1], "__init__") if found is not None and isinstance(found[1], ast.ClassDef) else None
    return name.endswith("DistributedSampler") or (maker is not None and "num_replicas" in parameters(maker))


def _choices(node: ast.AST) -> list[ast.AST]:
    """Return what an expression may be: `a if condition else b` is one of two."""
    return [*_choices(node.body), *_choices(node.orelse)] if isinstance(node, ast.IfExp) else [node]
