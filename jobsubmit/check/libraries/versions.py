"""Compare how the code uses libraries with the versions of them that are installed on the nodes."""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache, partial

from jobsubmit.check.code import Code, is_count
from jobsubmit.check.imports import is_in_branch, may_fail
from jobsubmit.check.installed.signatures import accepted_names, members_of, positional_names
from jobsubmit.check.origins import last_value, seen_through, words_of
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.common.finding import Finding

# Of transformers, Lightning and torch.
_RENAMED = {"tokenizer": "processing_class", "no_cuda": "use_cpu", "gpus": "devices", "use_cuda": "use_device"}
_OLD_TORCH = re.compile(r"(?:0\.|1\.[0-6](?:\D|$))")
_SINCE_2 = re.compile(r"[2-9]\.|\d\d")
_RETURN_COMPLEX = 9  # the position of the argument
_SINCE_1_24 = re.compile(r"1\.(?:2[4-9]|[3-9]\d)|[2-9]\.")
_UNTIL_2 = re.compile(r"1\.(?:2[4-9]|[3-9]\d)")
# Names that NumPy has no more → what to write instead.
_LOST_IN_1_24 = {name: name for name in ("float", "int", "object", "str", "complex")}
_LOST_UNTIL_2 = {"bool": "bool", "long": "int"}  # they came back
_LOST_IN_2 = {
    **{f"{name}_": f"np.{new}" for name, new in (("float", "float64"), ("complex", "complex128"))},
    **{f"{name}_": f"np.{new}" for name, new in (("string", "bytes_"), ("unicode", "str_"), ("round", "round"))},
    **dict.fromkeys(("Inf", "Infinity", "PINF", "infty"), "np.inf"),
    **{"NaN": "np.nan", "NINF": "-np.inf", "product": "np.prod", "cumproduct": "np.cumprod"},
    **{"alltrue": "np.all", "sometrue": "np.any", "asfarray": "np.asarray", "mat": "np.asmatrix"},
}
# What torch._six had → what to use instead.
_MOVED = {
    "inf": "torch.inf",
    "nan": "torch.nan",
    "container_abcs": "collections.abc",
    "string_classes": "str",
    "int_classes": "int",
}
_OF_C = ("torch", "numpy")  # most of what they have is not written in Python
_ASKS = re.compile(r"version|hasattr|\bdir\(", re.IGNORECASE)
_SHOWN = 4
_DEEPEST = 8  # modules that hand on a name
_ALIKE = 0.8  # of difflib: evaluation_strategy and eval_strategy


def check_versions(code: Code) -> Iterator[Finding]:
    """Yield an error for each module, name or argument that the installed version of a library does not have.

    Where it is not sure that the code comes there, yield a warning.
    """
    own, known = _own_names(code), set[str]()
    of_names = (_imports, _arguments, _without_names, _lost_functions, _members, _names_of_numpy)
    uses = (check(code, own) for check in of_names)
    for finding in itertools.chain(*uses, _views(code), _spectrograms(code)):
        if finding.text not in known:
            known.add(finding.text)
            yield finding


def _own_names(code: Code) -> frozenset[str]:
    """Return the top-level names that are, or may be, of the code itself: it may have a changed copy of a library."""
    folders = {part for path in code.program.paths for part in path.split("/")[:-1]}
    return frozenset(folders | {name.partition(".")[0] for name in code.program.modules})


def _imports(code: Code, own: Collection[str]) -> Iterator[Finding]:
    libraries = code.facts.libraries
    for module, node in code.program.of(ast.Import, ast.ImportFrom):
        if may_fail(node, module) or is_in_branch(node, module) or not code.reached.of(node, module):
            continue
        names = list(_missing(code, node, own))
        if names:
            top = _top(names[0])
            yield Finding(
                code.level_of(node, module),
                "library-version",
                module.where(node),
                f"the nodes have {top} {libraries.version(top)}, which has no {_some(names)}",
                f"{_instead(code, names, node, module)}, or {_pin(top)}",
            )


