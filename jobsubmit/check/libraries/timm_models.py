"""Find the models that the code registers with timm, and that refuse an argument which the installed timm adds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.installed.libraries import Libraries
from jobsubmit.check.installed.signatures import accepted_names
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Function, Module, class_around, own_method, unparsed
from jobsubmit.common.finding import Finding

_DEEPEST = 10  # calls that hand on the arguments
_READS = frozenset(["get", "pop", "setdefault"])


def check_registered_models(code: Code) -> Iterator[Finding]:
    """Yield an error for a registered function that cannot take what the installed timm adds to its arguments.

    `create_model` of older versions gave a registered function only what the program passes. Newer ones add
    `pretrained_cfg`, `pretrained_cfg_overlay` and `cache_dir`, which many models of that time hand on to their class.
    """
    added = _added_by_timm(code.facts.libraries) if "timm" not in code.program.tops else []
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
                    f"timm {code.facts.libraries.version('timm')} calls {function.name}() with {names}, too, which "
                    "this does not accept",
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
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == kwargs.arg]
    handing = [call for use in uses if (call := _handing_on(use, module)) is not None]
    is_changed = any(_handing_on(use, module) is None and not _reads_another(use, module, name) for use in uses)
    is_refused = bool(handing) and all(_is_refused(code, call, module, name, depth) for call in handing)
    return handing[0] if is_refused and not is_changed else None


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
