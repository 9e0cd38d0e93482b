"""The values of attributes: of arguments, of modules, of settings and of the program's own objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jobsubmit.check.program import yacs
from jobsubmit.check.program.calls import SPAWNS, argument, given_for
from jobsubmit.check.program.entries import with_entries
from jobsubmit.check.program.facts import SYSTEM
from jobsubmit.check.program.functions import returned_expression
from jobsubmit.check.program.hydra import MISSING
from jobsubmit.check.program.library_calls import arguments_as_mapping
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, class_around, spelled
from jobsubmit.check.program.names import value_at_top, value_set_at
from jobsubmit.check.program.objects import field_of, fields_of, is_record, made
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.variables import assigned_to, is_executed, position, variable_of

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values

_OF_ARRAYS = frozenset(["shape", "size", "dtype", "ndim", "device", "T"])
_MOST_PLACES = 8  # that set an attribute
_MOST_SAME = 3  # that give it the same value
_LONGEST_WAY = 5  # of calls that lead to a place


def value_of_attribute(values: Values, node: ast.Attribute, module: Module) -> Any:
    """Return the value of `owner.name`, or UNKNOWN."""
    if values.bound and spelled(node) in values.bound:
        return values.of(values.bound[spelled(node)], module)
    if values.is_strict and not _is_surely_found(values, node, module):
        if not (values.trusts_fields and _is_set_at_once(values, node, module)):
            return UNKNOWN
    if node.attr == "requires_grad":
        return True
    if not values.namespaces.hold(node.value, module) and _may_be_set(values, node.attr):
        return UNKNOWN
    if node.attr == "__dict__":
        return arguments_as_mapping(values, node.value, module)
    name = values.program.name_of(node, module)
    if name == "sys.argv":
        return [values.program.boot.path, *values.facts.argv]
    if name in SYSTEM:
        return SYSTEM[name]
    if name == "torch.__version__" and values.facts.torch_version is not None:
        return values.facts.torch_version
    if (
        name.count(".") == 1 and name.endswith(".__version__") and not name.startswith("torch.")
    ):  # it has `+cpu` as well
        return values.facts.libraries.version(name.partition(".")[0]) or UNKNOWN
    if node.attr in _OF_ARRAYS and _is_of_unknown(values, node.value, module):
        return UNKNOWN
    if node.attr in values.program.attribute_stores and not _is_entry(values, node, module):
        return _stored(values, node, module)
    if values.namespaces.hold(node.value, module):
        return values.arguments.get(node.attr, UNKNOWN)
    owner = values.of(node.value, module)
    if isinstance(node.value, ast.Call) and owner is UNKNOWN:
        owner = arguments_as_mapping(values, node.value, module)  # parser.parse_args().lr
    if isinstance(owner, PurePosixPath):
        return {"parent": owner.parent, "name": owner.name, "stem": owner.stem}.get(node.attr, UNKNOWN)
    if isinstance(owner, dict):
        value = owner.get(node.attr, UNKNOWN)
        return UNKNOWN if value == MISSING else value
    value = value_at_top(values, name)
    return _field(values, node, module) if value is UNKNOWN else value


def _is_of_unknown(values: Values, owner: ast.expr, module: Module) -> bool:
    """Return whether an owner may be an array: it seems to be no object of the program, and no mapping."""
    if spelled(owner) == "self" or values.namespaces.hold(owner, module):
        return False
    return values.of(owner, module) is UNKNOWN and made(values.program, owner, module) is None


def _is_surely_found(values: Values, node: ast.Attribute, module: Module) -> bool:
    """Return whether an attribute is one of the arguments, a module or the settings of yacs."""
    is_setting = values.has_settings and yacs.key_of(node)
    is_argument = values.namespaces.hold(node.value, module)
    is_argument = is_argument or arguments_as_mapping(values, node.value, module) is not UNKNOWN
    return bool(is_setting) or is_argument or _is_of_module(values, node, module)


def _is_set_at_once(values: Values, node: ast.Attribute, module: Module) -> bool:
    """Return whether an attribute is set only where its object is made: in `__init__`, or as a field of a record."""
    places = values.program.attribute_stores.get(node.attr, ())
    if _is_entry(values, node, module):
        return True
    if not places:
        found = made(values.program, node.value, module)
        return found is not None and is_record(found.owner) and node.attr in fields_of(found.owner)
    makers = [home.function_of(place) for home, place in places]
    is_set_once = len(places) == 1 and getattr(makers[0], "name", "") == "__init__"
    return is_set_once or _kept(values, node, module, places) is not UNKNOWN


def _is_entry(values: Values, node: ast.Attribute, module: Module) -> bool:
    """Return whether an attribute is an entry of a mapping, and only fields of other objects of that name are set."""
    places = values.program.attribute_stores.get(node.attr, ())
    if spelled(node.value) == "self" or values.namespaces.hold(node.value, module):
        return False
    owner = values.of(node.value, module)
    if not isinstance(owner, dict) or node.attr not in owner:
        return False
    return not any(_may_be_same(values, place.value, home, spelled(node.value)) for home, place in places)


def _may_be_same(values: Values, base: ast.expr, home: Module, name: str, depth: int = 0) -> bool:
    """Return whether an object whose field is set may be the one of a name: by its own name, or as it was given."""
    if spelled(base) == "self":
        return False
    if spelled(base) == name or not isinstance(base, ast.Name) or depth > _LONGEST_WAY:
        return True
    scope, _ = variable_of(base, home)
    if (scope, base.id) in home.own_stores:
        made = [assigned_to(store, home) for store in home.own_stores[scope, base.id]]
        return not all(isinstance(one, ast.Call) for one in made)
    calls = values.program.calls_to(scope, home) if isinstance(scope, FUNCTIONS) else ()
    given = [(other, given_for(call, scope, base.id)) for other, call in calls if isinstance(scope, FUNCTIONS)]
    return not given or any(one is None or _may_be_same(values, one, other, name, depth + 1) for other, one in given)


def _may_be_set(values: Values, name: str) -> bool:
    """Return whether the arguments or a configuration may set a field that is set by a computed name."""
    if name not in values.program.set_by_name:
        return False
    is_given = any(re.search(rf"\b{name}\b", word) for word in values.facts.argv)
    return is_given or name in values.program.configured_names


def _is_of_module(values: Values, node: ast.Attribute, module: Module) -> bool:
    """Return whether an attribute is a variable of a module, or of something that the program only imports."""
    owner = values.program.name_of(node, module).rpartition(".")[0]
    is_imported = spelled(node).partition(".")[0] in module.aliases
    return is_imported and (owner in values.program.modules or owner.partition(".")[0] not in values.program.tops)


def _field(values: Values, node: ast.Attribute, module: Module) -> Any:
    """Return the value of a field of an object whose class the program defines."""
    found = field_of(values.program, node, module)
    if found is None:
        return _field_of_mapping(values, node, module)
    home, source = found
    returned = returned_expression(values, source, home) if isinstance(source, ast.FunctionDef) else source
    return UNKNOWN if returned is None else values.of(returned, home)


def _field_of_mapping(values: Values, node: ast.Attribute, module: Module) -> Any:
    """Return the value of a field that an object gets with others in a mapping: `Config(**vars(args))`."""
    found = made(values.program, node.value, module)
    if found is None or found.call is None or any(isinstance(one, ast.Starred) for one in found.call.args):
        return UNKNOWN
    given = [values.of(keyword.value, found.at) for keyword in found.call.keywords if keyword.arg is None]
    return next((one[node.attr] for one in given if isinstance(one, dict) and node.attr in one), UNKNOWN)


def _stored(values: Values, node: ast.Attribute, module: Module) -> Any:
    """Return the value of an attribute that is set in one place that counts, where it is used."""
    is_argument = values.namespaces.hold(node.value, module)
    owner = UNKNOWN if is_argument or spelled(node.value) == "self" else values.of(node.value, module)
    before = values.arguments.get(node.attr, UNKNOWN) if is_argument else UNKNOWN
    all_places = list(_places_of(values, node, module))
    if isinstance(owner, dict):  # settings that a file gives, and the program changes
        is_argument, before = True, owner.get(node.attr, UNKNOWN)
        all_places = [one for one in all_places if _may_be_same(values, one[1].value, one[0], spelled(node.value))]
    if values.has_settings and any(yacs.is_default(place, home) for home, place in all_places):
        return _setting(values, node, all_places)
    if len(all_places) > _MOST_PLACES:
        return UNKNOWN
    places = [
        (home, place, runs)
        for home, place in all_places
        if not (is_argument and _comes_later(values, place, home, node, module))
        and (runs := is_executed(place, home.scope_of(place), home, values.truth)) is not False
        and _is_entered(values, place, home)
    ]
    if not places:
        return before
    if before is UNKNOWN and (kept := _kept(values, node, module, [pair[:2] for pair in places])) is not UNKNOWN:
        return kept
    if len(places) > 1 and not _are_same(values, places):
        return UNKNOWN
    home, place, runs = places[0]
    is_same = home is module and home.scope_of(place) is module.scope_of(node)
    if (is_same and not _is_after(node, place)) or _is_given_to(values, home.function_of(place), home, node, module):
        return before
    if runs is None:
        return UNKNOWN
    value = with_entries(values, value_set_at(values, place, home), node.attr, node, module)
    is_known = is_same or before in (UNKNOWN, None, value) or _is_entered_after(values, place, home, node, module)
    return value if is_known else UNKNOWN


def _kept(values: Values, node: ast.Attribute, module: Module, places: Sequence[tuple[Module, ast.Attribute]]) -> Any:
    """Return what an own field keeps from where its object is made: all that sets it later asks for other values."""
    initial = _field(values, node, module) if spelled(node.value) == "self" else UNKNOWN
    if initial is UNKNOWN:
        return UNKNOWN
    made = replace(values, bound={**values.bound, spelled(node): ast.Constant(initial)})
    is_set = (is_executed(place, home.scope_of(place), home, made.truth) is not False for home, place in places)
    return UNKNOWN if any(is_set) else initial


def _is_entered_after(
    values: Values, place: ast.AST, home: Module, node: ast.AST, module: Module, depth: int = 0
) -> bool:
    """Return whether the function of a node is only called, or started as a process, below a place in its scope."""
    function = module.function_of(node)
    if function is None or depth > _LONGEST_WAY:
        return False
    starts = (one for name in SPAWNS for one in values.program.calls_of.get(name, ()))
    calls = [*values.program.calls_to(function, module)]
    calls += [(at, call) for at, call in starts if _starts(values, call, at, f"{module.name}.{function.name}")]
    live = [(at, call) for at, call in calls if call not in values.dead]
    return bool(live) and all(
        position(call) > position(place)
        if at is home and home.scope_of(call) is home.scope_of(place)
        else _is_entered_after(values, place, home, call, at, depth + 1)
        for at, call in live
    )


def _starts(values: Values, call: ast.Call, module: Module, name: str) -> bool:
    """Return whether a call of mp.spawn starts processes that execute a function of this name."""
    return _names(values, call, module, name) and values.of(argument(call, "nprocs", 2), module) != 0


def _names(values: Values, call: ast.Call, module: Module, name: str) -> bool:
    started = argument(call, "fn", 0)
    return started is not None and values.program.name_of(started, module) == name


def _are_same(values: Values, places: Sequence[tuple[Module, ast.Attribute, bool | None]]) -> bool:
    """Return whether each of several places surely gives an attribute the same value."""
    if len(places) > _MOST_SAME or not all(runs for _, _, runs in places):
        return False
    given = (value_set_at(values, place, home) for home, place, _ in places)
    first = next(given)
    return first is not UNKNOWN and all(value == first for value in given)


def _comes_later(values: Values, place: ast.AST, home: Module, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether something surely is executed after a node: further below, or by what is called there only."""
    scope = module.scope_of(node)
    if home is module and home.scope_of(place) is scope:
        is_looped = any(isinstance(above, (ast.For, ast.While)) for above in module.above(node))
        return not is_looped and position(place) > position(node)
    function = home.function_of(place)
    calls = values.program.calls_to(function, home) if function is not None else ()
    live = [(other, call) for other, call in calls if call not in values.dead]
    is_named_only_so = function is not None and home.definitions.get(function.name) is function
    is_maker = function is not None and function.name == "__init__"
    if not live or depth > _LONGEST_WAY or len(live) > _MOST_PLACES or not (is_named_only_so or is_maker):
        return False
    return all(_comes_later(values, call, other, node, module, depth + 1) for other, call in live)