def _instead(code: Code, names: Sequence[str], node: ast.AST, module: Module) -> str:
    """Return what to import instead of names that a library has no more."""
    is_module_lost = names[0] == getattr(node, "module", "")
    lost = {alias.name for alias in getattr(node, "names", ())} if is_module_lost else {_last(name) for name in names}
    bound = {alias.asname or alias.name for alias in getattr(node, "names", ()) if alias.name in lost}
    used = {one.id for one in module.of(ast.Name)}
    if bound and not bound & used and module is code.program.boot:
        return "remove it, because nothing uses it"
    moved = [_MOVED[name] for name in lost if name in _MOVED and "torch._six" in getattr(node, "module", "")]
    if moved:
        return f"use {', '.join(moved)}"
    similar = [new for name in names[:_SHOWN] for new in _similar(code, name)]
    return f"import {', '.join(similar)}" if similar else "import what this version has"


def _similar(code: Code, name: str) -> list[str]:
    """Return what a module of a library has whose name begins as one that it lacks: RAdamLegacy for RAdam."""
    owner, _, last = name.rpartition(".")
    known = code.facts.libraries.module(owner)
    names = sorted(known.bindings) if known is not None else []
    return [one for one in names if one.casefold().startswith(last.casefold())][:1]


def _missing(code: Code, node: ast.Import | ast.ImportFrom, own: Collection[str]) -> Iterator[str]:
    """Yield the modules, or else the names in them, that an import does not find in an installed library."""
    libraries = code.facts.libraries
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        names = [] if node.level or _top(base) in own else [f"{base}.{alias.name}" for alias in node.names]
        if names and libraries.lacks_module(base):
            yield base
        else:
            yield from (name for name in names if not name.endswith(".*") and libraries.lacks(name))
        return
    for alias in node.names:
        if _top(alias.name) not in own and libraries.lacks_module(alias.name):
            yield alias.name


def _top(name: str) -> str:
    return name.partition(".")[0]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _some(names: Sequence[str]) -> str:
    """Return the first of several names, and the last words of others."""
    words = [names[0], *(name.rpartition(".")[2] for name in names[1:_SHOWN])]
    return ", ".join(words) + (" …" if names[_SHOWN:] else "")


def _arguments(code: Code, own: Collection[str]) -> Iterator[Finding]:
    libraries = code.facts.libraries
    accept = cache(partial(accepted_names, libraries=libraries))
    for module, call, name in code.reached.calls:
        given = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
        if not given or "." not in name or _top(name) in own or _is_optional(call, module):
            continue
        accepted = accept(name) if _is_one_thing(code, call.func, module) else None
        missing = [one for one in given if one not in accepted] if accepted is not None else []
        if accepted is None or not missing:
            continue
        top, last = _top(name), name.rpartition(".")[2]
        alike = [new for one in missing if (new := _new_name(one, accepted))]
        yield Finding(
            code.level_of(call, module),
            "library-version",
            module.where(call),
            f"the nodes have {top} {libraries.version(top)}, in which {last} has no argument {', '.join(missing)}",
            f"use {', '.join(alike)}, or {_pin(top)}" if alike else f"remove what it does not have, or {_pin(top)}",
        )


def _without_names(code: Code, own: Collection[str]) -> Iterator[Finding]:
    """Yield an error for a call that gives more arguments without their names than a library's function takes so."""
    libraries = code.facts.libraries
    positional = cache(partial(positional_names, libraries=libraries))
    for module, call, name in code.reached.calls:
        is_plain = call.args and not any(isinstance(one, ast.Starred) for one in call.args)
        if not is_plain or "." not in name or _top(name) in {*own, *_OF_C} or _is_optional(call, module):
            continue
        names = positional(name) if _is_one_thing(code, call.func, module) else None
        if names is None or len(call.args) <= len(names[0]):
            continue
        top, last = _top(name), name.rpartition(".")[2]
        more = ", ".join(f"{one}=…" for one in names[1][: len(call.args) - len(names[0])])
        yield Finding(
            code.level_of(call, module),
            "library-version",
            module.where(call),
            f"the nodes have {top} {libraries.version(top)}, in which {last} takes at most {len(names[0])} of its "
            f"arguments without a name, and this gives {len(call.args)}",
            f"name them: {more}; or {_pin(top)}" if more else _pin(top),
        )


