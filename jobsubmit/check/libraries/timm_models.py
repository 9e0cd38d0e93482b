"""Find the models that the code registers with timm, and that refuse an argument which the installed timm adds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from jobsubmit.check.code import Code
from jobsubmit.check.installed.libraries import Libraries
from jobsubmit.check.installed.signatures import accepted_names
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Function, Module, class_around, own_method, spelled, unparsed
from jobsubmit.common.finding import Finding

# What newer versions add → versions before that; source: `create_model` in the tags v0.3.3 to v1.0.28 of timm.
_OLD = ("0.1.30", "0.3.2", "0.3.4", "0.4.5", "0.4.9", "0.4.12", "0.5.4")
_NEWER = (*_OLD, "0.6.5", "0.6.7", "0.6.11", "0.6.12", "0.6.13")
_ADDED_SINCE = {
    "pretrained_cfg": _OLD,
    "pretrained_cfg_overlay": _NEWER,
    "cache_dir": (*_NEWER, "0.9.2", "0.9.8", "0.9.12", "0.9.16", "1.0.3", "1.0.8", "1.0.9", "1.0.10", "1.0.12"),
}
_DEEPEST = 10  # calls that hand on the arguments
_READS = frozenset(["get", "pop", "setdefault"])


def check_registered_models(code: Code, wanted: SpecifierSet | None) -> Iterator[Finding]:
    """Yield an error for a registered function that cannot take what the nodes' timm adds to its arguments.

    `create_model` of older versions gave a registered function only what the program passes. Newer ones add
    `pretrained_cfg`, `pretrained_cfg_overlay` and `cache_dir`, which many models of that time hand on to their class.
    Where timm is not known, the versions count that the requirements of the job have `wanted`.
    """
    is_own = "timm" in code.program.tops
    added = [] if is_own else _added_by_timm(code.facts.libraries) or _added_by_version(wanted)
    version = code.facts.libraries.version("timm") or str(wanted or "")
    for module, call, name in code.reached.calls if added else ():
        is_of_timm = name.startswith("timm.") and name.endswith(".create_model")
        model = code.values.of(argument(call, "model_name", 0), module) if is_of_timm else None
        for home, function in _registered(code, model) if isinstance(model, str) else ():
            refused = {one: node for one in added if (node := _refusing(code, function, home, one)) is not None}
            if refused:
                names = ", ".join(refused)
                yield Finding(
                    code.level_of(call, module),
                    "library-version",
                    home.where(next(iter(refused.values()))),
                    f"timm {version} calls {function.name}() with {names}, too, which this does not accept",
                    f"remove them at the beginning of {function.name}(): "
                    f"for name in [{', '.join(map(repr, refused))}]: kwargs.pop(name, None)"
                    if function.args.kwarg is not None
                    else f"add **kwargs to the parameters of {function.name}()",
                )


def _added_by_timm(libraries: Libraries) -> list[str]:
    """Return what `create_model` of the installed timm gives each model, whatever the program passes."""
    found = libraries.definitions("timm.models.create_model") or []
    calls = [node for one in found for node in ast.walk(one.node) if isinstance(node, ast.Call)]
    given = [[keyword.arg for keyword in call.keywords] for call in calls]
    of_model = next((names for names in given if "pretrained" in names and None in names), [])
    return [name for name in of_model if name not in (None, "pretrained")]


def _added_by_version(wanted: SpecifierSet | None) -> list[str]:
    """Return the same for versions of timm that requirements allow: what all of them add."""
    if wanted is None:
        return []
    return [name for name, without in _ADDED_SINCE.items() if not any(map(wanted.contains, without))]


def _registered(code: Code, model: str) -> Iterator[tuple[Module, Function]]:
    for module in code.program.modules.values():
        function = module.definitions.get(model)
        if isinstance(function, ast.FunctionDef) and any(
            code.program.name_of(one, module).startswith("timm.") for one in function.decorator_list
        ):
            yield module, function


def _refusing(code: Code, function: Function, module: Module, name: str, depth: int = 0) -> ast.AST | None:
    """Return the function, or the call in it, that does not accept an argument; None if they may accept it."""
    kwargs = function.args.kwarg
    if any(one.arg == name for one in (*function.args.args, *function.args.kwonlyargs)) or depth > _DEEPEST:
        return None
    if kwargs is None:
        return function
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    copies = {copy for node in names if node.id == kwargs.arg and (copy := _copied_to(node, module))}
    uses = [node for node in names if node.id in {kwargs.arg, *copies} and not _copied_to(node, module)]
    uses = [node for node in uses if not _is_updated(node, module)]
    handing = [call for use in uses if (call := _handing_on(use, module)) is not None]
    is_changed = any(_handing_on(use, module) is None and not _reads_another(use, module, name) for use in uses)
    is_refused = bool(handing) and all(_is_refused(code, call, module, name, depth) for call in handing)
    return handing[0] if is_refused and not is_changed else None


def _copied_to(kwargs: ast.Name, module: Module) -> str:
    """Return the variable that gets all of `kwargs`: `settings.update(kwargs)`, `settings = dict(a=1, **kwargs)`."""
    above = module.parents.get(kwargs)
    if isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute) and above.func.attr == "update":
        return spelled(above.func.value)
    made = module.parents.get(above) if isinstance(above, ast.keyword) and above.arg is None else None
    store = module.parents.get(made) if isinstance(made, ast.Call) and spelled(made.func) == "dict" else None
    return spelled(store.targets[0]) if isinstance(store, ast.Assign) else ""


def _is_updated(settings: ast.Name, module: Module) -> bool:
    """Return whether a variable is the owner of `settings.update(kwargs)`."""
    above = module.parents.get(settings)
    call = module.parents.get(above) if isinstance(above, ast.Attribute) and above.attr == "update" else None
    return isinstance(call, ast.Call) and len(call.args) == 1 and isinstance(call.args[0], ast.Name)


def _handing_on(kwargs: ast.Name, module: Module) -> ast.Call | None:
    """Return the call that is given `**kwargs`."""
    keyword = module.parents.get(kwargs)
    above = module.parents.get(keyword) if isinstance(keyword, ast.keyword) and keyword.arg is None else None
    return above if isinstance(above, ast.Call) else None


def _reads_another(kwargs: ast.Name, module: Module, name: str) -> bool:
    """Return whether `kwargs` is only asked for another entry: `kwargs.pop("drop")`, `kwargs["drop"]`."""
    above = module.parents.get(kwargs)
    if isinstance(above, ast.Subscript):
        return isinstance(above.slice, ast.Constant) and above.slice.value != name
    call = module.parents.get(above) if isinstance(above, ast.Attribute) and above.attr in _READS else None
    first = call.args[0] if isinstance(call, ast.Call) and call.args else None
    return isinstance(first, ast.Constant) and first.value != name


def _is_refused(code: Code, call: ast.Call, module: Module, name: str, depth: int) -> bool:
    """Return whether what a call calls surely does not accept an argument."""
    owner = class_around(call, module)
    is_of_class_above = isinstance(call.func, ast.Attribute) and unparsed(call.func.value).startswith("super(")
    if owner is not None and is_of_class_above:
        return len(owner.bases) == 1 and _refuses(code, owner.bases[0], module, name, depth)
    return _refuses(code, call.func, module, name, depth)


def _refuses(code: Code, called: ast.AST, module: Module, name: str, depth: int) -> bool:
    """Return whether a function or class surely does not accept an argument."""
    whole = code.program.name_of(called, module)
    found = code.program.definition(whole)
    if found is None:
        accepted = (
            accepted_names(whole, code.facts.libraries) if whole.partition(".")[0] not in code.program.tops else None
        )
        return accepted is not None and name not in accepted
    home, node = found
    if not isinstance(node, ast.ClassDef):
        return not node.decorator_list and _refusing(code, node, home, name, depth + 1) is not None
    if node.decorator_list or node.keywords or own_method(node, "__new__") or depth > _DEEPEST:
        return False
    maker = own_method(node, "__init__")
    if maker is not None:
        return not maker.decorator_list and _refusing(code, maker, home, name, depth + 1) is not None
    return len(node.bases) == 1 and _refuses(code, node.bases[0], home, name, depth + 1)
