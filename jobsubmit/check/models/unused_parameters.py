"""Layers that no step of a model uses, or not each: DistributedDataParallel waits for gradients that never come."""

from __future__ import annotations

import ast
import builtins
import itertools
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.collectives.branches import after
from jobsubmit.check.models.unused_pooler import trains_whole_encoders, unused_poolers
from jobsubmit.check.origins import last_value, origins
from jobsubmit.check.program.calls import argument, default_of
from jobsubmit.check.program.module import Module, class_around, is_of_self, own_method, spelled, unparsed
from jobsubmit.check.program.objects import is_torch_module
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.registries import names_of
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import is_executed, parameters
from jobsubmit.check.wrapper import names_of_wrappers
from jobsubmit.common.finding import Finding

_LAYERS = frozenset(
    [
        *("Linear", "Bilinear", "Embedding", "EmbeddingBag", "Conv1d", "Conv2d", "Conv3d", "LSTM", "GRU", "RNN"),
        *("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "LayerNorm", "BatchNorm1d", "BatchNorm2d"),
        *("GroupNorm", "MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer", "Parameter"),
    ]
)
_LISTS = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
_DEEPEST = 3  # modules inside each other
_ALLOWS = ("find_unused_parameters", "static_graph", "_set_static_graph")
_RANDOM = ("torch.rand", "random.random", "numpy.random.rand", "numpy.random.random", "numpy.random.uniform")
_BY_NAME = ("_modules", "children", "named_children", "modules_to_save")


def check_unused_parameters(code: Code) -> Iterator[Finding]:
    """Yield a warning for a layer of a wrapped model that no code reads."""
    if not code.wraps_models or code.world_size == 1 or _are_allowed(code):
        return
    yield from itertools.islice(itertools.chain(_skipped(code), _chosen(code), _last_of_list(code), _poolers(code)), 1)
    if code.names & set(_BY_NAME) or code.program.unread:
        return
    for module, owner in code.program.of(ast.ClassDef):
        if is_torch_module(code.program, owner, module) and _is_made(code, owner, module):
            for layer in _layers(code, owner, module):
                if layer.attr not in code.texts and not _is_read(code, layer.attr, owner):
                    yield Finding(
                        "warning",
                        "unused-parameters",
                        module.where(layer),
                        f"no code of this job uses self.{layer.attr} of {owner.name}: DistributedDataParallel waits "
                        "for its gradients, and fails in the second step",
                        "remove it, or pass find_unused_parameters=True to DistributedDataParallel",
                    )
                    return


def _are_allowed(code: Code) -> bool:
    """Return whether the code may have DistributedDataParallel expect parameters that are not used."""
    keywords = [(module, keyword) for module, keyword in code.program.of(ast.keyword) if keyword.arg in _ALLOWS]
    if any(code.values.of(keyword.value, module) is not False for module, keyword in keywords):
        return True
    names = set(_ALLOWS) if not keywords else {"_set_static_graph"}
    return bool(names & code.names)


def _is_read(code: Code, name: str, owner: ast.ClassDef) -> bool:
    """Return whether anything reads a field of a class: it itself, one based on it, or code that has an object."""
    family = {owner.name}
    bases = [
        (one.name, {spelled(base).rpartition(".")[2] for base in one.bases}) for _, one in code.program.of(ast.ClassDef)
    ]
    while more := {child for child, above in bases if above & family} - family:
        family |= more
    for module, node in code.program.of(ast.Attribute):
        if node.attr != name or not isinstance(node.ctx, ast.Load):
            continue
        reader = class_around(node, module) if spelled(node.value) == "self" else None
        if reader is None and code.reached.of(node, module):
            return True
        if reader is not None and reader.name in family:
            scope = module.scope_of(node)
            is_never = is_executed(node, scope, module, code.values.truth) is False
            if not is_never and not _is_for_another_input(code, node, owner, module):
                return True
    return any(_may_name(code, call.args[1], name, module) for module, call in code.calls("getattr") if call.args[1:])


def _is_for_another_input(code: Code, node: ast.AST, owner: ast.ClassDef, module: Module) -> bool:
    """Return whether forward() comes to a node only with an input that no call gives: `if pitch is not None:`."""
    method, inner = module.function_of(node), node
    if not isinstance(method, ast.FunctionDef) or method.name != "forward":
        return False
    for above in takewhile(lambda one: one is not method, module.above(node)):
        test = above.test if isinstance(above, ast.If) and inner in above.body else None
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
            test = test.left
        if isinstance(test, ast.Name) and test.id in parameters(method) and not _is_given(code, test.id, method, owner):
            return True
        inner = above
    return False


def _is_given(code: Code, name: str, method: ast.FunctionDef, owner: ast.ClassDef) -> bool:
    """Return whether a call may give a model an input that is None by default."""
    default = default_of(method, name)
    if not isinstance(default, ast.Constant) or default.value is not None:
        return True
    names = [one.arg for one in method.args.args]
    place = names.index(name) - 1 if name in names else len(names)
    held = _holders(code, owner)
    for home, call, _ in code.reached.calls if held else ():
        is_of_model = _may_be_of_model(code, call, home, held)
        if any(keyword.arg == name or (keyword.arg is None and is_of_model) for keyword in call.keywords):
            return True
        if is_of_model and (len(call.args) > place or any(isinstance(one, ast.Starred) for one in call.args)):
            return True
    return not held


def _may_be_of_model(code: Code, call: ast.Call, module: Module, held: set[str]) -> bool:
    """Return whether a call may be that of a model in one of some variables or fields, or hands such a model on."""
    last = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = {spelled(one).rpartition(".")[2] for one in call.args}
    if last == "forward" or last in held | names_of_wrappers(code) or not given.isdisjoint(held):
        return True
    is_of_self = isinstance(call.func, ast.Attribute) and spelled(call.func.value) == "self"
    is_unknown = code.program.called(call, module) is None and not hasattr(builtins, last)
    return (
        is_unknown
        and (isinstance(call.func, ast.Name) or is_of_self)
        and not code.program.is_of_library(call.func, module)
    )


def _holders(code: Code, owner: ast.ClassDef) -> set[str]:
    """Return the variables and fields that an object of a class is assigned to when it is made."""
    found: set[str] = set()
    for module, node in code.program.of(ast.Assign):
        calls = [one for one in walk(node.value) if isinstance(one, ast.Call)]
        called = (code.program.called(one, module) for one in calls)
        if any(one is not None and one[1] is owner for one in called):
            found |= {getattr(target, "attr", getattr(target, "id", "")) for target in node.targets}
    return found - {""}


def _may_name(code: Code, node: ast.expr, name: str, module: Module) -> bool:
    """Return whether a text that is partly computed may be a name: `f"layer{number}"`."""
    value = code.values.of(node, module)
    if value is not UNKNOWN or not isinstance(node, ast.JoinedStr):
        return value in (UNKNOWN, name)
    parts = (re.escape(str(one.value)) if isinstance(one, ast.Constant) else ".+" for one in node.values)
    return re.fullmatch("".join(parts), name) is not None


def _skipped(code: Code) -> Iterator[Finding]:
    """Yield a warning where a model leaves out a layer at random."""
    for module, node in code.program.of(ast.If):
        method = module.function_of(node)
        owner = module.parents.get(method) if method is not None else None
        if not isinstance(owner, ast.ClassDef) or not is_torch_module(code.program, owner, module) or node.orelse:
            continue
        if not _is_made(code, owner, module):
            continue
        is_left = len(node.body) == 1 and isinstance(node.body[0], ast.Continue)
        used = after(node, module) if is_left else node.body
        is_otherwise_used = isinstance(node.body[-1], ast.Continue) and not is_left
        if is_otherwise_used and any(_calls_layer(one, module) for one in after(node, module)):
            continue
        if _is_random(code, node.test, module) and any(_calls_layer(one, module) for one in used):
            text = (
                f"a step in which `{unparsed(node.test)}` holds leaves out a layer: DistributedDataParallel waits "
                "for its gradients, and fails in the next step"
                if is_left
                else f"a step in which `{unparsed(node.test)}` does not hold leaves out a layer: "
                "DistributedDataParallel waits for its gradients, and fails in the next step"
            )
            yield Finding(
                "warning",
                "unused-parameters",
                module.where(node),
                text,
                "pass find_unused_parameters=True to DistributedDataParallel",
            )
            return


def _chosen(code: Code) -> Iterator[Finding]:
    """Yield a warning where each step uses one layer of a list, which an argument of forward() chooses."""
    for module, owner in code.program.of(ast.ClassDef):
        if not is_torch_module(code.program, owner, module) or not _is_made(code, owner, module):
            continue
        lists = _lists_of_layers(code, owner, module)
        for method in (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "forward"):
            uses = [one for one in walk(owner) if isinstance(one, ast.Attribute) and one.attr in lists]
            for use in (one for one in walk(method) if one in uses):
                above = module.parents.get(use)
                index = above.slice if isinstance(above, ast.Subscript) and above.value is use else None
                is_only = sum(one.attr == use.attr and isinstance(one.ctx, ast.Load) for one in uses) == 1
                if is_only and isinstance(index, ast.Name) and index.id in parameters(method):
                    yield Finding(
                        "warning",
                        "unused-parameters",
                        module.where(use),
                        f"each step uses one layer of {unparsed(use)}: DistributedDataParallel waits for the "
                        "gradients of the others, and fails in the next step",
                        "pass find_unused_parameters=True to DistributedDataParallel",
                    )


def _last_of_list(code: Code) -> Iterator[Finding]:
    """Yield a warning where each layer of a list goes with one of another list, but for the last one.

    `for i, conv in enumerate(self.convs[:-1]): x = self.norms[i](conv(x))`, with as many norms as convs.
    """
    for module, owner in code.program.of(ast.ClassDef):
        if not is_torch_module(code.program, owner, module) or not _is_made(code, owner, module):
            continue
        lists = _lists_of_layers(code, owner, module)
        added = [found for one in walk(owner) if (found := _adds(one, lists, module)) is not None]
        for name in sorted(lists):
            loads = [one for one in walk(owner) if isinstance(one, ast.Attribute) and one.attr == name]
            uses = [module.parents.get(one) for one in loads if isinstance(one.ctx, ast.Load)]
            uses = [one for one in uses if not (isinstance(one, ast.Attribute) and one.attr == "append")]
            own = [(loop, layer) for other, loop, layer in added if other == name]
            others = {other for other, loop, _ in added if own and loop is own[0][0]} - {name}
            is_layer = len(own) == 1 and _has_parameters(code, own[0][1], module)
            if is_layer and len(uses) == 1 and _is_short(uses[0], others, module):
                yield Finding(
                    "warning",
                    "unused-parameters",
                    module.where(uses[0] or owner),
                    f"no step uses the last layer of self.{name}: the loop leaves it out. DistributedDataParallel "
                    "waits for its gradients, and fails in the second step",
                    "make one layer less, or pass find_unused_parameters=True to DistributedDataParallel",
                )
                return


def _poolers(code: Code) -> Iterator[Finding]:
    """Yield a warning where a model reads only the hidden states of an encoder of transformers."""
    for module, owner in code.program.of(ast.ClassDef) if trains_whole_encoders(code) else ():
        if not is_torch_module(code.program, owner, module) or not _is_made(code, owner, module):
            continue
        for made in unused_poolers(code, owner, module):
            yield Finding(
                "warning",
                "unused-parameters",
                module.where(made),
                f"{owner.name} does not use the pooler of {unparsed(made.func)}(): DistributedDataParallel waits for "
                "its gradients, and fails in the second step",
                "pass add_pooling_layer=False here, or find_unused_parameters=True to DistributedDataParallel",
            )


def _adds(node: ast.AST, lists: set[str], module: Module) -> tuple[str, ast.For, ast.Call] | None:
    """Return the list to which a statement in a loop adds a layer, the loop, and what makes the layer."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(layer := node.args[0], ast.Call):
        return None
    owner, _, rest = spelled(node.func).partition(".")
    name, _, method = rest.partition(".")
    loop = module.parents.get(module.parents.get(node, node))
    is_added = owner == "self" and name in lists and method == "append"
    return (name, loop, layer) if is_added and isinstance(loop, ast.For) else None


def _is_short(use: ast.AST | None, others: set[str], module: Module) -> bool:
    """Return whether a layer is taken by a number that goes through all of another list but its last one."""
    loop = next((above for above in module.above(use) if isinstance(above, ast.For)), None) if use is not None else None
    if not isinstance(use, ast.Subscript) or not isinstance(use.slice, ast.Name) or loop is None:
        return False
    match loop.iter, loop.target:
        case ast.Call(args=[ast.Subscript(value=through, slice=ast.Slice() as part)]), ast.Tuple(elts=[counter, *_]):
            is_all_but_last = unparsed(part) == ":-1" and spelled(through).removeprefix("self.") in others
            is_counted = spelled(counter) == use.slice.id and spelled(loop.iter.func) == "enumerate"
            return is_all_but_last and is_counted
    return False


def _lists_of_layers(code: Code, owner: ast.ClassDef, module: Module) -> set[str]:
    """Return the attributes that a class sets to lists or dictionaries of layers."""
    return {
        target.attr
        for node in walk(owner)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Attribute) and code.program.name_of(node.value.func, module) in _LISTS[1:]
    }


def _is_random(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition compares a random number with a probability that is not surely 0 or 1."""
    for compare in (one for one in walk(test) if isinstance(one, ast.Compare) and len(one.comparators) == 1):
        for drawn, limit in ((compare.left, compare.comparators[0]), (compare.comparators[0], compare.left)):
            names = [one for one in walk(drawn) if isinstance(one, ast.Name)]
            made = [value for name in names if (value := last_value(name, module)) is not None]
            calls = [one for part in (drawn, *made) for one in walk(part) if isinstance(one, ast.Call)]
            if any(_draws(code, one, module) for one in calls):
                return code.values.of(limit, module) not in (0, 1)
    return False


def _draws(code: Code, call: ast.Call, module: Module) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in ("uniform_", "bernoulli_")
    return is_method or code.program.name_of(call.func, module) in _RANDOM


def _calls_layer(statement: ast.stmt, module: Module) -> bool:
    """Return whether a statement calls an attribute of the model, or what a loop takes from one."""
    calls = [one for one in walk(statement) if isinstance(one, ast.Call)]
    loops = (above for above in module.above(statement) if isinstance(above, ast.For))
    looped = {
        name.id
        for loop in loops
        if any(isinstance(one, ast.Name) and one.id == "self" for one in walk(loop.iter))
        for name in walk(loop.target)
        if isinstance(name, ast.Name)
    }
    given = [one for call in calls if spelled(call.func).endswith("checkpoint") for one in call.args[:1]]
    given = [one for one in given if not isinstance(one, ast.Attribute)]  # a single one may have no parameters
    names = (spelled(_taken_from(one)) for one in (*(call.func for call in calls), *given))
    return any(name in looped or (name.startswith("self.") and name.count(".") == 1) for name in names)


def _taken_from(layer: ast.expr) -> ast.expr:
    """Return the list of layers that one is taken from, or the layer itself: `self.blocks[i]`."""
    return layer.value if isinstance(layer, ast.Subscript) else layer


def _is_made(code: Code, owner: ast.ClassDef, module: Module) -> bool:
    """Return whether a wrapped model may have objects of a class, made by a call or by a name that is registered."""
    wrapped = _classes_wrapped(code)
    if wrapped is not None and owner not in wrapped and not names_of(owner):
        return False
    calls = code.program.calls_of.get(f"{module.name}.{owner.name}", ())
    maker = own_method(owner, "__init__") if names_of(owner) else None
    if names_of(owner) and owner in code.observed.made:
        return True
    is_made = maker is not None and code.reached.entered(maker, module)
    return bool(is_made) or any(code.reached.of(call, home) for home, call in calls)


@lru_cache(maxsize=1)
def _classes_wrapped(code: Code) -> frozenset[ast.AST] | None:
    """Return the classes that wrapped models are made of; None where it is not clear what is wrapped."""
    found: set[ast.AST] = set()
    waiting: list[tuple[Module, ast.AST]] = []
    for module, call, name in code.reached.calls:
        if not is_ddp(name):
            continue
        model = argument(call, "module", 0)
        parts = origins(code, model, module) if model is not None else []
        calls = [(home, one) for home, part in parts for one in walk(part) if isinstance(one, ast.Call)]
        defined = [code.program.definition(code.program.name_of(one.func, home)) for home, one in calls]
        models = [
            one
            for one in defined
            if one is not None and isinstance(one[1], ast.ClassDef) and own_method(one[1], "forward") is not None
        ]
        if not models:
            return None
        waiting += models
    while waiting:
        module, node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        for inner in walk(node):
            is_name = isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Load)
            defined_here = code.program.definition(code.program.name_of(inner, module)) if is_name else None
            waiting += [defined_here] if defined_here is not None else []
    return frozenset(found) if found else None