def _lost_functions(code: Code, own: Collection[str]) -> Iterator[Finding]:
    """Yield an error for what the program calls of a library's module that has no such name: `optim.add_decay()`."""
    libraries = code.facts.libraries
    for module, call, name in code.reached.calls:
        owner = name.rpartition(".")[0]
        is_asked = isinstance(call.func, ast.Attribute) and "." in owner and _top(name) not in {*own, *_OF_C}
        is_set = _last(name) in code.program.stored_attributes or _last(name) in code.texts
        if not is_asked or is_set or not _is_one_thing(code, call.func, module) or _is_optional(call, module):
            continue
        if libraries.module(owner) is not None and libraries.lacks(name) and libraries.lacks_module(name):
            top = _top(name)
            similar = _similar(code, name)
            yield Finding(
                code.level_of(call, module),
                "library-version",
                module.where(call),
                f"the nodes have {top} {libraries.version(top)}, which has no {name}",
                f"use {similar[0]}, or {_pin(top)}" if similar else f"use what this version has, or {_pin(top)}",
            )


def _members(code: Code, own: Collection[str]) -> Iterator[Finding]:
    """Yield an error for a member that an Enum of a library does not have: `DistributedType.TPU`."""
    libraries = code.facts.libraries
    members = cache(partial(members_of, libraries=libraries))
    for module, node in code.program.of(ast.Attribute):
        if not (node.attr.isupper() and isinstance(node.ctx, ast.Load)) or not code.reached.of(node, module):
            continue
        name = code.program.name_of(node.value, module)
        is_class = "." in name and name.rpartition(".")[2][:1].isupper() and _top(name) not in {*own, *_OF_C}
        known = members(name) if is_class and _is_one_thing(code, node.value, module) else None
        if known is None or node.attr in known or _is_optional(node, module):
            continue
        top = _top(name)
        yield Finding(
            code.level_of(node, module),
            "library-version",
            module.where(node),
            f"the nodes have {top} {libraries.version(top)}, in which {name.rpartition('.')[2]} has no {node.attr}",
            f"use what this version has, or {_pin(top)}",
        )


def _spectrograms(code: Code) -> Iterator[Finding]:
    """Yield a warning for `torch.stft` of real numbers without `return_complex`, which torch 2 refuses."""
    version = code.facts.torch_version or code.facts.libraries.version("torch")
    calls = list(code.calls("torch.stft")) if _SINCE_2.match(version) else []
    is_asked = any(argument(call, "return_complex", _RETURN_COMPLEX) is not None for _, call in calls)
    for module, call in calls if not is_asked else ():  # else the code knows of it
        is_complex = any("complex" in words_of(code, one, module) for one in call.args[:1])
        if not (is_complex or hides_arguments(call) or _is_optional(call, module)):
            yield Finding(
                "warning",
                "library-version",
                module.where(call),
                "torch 2 and later refuse torch.stft() of real numbers without return_complex",
                "pass return_complex=True, and use torch.view_as_real() on the result where the code expects pairs of "
                "real numbers",
            )
            return


def _names_of_numpy(code: Code, own: Collection[str]) -> Iterator[Finding]:
    """Yield an error for each name that the installed NumPy has lost: `np.float`.

    Source: the release notes of NumPy 1.24 and 2.0.
    """
    version = "" if "numpy" in own else code.facts.libraries.version("numpy")
    tables = ((_LOST_IN_1_24, _SINCE_1_24), (_LOST_UNTIL_2, _UNTIL_2), (_LOST_IN_2, _SINCE_2))
    lost = {name: new for table, versions in tables if versions.match(version) for name, new in table.items()}
    named = [
        (module, node)
        for module, node in (code.program.of(ast.Attribute) if lost else ())
        if node.attr in lost and code.program.name_of(node, module) == f"numpy.{node.attr}"
    ]
    is_given_back = any(not isinstance(node.ctx, ast.Load) for _, node in named) or any(
        name == "setattr" and call.args and code.program.name_of(call.args[0], module) == "numpy"
        for module, call, name in (code.program.calls if named else ())
    )
    for module, node in named if not is_given_back else ():
        is_used = code.reached.of(node, module) and not code.is_of_no_object(node, module)
        if is_used and not _is_optional(node, module):
            yield Finding(
                code.level_of(node, module),
                "library-version",
                module.where(node),
                f"the nodes have numpy {version}, which has no {node.attr}",
                f"use {lost[node.attr]}, or {_pin('numpy')}",
            )


