"""Figures that each process computes from its own data, and that no collective has averaged since."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from jobsubmit.check.code import LOADERS, Code
from jobsubmit.check.collectives.calls import CollectiveFinder
from jobsubmit.check.origins import is_seed_of_rank, parts_returned
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.module import (
    FUNCTIONS,
    Module,
    class_around,
    is_property,
    returned_values,
    spelled,
    unparsed,
)
from jobsubmit.check.program.tree import children, walk
from jobsubmit.check.program.variables import assigned_to, parameters, variable_of
from jobsubmit.check.wrapper import is_wrapped

_AVERAGES = re.compile(r"averag|reduce|gather|sync|broadcast|all_mean|dist_mean|world")
_COLLECTIVES = ("torch.distributed.", "torch.distributed.nn.", "torch.distributed.nn.functional.")
_LIBRARIES = ("torch.", "numpy.", "math.", "statistics.")
_BUILT_IN = ("float", "int", "sum", "len", "min", "max", "round", "abs")
_COMPUTES = re.compile(r"(?:^|[._])(?:\w*(?:model|net|loss|criterion|metric|accuracy|entropy)\w*)$", re.IGNORECASE)
_IS_RESULT = re.compile(r"loss|accura|\bacc(?!um)|error|metric|score|iou|perplexity|correct", re.IGNORECASE)
_OF_VALUES = frozenset(
    [
        *("item", "mean", "sum", "cpu", "detach", "float", "double", "numpy", "tolist", "to", "cuda", "clone", "view"),
        *("max", "min", "long", "int", "size", "eq", "values", "items", "numel", "nelement"),
        *("flatten", "reshape", "squeeze", "unsqueeze", "transpose", "permute", "contiguous", "argmax", "type_as"),
        *("topk", "sort", "argsort", "cumsum", "clamp", "std", "var", "norm", "abs", "round", "nonzero", "bincount"),
        *("expand", "expand_as", "t", "chunk", "split", "unbind", "masked_fill", "index_select", "half", "bfloat16"),
        *("softmax", "log_softmax", "exp", "log", "sqrt", "pow", "ne", "gt", "lt", "ge", "le", "any", "all", "bool"),
    ]
)
_ADDS = ("append", "extend", "insert", "add", "update")
_IS_FOR_LATER = re.compile(r"infer|predict|demo|visuali")
_MOST = 200


def is_own_figure(finder: CollectiveFinder, node: ast.expr, module: Module) -> bool:
    """Return whether an expression surely is computed from what this process has seen of the data, and only that."""
    has_own_data = _divides_data(finder.code) or _draws_data(finder.code)
    if not has_own_data or any(_comes_from_elsewhere(finder.code, one, module) for one in walk(node)):
        return False
    trace = _Trace(finder)
    return trace.follow(node, module) and trace.has_result


def _comes_from_elsewhere(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a node is a parameter of a function that nothing seen here calls."""
    function = module.function_of(node)
    if function is None or not isinstance(node, ast.Name) or node.id not in parameters(function):
        return False
    return not any(code.reached.of(call, home) for home, call in code.program.calls_to(function, module))


def _divides_data(code: Code) -> bool:
    """Return whether every loader gives each process its own part of the data; one for later use need not."""
    calls = [
        call
        for module, call in code.calls(*LOADERS)
        if not _IS_FOR_LATER.search(getattr(module.function_of(call), "name", ""))
    ]
    samplers = [argument(one, "sampler", 3) or argument(one, "batch_sampler", 4) for one in calls]
    is_divided = all(one is not None or hides_arguments(call) for one, call in zip(samplers, calls, strict=True))
    return any(samplers) and is_divided and "DistributedSampler" in code.names


def _draws_data(code: Code) -> bool:
    """Return whether each rank draws its batches at random, seeded with a number of its own."""
    seeds = [(home, call) for home, call in code.calls("torch.manual_seed") if call.args]
    draws = any(code.calls("torch.randint", "numpy.random.randint"))
    is_own = bool(seeds) and all(is_seed_of_rank(code, call.args[0], home) for home, call in seeds)
    return draws and is_own and not any(code.calls(*LOADERS))