def _layers(code: Code, owner: ast.ClassDef, module: Module) -> Iterator[ast.Attribute]:
    """Yield the attributes that a class surely sets to layers with parameters when it is made."""
    for method in (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"):
        for statement in (node for node in method.body if isinstance(node, ast.Assign)):
            target, made = statement.targets[0], statement.value
            if is_of_self(target) and isinstance(made, ast.Call) and _has_parameters(code, made, module):
                yield target


def _has_parameters(code: Code, call: ast.Call, module: Module, depth: int = 0) -> bool:
    """Return whether a call makes a layer with parameters, a list of such, or a module of the program with one."""
    name = code.program.name_of(call.func, module)
    if (name.startswith("torch.nn.") and name.rpartition(".")[2] in _LAYERS) or name == "norm_layer":
        return True
    found = code.program.definition(name)
    home, parts = module, list[ast.AST](call.args if name in _LISTS else [])
    if found is not None and isinstance(found[1], ast.ClassDef) and is_torch_module(code.program, found[1], found[0]):
        maker = own_method(found[1], "__init__")
        home, parts = (
            found[0],
            [] if maker is None else [one for one in maker.body if isinstance(one, (ast.Assign, ast.Expr))],
        )
    calls = (one for part in parts for one in walk(part) if isinstance(one, ast.Call))
    return depth < _DEEPEST and any(_has_parameters(code, one, home, depth + 1) for one in calls)