def _views(code: Code) -> Iterator[Finding]:
    """Yield a warning for `correct[:k].view(-1)` of what `pred.t()` gave: torch refuses it since 1.7 if k > 1."""
    if _OLD_TORCH.match(code.facts.torch_version or ""):
        return
    for module, call in code.program.calls_of_attribute.get("view", ()):
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Subscript(value=ast.Name() as name, slice=ast.Slice(upper=end)))
            ):
                compared = last_value(name, module)
            case _:
                continue
        if not isinstance(end, ast.Name) or unparsed(call.args[-1] if call.args else call) != "-1":
            continue
        if compared is not None and _is_of_transposed(compared, module) and _counts_more(code, call, module):
            yield Finding(
                "warning",
                "library-version",
                module.where(call),
                f"torch 1.7 and later refuse {unparsed(call)}: the tensor is a transposed one",
                "use reshape() instead of view()",
            )
            return


def _is_of_transposed(compared: ast.expr, module: Module) -> bool:
    """Return whether an expression compares what was transposed before: `pred.eq(target)` after `pred = pred.t()`."""
    if not isinstance(compared, ast.Call) or not isinstance(compared.func, ast.Attribute) or compared.func.attr != "eq":
        return False
    made = seen_through(compared.func.value, module)
    return isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "t"


def _counts_more(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a function is given numbers of which one is more than 1: `accuracy(output, target, (1, 5))`."""
    function = module.function_of(call)
    callers = code.program.calls_to(function, module) if function is not None else ()
    given = [
        code.values.of(one, home)
        for home, caller in callers
        if code.reached.of(caller, home)
        for one in (*caller.args, *(keyword.value for keyword in caller.keywords))
        if isinstance(one, (ast.Tuple, ast.List))
    ]
    return any(is_count(number) and number > 1 for numbers in given if isinstance(numbers, list) for number in numbers)


def _is_one_thing(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a name means the same in all branches: no `if fast: from a import Norm`, `else: from b …`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and _is_bound_once(code, node.id, module, 0)


def _is_bound_once(code: Code, name: str, module: Module, depth: int) -> bool:
    if name in module.imports or (module.tree, name) in module.stores or depth > _DEEPEST:
        return False
    owner, _, last = module.aliases.get(name, "").rpartition(".")
    source = code.program.modules.get(owner)
    return source is None or _is_bound_once(code, last, source, depth + 1)


def _new_name(name: str, accepted: Collection[str]) -> str:
    """Return what an argument may be called now; empty if nothing is like it."""
    known = _RENAMED.get(name, "")
    alike = difflib.get_close_matches(name, accepted, 1, _ALIKE)
    return known if known in accepted else alike[0] if alike else ""


def _is_optional(node: ast.AST, module: Module) -> bool:
    """Return whether the program goes on if something fails, or asks for a version, or whether it is there, before."""
    tests = [above.test for above in module.above(node) if isinstance(above, (ast.If, ast.IfExp, ast.While))]
    tests += [part for above in module.above(node) if isinstance(above, ast.BoolOp) for part in above.values]
    return may_fail(node, module) or any(_ASKS.search(unparsed(test)) for test in tests)


def _pin(top: str) -> str:
    named = f"name the version of {top} that the code was written for in the file that `requirements` names"
    return named if top in _OF_C else f"{named} (if it works with the installed torch)"