@dataclass
class _Trace:
    """Follow a figure to what it is computed from: `follow` is False where that is not known, or averaged."""

    finder: CollectiveFinder
    seen: set[ast.AST] = field(default_factory=set)
    has_result: bool = False  # of a model, a loss or a measure
    of_others: set[ast.AST] = field(default_factory=set)  # methods that average, and that other objects are asked for

    def follow(self, node: ast.AST, module: Module) -> bool:
        if node in self.seen or len(self.seen) >= _MOST:
            return node in self.seen
        self.seen.add(node)
        match node:
            case ast.Name() | ast.Attribute():
                sources = list(self._sources(node, module))
                self.has_result |= _IS_RESULT.search(unparsed(node)) is not None
                is_known = not self._is_changed(node, module)
                return is_known and all(self.follow(one, home) for home, one in sources)
            case ast.Subscript():
                self.has_result |= _IS_RESULT.search(unparsed(node)) is not None
            case ast.Call():
                return self._call(node, module)
            case ast.Lambda() | ast.Await() | ast.Yield():
                return False
            case ast.ListComp(generators=[one, *_]) | ast.GeneratorExp(generators=[one, *_]):
                if not self.follow(one.iter, module):
                    return False
        return all(self.follow(one, module) for one in children(node) if isinstance(one, ast.expr))

    def _call(self, call: ast.Call, module: Module) -> bool:
        code = self.finder.code
        name = code.program.name_of(call.func, module)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_changed = isinstance(owner, ast.Name) and self._is_changed(owner, module)
        if is_changed or _averages(code, call, module) or self.finder.name_of(call, module):
            return False
        found = code.program.own_method_called(call, module) or code.program.called(call, module)
        if found is not None and isinstance(found[1], FUNCTIONS):
            returned = returned_values(found[1])
            return bool(returned) and all(self.follow(one, found[0]) for one in returned)
        if name in _BUILT_IN or name.startswith(_LIBRARIES):
            return name == "len" or all(self.follow(one, module) for one in call.args)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _OF_VALUES:
            return self.follow(call.func.value, module)
        if _COMPUTES.search(spelled(call.func)) or is_wrapped(code, call.func, module) is not None:
            self.has_result = True
            return True
        return False

    def _sources(self, node: ast.Name | ast.Attribute, module: Module) -> Iterator[tuple[Module, ast.AST]]:
        """Yield what a variable, a parameter, a field or a property is set to; nothing of the items of a loop."""
        program = self.finder.code.program
        if isinstance(node, ast.Attribute):
            owner = class_around(node, module) if spelled(node.value) == "self" else None
            places = program.attribute_stores.get(node.attr, ())
            places = [one for one in places if not _is_of_other_variable(node, module, *one)]
            if owner is None:
                self.of_others |= {one for home, place in places for one in self._averaging_others(node, place, home)}
            for home, place in places:
                is_own = owner is None or class_around(place, home) is owner
                is_own = is_own and home.function_of(place) not in self.of_others
                if is_own and self.finder.code.reached.of(place, home):
                    yield from self._assigned(place, home)
            for home, _, method in program.methods.get(node.attr, ()):
                if is_property(method):
                    yield from ((home, value) for value in returned_values(method))
            return
        scope = module.scope_of(node)
        stores = module.own_stores.get((scope, node.id), ())
        for store in stores:
            yield from self._assigned(store, module)
        yield from ((module, given) for given in _added_to(node.id, scope, module))
        if isinstance(scope, FUNCTIONS) and node.id in parameters(scope) and not stores:
            for home, call in program.calls_to(scope, module):
                if (given := given_for(call, scope, node.id)) is not None:
                    yield home, given

    def _averaging_others(self, node: ast.Attribute, place: ast.AST, home: Module) -> Iterator[ast.AST]:
        """Yield the method that a place is in if it averages, and is called for other objects only."""
        method, name = home.function_of(place), spelled(node.value).rpartition(".")[2]
        calls = self.finder.code.program.attribute_loads.get(method.name, ()) if method is not None else ()
        owners = {spelled(one.value).rpartition(".")[2] for one in calls}
        if method is None or not name or not owners or name in owners or "" in owners:
            return
        if any(isinstance(one, ast.Call) and self.finder.may_combine(one, home) for one in walk(method)):
            yield method

    def _assigned(self, store: ast.expr, module: Module) -> Iterator[tuple[Module, ast.AST]]:
        parent = module.parents.get(store)
        if isinstance(parent, ast.AugAssign):
            yield module, parent.value
        elif (value := assigned_to(store, module)) is not None:
            yield module, value
        elif parts := parts_returned(self.finder.code, store, module):
            yield from parts
        elif isinstance(parent, (ast.Tuple, ast.List)):
            statement = module.parents.get(parent)
            if isinstance(statement, ast.Assign):
                yield module, statement.value

    def _is_changed(self, node: ast.Name | ast.Attribute, module: Module) -> bool:
        """Return whether a collective gets a variable in the same function, or a method of the object has one."""
        text = spelled(_object_of(node))
        scope = module.function_of(node)
        for call in _calls_in(scope, module) if text else ():
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            is_given = any(text == spelled(one) for item in given for one in walk(item) if spelled(one))
            name = self.finder.code.program.name_of(call.func, module)
            is_collective = name.startswith(_COLLECTIVES) or _averages(self.finder.code, call, module)
            is_used = isinstance(module.parents.get(call), ast.Expr)  # else it gives the average to something else
            if is_given and is_collective and is_used:
                return True
            owner = spelled(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            is_own = owner not in ("", "self") and (text == owner or text.startswith(f"{owner}."))
            if is_own and (is_collective or self.finder.may_combine(call, module)):
                return True
        return False


def _added_to(name: str, scope: ast.AST, module: Module) -> Iterator[ast.expr]:
    """Yield what a function adds to what a variable holds: `history["loss"].append(loss)`."""
    for call in _calls_in(scope, module):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _ADDS:
            if spelled(_object_of(call.func.value)) == name:
                yield from call.args


def _is_of_other_variable(node: ast.Attribute, module: Module, home: Module, place: ast.Attribute) -> bool:
    """Return whether a field is set of another variable that a function has made: `accs.avg`, and not `losses.avg`."""
    if not isinstance(node.value, ast.Name) or not isinstance(place.value, ast.Name):
        return False
    own, other = variable_of(node.value, module), variable_of(place.value, home)
    are_made = own in module.own_stores and other in home.own_stores
    return own != other and are_made and isinstance(own[0], FUNCTIONS) and isinstance(other[0], FUNCTIONS)


def _object_of(node: ast.expr) -> ast.expr:
    """Return what a field is read from as far as it has a name: `self.meters` of `self.meters["loss"].average`."""
    while not spelled(node) and isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node


def _averages(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call averages, by its name."""
    whole = code.program.name_of(call.func, module)
    name = spelled(call.func).rpartition(".")[2] or whole
    return _AVERAGES.search(name.lower()) is not None and not whole.startswith(("numpy.", "statistics."))


def _calls_in(scope: ast.AST | None, module: Module) -> Iterator[ast.Call]:
    if isinstance(scope, FUNCTIONS):
        yield from (one for one in walk(scope) if isinstance(one, ast.Call))
    else:
        yield from (one for one in module.of(ast.Call) if module.function_of(one) is None)