def _setting(values: Values, node: ast.Attribute, places: Sequence[tuple[Module, ast.Attribute]]) -> Any:
    """Return the value of a setting of yacs: what files and words give, or else its only default."""
    defaults = (yacs.key_of_default(place) for home, place in places if yacs.is_default(place, home))
    key = yacs.key_of(node) or next((one for one in defaults if spelled(node).endswith(f".{one}")), "")
    own = [(home, place) for home, place in places if f".{spelled(place)}".endswith(f".{key}")]
    if not key or values.overrides is None or not all(yacs.is_default(place, home) for home, place in own):
        return UNKNOWN
    if key in values.overrides:
        return values.overrides[key]
    return value_set_at(values, own[0][1], own[0][0]) if len(own) == 1 else UNKNOWN


def _is_given_to(values: Values, function: Function | None, home: Module, node: ast.AST, module: Module) -> bool:
    """Return whether an expression is an argument of the only call of a function: before its body is executed."""
    calls = values.program.calls_to(function, home) if function is not None else ()
    entering = [call for _, call in calls if call not in values.dead]
    if len(entering) != 1 or entering[0] not in module.above(node):
        return False
    return is_executed(entering[0], module.scope_of(node), module, values.truth) is True


def _places_of(values: Values, node: ast.Attribute, module: Module) -> Iterator[tuple[Module, ast.Attribute]]:
    """Yield the places that set an attribute of what seems to be the same object; all where that is not clear."""
    places = values.program.attribute_stores[node.attr]
    if values.namespaces.hold(node.value, module):
        yield from (pair for pair in places if spelled(pair[1].value) != "self" or _is_of_dataclass(*pair))
        return
    owner = class_around(node, module) if spelled(node.value) == "self" else None
    own = [(home, place) for home, place in places if owner and class_around(place, home) is owner]
    outside = [pair for pair in places if owner and pair not in own and _is_named_after(pair[1].value, owner)]
    yield from [*own, *outside] if own else places


def _is_entered(values: Values, node: ast.AST, module: Module) -> bool:
    """Return whether the function that a node is in may be called."""
    function = module.function_of(node)
    if function is None or module.definitions.get(function.name) is not function:
        return True
    calls = values.program.calls_to(function, module)
    starts = (place for name in SPAWNS for place in values.program.calls_of.get(name, ()))
    is_started = any(_names(values, call, at, f"{module.name}.{function.name}") for at, call in starts)
    return not calls or is_started or any(call not in values.dead for _, call in calls)


def _is_named_after(node: ast.expr, owner: ast.ClassDef) -> bool:
    """Return whether an object seems to be one of a class, by its name: `trainer` or `self.trainer` of Trainer."""
    name = spelled(node).rpartition(".")[2].replace("_", "").lower()
    return name not in ("", "self") and name in owner.name.lower()


def _is_of_dataclass(module: Module, place: ast.AST) -> bool:
    """Return whether a dataclass sets a field again once it has all of them."""
    return getattr(module.function_of(place), "name", "") == "__post_init__"


def _is_after(node: ast.AST, place: ast.AST) -> bool:
    return getattr(node, "lineno", 0) > getattr(place, "lineno", 0)
