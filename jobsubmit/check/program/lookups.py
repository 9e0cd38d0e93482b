"""Functions and classes that a program looks up by a computed name: `nets.__dict__[args.net]`, `MODELS[args.net]`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobsubmit.check.program.module import Module, returned_values, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values


_OF_HYDRA = tuple(f"hydra.utils.{name}" for name in ("get_class", "get_method", "get_object"))


def names_looked_up(values: Values) -> Mapping[ast.AST, str]:
    """Return the expressions that are called and looked up by name, with the whole names of what they mean."""
    found: dict[ast.AST, str] = {}
    for module, call, name in values.program.calls:
        is_found = call in values.dead or values.program.definition(name) is not None
        meant = "" if is_found else name_looked_up(values, call.func, module)
        if values.program.definition(meant) is not None:
            found[call.func] = meant
    return found


def name_looked_up(values: Values, called: ast.expr, module: Module) -> str:
    """Return the whole name of what an expression looks up, itself or in the variable that it is; empty if none."""
    held = values.assigned(called, module) if isinstance(called, ast.Name) else called
    match held:
        case ast.Subscript(value=ast.Attribute(value=owner, attr="__dict__"), slice=key):
            return _name_in_module(values, owner, key, module)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, key, *_]):
            return _name_in_module(values, owner, key, module)
        case ast.Subscript(value=ast.Name() | ast.Attribute() as mapping, slice=key):
            return _name_in_mapping(values, mapping, key, module)
        case ast.Call(args=[text, *_]) if _imports_by_text(values, held, module):
            whole = values.of(text, module)
            return whole if isinstance(whole, str) and values.program.definition(whole) is not None else ""
    return ""


def _imports_by_text(values: Values, call: ast.Call, module: Module) -> bool:
    """Return whether a call is one of a function that returns what a text names: `get_obj_from_str("nets.unet.UNet")`.

    It is Hydra's, or one that imports the module by all but the last part of its first parameter.
    """
    name = values.program.name_of(call.func, module)
    if name in _OF_HYDRA:
        return True
    found = values.program.definition(name)
    if found is None or not isinstance(found[1], ast.FunctionDef) or not found[1].args.args:
        return False
    texts = [unparsed(one) for one in returned_values(found[1])]
    inner = [node for node in walk(found[1]) if isinstance(node, ast.Call)]
    splits = [one for one in inner if getattr(one.func, "attr", "") in ("rsplit", "rpartition")]
    owners = [one.func.value for one in splits if isinstance(one.func, ast.Attribute)]
    is_split = any(isinstance(one, ast.Name) and one.id == found[1].args.args[0].arg for one in owners)
    is_imported = any(spelled(one.func).endswith("import_module") for one in inner)
    return is_split and is_imported and bool(texts) and all(text.startswith("getattr(") for text in texts)


def _name_in_module(values: Values, owner: ast.expr, key: ast.expr, module: Module) -> str:
    """Return the whole name of what a module of the program, or a library, has under a name."""
    name, whole = values.of(key, module), values.program.name_of(owner, module)
    if not isinstance(name, str) or not whole:
        return ""
    home = values.program.modules.get(whole)
    stores = home.stores.get((home.tree, name), ()) if home is not None else ()
    meant = assigned_to(stores[-1], home) if stores and home is not None else None
    other = values.program.name_of(meant, home) if meant is not None and home is not None else ""
    return other or values.program.imported_from(whole, name)


def _name_in_mapping(values: Values, mapping: ast.expr, key: ast.expr, module: Module) -> str:
    """Return the whole name of what a mapping that is written down has under a key: `{"a": NetA, "b": NetB}`."""
    owner, _, last = values.program.name_of(mapping, module).rpartition(".")
    home = values.program.modules.get(owner, module)
    held = values.assigned(mapping, module) if isinstance(mapping, ast.Name) else None
    if held is None:
        stores = home.own_stores.get((home.tree, last), ())
        held = assigned_to(stores[0], home) if len(stores) == 1 else None
    chosen = values.of(key, module) if isinstance(held, ast.Dict) else None
    for entry, value in zip(held.keys, held.values, strict=True) if isinstance(held, ast.Dict) else ():
        if isinstance(chosen, str) and entry is not None and values.of(entry, home) == chosen:
            return values.program.name_of(value, home)
    return ""
