"""The boot file and the local modules that it imports: what their names mean, and where fields are set."""

from __future__ import annotations

import ast
import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from jobsubmit.check.program.configurator import configurator_of
from jobsubmit.check.program.module import (
    FUNCTIONS,
    MAIN,
    Definition,
    Function,
    Module,
    class_around,
    is_of_self,
    is_property,
    own_method,
    spelled,
    unparsed,
)
from jobsubmit.check.program.tree import walk

_LONGEST_CHAIN = 20
_OF_SETATTR = 3  # arguments
_MOST_ABSTRACT = 2  # statements of a method that does nothing: its description, and the error
MOST_CONFIGURATIONS, LONGEST_CONFIGURATION = 500, 64 << 10
CONFIGURATION = re.compile(r"conf|cfg|arg|param|option|setting", re.IGNORECASE)
_READS = (
    *("keys", "values", "items", "get", "copy", "index", "count", "join", "format", "startswith", "endswith", "split"),
    *("rsplit", "splitlines", "partition", "rpartition", "strip", "lstrip", "rstrip", "lower", "upper", "replace"),
)


# Methods that objects of torch and of Python have as well.
_OF_LIBRARIES = frozenset(
    [
        *(name for kind in (dict, list, set, str, bytes) for name in dir(kind)),
        *("step", "train", "eval", "forward", "backward", "to", "cuda", "cpu", "half", "float", "double", "apply"),
        *("state_dict", "load_state_dict", "zero_grad", "parameters", "no_sync", "detach", "item", "mean", "sum"),
        *("save", "load", "read", "write", "close", "flush", "open", "reset", "run", "start", "stop", "log", "send"),
        *("info", "warning", "error", "debug", "put", "get_state", "set_epoch", "sample", "fit", "predict", "evaluate"),
        *("all_reduce", "broadcast", "gather", "all_gather", "reduce", "barrier", "wait", "reduce_scatter", "main"),
    ]
)


_OF_MODELS = ("state_dict", "load_state_dict", "parameters", "named_parameters", "zero_grad")


@dataclass(frozen=True, eq=False)
class Program:
    """The modules that a boot file leads to; `roots` are the folders its imports are looked up in.

    `broken` are the files among them that are not Python, by path; `unread` are modules that are imported and are among
    the files, but in no root: the nodes may have them installed. `configurations` are the files with values, by path,
    and `sources` those with Python. `boot_names` are those by which other modules import the boot file.
    `imported_by_text` are the modules that each module may import by a computed name. `looked_up` are expressions that
    mean something by a computed name, with its whole name. `folder` is the one below the code directory that the
    program is started in.
    """

    boot: Module
    modules: Mapping[str, Module]
    roots: tuple[str, ...]
    paths: frozenset[str] = field(repr=False)
    broken: Mapping[str, SyntaxError] = field(default_factory=dict, repr=False)
    unread: frozenset[str] = field(default=frozenset(), repr=False)
    configurations: Mapping[str, str] = field(default_factory=dict, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    boot_names: frozenset[str] = frozenset()
    imported_by_text: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    looked_up: Mapping[ast.AST, str] = field(default_factory=dict, repr=False)
    folder: str = ""

    def of(self, *types: type[ast.AST]) -> Sequence[tuple[Module, Any]]:
        """Return every node of some types, with its module."""
        if types not in self._by_types:
            self._by_types[types] = [(module, node) for module in self.modules.values() for node in module.of(*types)]
        return self._by_types[types]

    @cached_property
    def _by_types(self) -> dict[tuple[type[ast.AST], ...], list[tuple[Module, Any]]]:
        """Return the results of `of` so far."""
        return {}

    def located(self, path: str) -> str:
        """Return where in the code directory a path is that the program uses, relative to the folder it starts in."""
        return posixpath.normpath(posixpath.join(self.folder, path))

    def file(self, path: str, files: Mapping[str, str]) -> str:
        """Return the file here that a path of the program means, among some by their paths; empty if there is none.

        The path begins in the folder that the program is started in, or, like `__file__`, in the code directory.
        """
        return files.get(self.located(path)) or files.get(posixpath.normpath(path), "")

    @cached_property
    def calls(self) -> Sequence[tuple[Module, ast.Call, str]]:
        """Return every call, with the whole name of what is called; none of what only another start would execute."""
        return [
            (module, call, self.name_of(call.func, module))
            for module in self.modules.values()
            for call in module.of(ast.Call)
            if module is self.boot or call not in module.of_own_start
        ]

    @cached_property
    def calls_of(self) -> Mapping[str, Sequence[tuple[Module, ast.Call]]]:
        """Return the calls of each whole name."""
        found: dict[str, list[tuple[Module, ast.Call]]] = {}
        for module, call, name in self.calls:
            found.setdefault(name, []).append((module, call))
        return found

    @cached_property
    def functions(self) -> Mapping[str, Sequence[Function]]:
        """Return the functions of all modules by name, those inside others included."""
        found: dict[str, list[Function]] = {}
        for module in self.modules.values():
            for name, functions in module.functions.items():
                found.setdefault(name, []).extend(functions)
        return found

    def calls_to(self, function: Function, module: Module) -> Sequence[tuple[Module, ast.Call]]:
        """Return the calls of a function: of a method that no other class has, those by its name, else by `self`."""
        found = self.calls_of.get(module.called_as(function), ())
        owner = module.parents.get(function)
        if function.name == "__call__" and isinstance(owner, ast.ClassDef):
            return self.calls_of_objects.get(f"{module.name}.{owner.name}", ())
        if not found and (outer := module.function_of(function)) is not None:
            inner = (call for call in module.named_calls.get(function.name, ()) if outer in module.above(call))
            return [(module, call) for call in inner]
        is_only = len(self.concrete_methods.get(function.name, ())) == 1 and function.name not in _OF_LIBRARIES
        if found or not isinstance(owner, ast.ClassDef):
            return found
        if not is_only:
            every = self.calls_of_attribute.get(function.name, ())
            is_of_self_only = owner.name not in self.inherited and all(is_of_self(call.func) for _, call in every)
            return module.own_calls.get((owner, function.name), ()) if is_of_self_only else ()
        return self.calls_of_attribute.get(function.name, ())

    @cached_property
    def calls_of_objects(self) -> Mapping[str, Sequence[tuple[Module, ast.Call]]]:
        """Return the calls of variables that hold an object, by the name of its class: `log = Log()`, `log(3)`."""
        found: dict[str, list[tuple[Module, ast.Call]]] = {}
        for module, call, _ in self.calls:
            made = module.assigned_calls.get(call.func.id, ()) if isinstance(call.func, ast.Name) else ()
            names = {self.name_of(one.func, module) for one in made}
            if len(names) == 1:
                found.setdefault(names.pop(), []).append((module, call))
        return found

    @cached_property
    def calls_of_attribute(self) -> Mapping[str, Sequence[tuple[Module, ast.Call]]]:
        """Return the calls of each attribute of objects: `model.fit()`, and not `os.remove()`."""
        found: dict[str, list[tuple[Module, ast.Call]]] = {}
        for module, call, name in self.calls:
            if isinstance(call.func, ast.Attribute) and self.definition(name) is None:
                if not self.is_of_library(call.func.value, module):
                    found.setdefault(call.func.attr, []).append((module, call))
        return found

    @cached_property
    def stored_attributes(self) -> frozenset[str]:
        """Return the attributes that anything sets."""
        return frozenset(self.attribute_stores)

    @cached_property
    def attribute_stores(self) -> Mapping[str, Sequence[tuple[Module, ast.Attribute]]]:
        """Return the places that set each attribute, of any object."""
        found: dict[str, list[tuple[Module, ast.Attribute]]] = {}
        for module, node in self.of(ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                found.setdefault(node.attr, []).append((module, node))
        return found

    @cached_property
    def attribute_loads(self) -> Mapping[str, Sequence[ast.Attribute]]:
        """Return the uses of each attribute, of any object."""
        found: dict[str, list[ast.Attribute]] = {}
        for _, node in self.of(ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                found.setdefault(node.attr, []).append(node)
        return found

    @cached_property
    def uses(self) -> Counter[str]:
        """Return how often each name stands in the program, also as an attribute."""
        names = Counter(node.id for _, node in self.of(ast.Name))
        return names + Counter(node.attr for _, node in self.of(ast.Attribute))

    @cached_property
    def named_values(self) -> Mapping[str, Sequence[tuple[Module, ast.expr]]]:
        """Return the values that objects get by each name, which takes any: SimpleNamespace, `class HParams`."""
        found: dict[str, list[tuple[Module, ast.expr]]] = {}
        for module, call, name in self.calls:
            for keyword in call.keywords if self._takes_any_name(name) else ():
                if keyword.arg is not None:
                    found.setdefault(keyword.arg, []).append((module, keyword.value))
        return found

    def _takes_any_name(self, name: str) -> bool:
        """Return whether a class makes attributes of all that it is given by name."""
        if name.endswith("SimpleNamespace"):
            return True
        found = self.definition(name)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return False
        maker = own_method(found[1], "__init__")
        return (
            maker is not None
            and maker.args.kwarg is not None
            and any(isinstance(node, ast.Attribute) and node.attr == "__dict__" for node in walk(maker))
        )

    @cached_property
    def changes(self) -> Mapping[str, Sequence[tuple[Module, ast.AST]]]:
        """Return what changes containers after they were made, by the names of their variables and fields."""
        found: dict[str, list[tuple[Module, ast.AST]]] = {}
        for module, node in self.of(ast.Subscript, ast.Call, ast.AugAssign):
            target: ast.AST | None = None
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                target = node.value
            elif is_set_by_name(node):
                target = node.args[0]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = None if _only_reads(node, node.func, module) else node.func.value
            elif isinstance(node, ast.AugAssign):
                target = node.target
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, (ast.Name, ast.Attribute)):
                name = target.id if isinstance(target, ast.Name) else target.attr
                found.setdefault(name, []).append((module, node))
        return found

    @cached_property
    def dynamic(self) -> frozenset[str]:
        """Return the modules whose variables may be set indirectly; all of them if `setattr` has some unknown one."""
        found: set[str] = set()
        for module, call, name in self.calls:
            if self._sets_variables(call, name, module):
                target = self.name_of(call.args[0], module) if name == "setattr" else module.name
                found |= {target} if target in self.modules else {*self.modules}
        return frozenset(found)

    def _sets_variables(self, call: ast.Call, name: str, module: Module) -> bool:
        """Return whether a call may set variables of a module; `setattr` sets those of other objects, too."""
        if name == "setattr" and call.args:
            owner = call.args[0]
            is_ours = self.name_of(owner, module) in self.modules
            return is_ours or any(word in unparsed(owner) for word in ("modules", "import_module", "__import__"))
        if name != "globals":
            return name == "exec" and configurator_of(self, module) is not call
        use = module.parents.get(call)
        if isinstance(use, ast.Subscript):
            return not isinstance(use.ctx, ast.Load)
        return not (isinstance(use, ast.Compare) or (isinstance(use, ast.Attribute) and use.attr in _READS))

    @cached_property
    def set_by_name(self) -> frozenset[str]:
        """Return the fields of the classes whose fields are set by names that are computed.

        These are classes with a method that does so, their bases, and all configurations if a function sets the fields
        of one that it is given.
        """
        classes = [node for _, node in self.of(ast.ClassDef)]
        setters = [(module, node) for module, node in self.of(ast.Call, ast.Subscript) if _sets_any_field(node)]
        owners = [owner for module, node in setters if (owner := class_around(node, module)) is not None]
        if any(class_around(node, module) is None for module, node in setters):
            owners += [one for one in classes if CONFIGURATION.search(one.name)]
        return frozenset(name for owner in self.with_bases(owners) for name in _fields_set_in(owner))

    def with_bases(self, classes: Iterable[ast.ClassDef]) -> Sequence[ast.ClassDef]:
        """Return classes, and those of the program that they are based on, by their names."""
        found = [*classes]
        by_name = {node.name: node for _, node in self.of(ast.ClassDef)}
        for one in found:  # those that are added here, too
            bases = (by_name.get(spelled(base).rpartition(".")[2]) for base in one.bases)
            found += [base for base in bases if base is not None and base not in found]
        return found

    @cached_property
    def texts(self) -> frozenset[str]:
        """Return every text in the program, but for the names of fields that `hasattr` and `getattr` are given."""
        asked = {call.args[1] for _, call, name in self.calls if name in ("hasattr", "getattr") and call.args[1:]}
        texts = (node for _, node in self.of(ast.Constant) if isinstance(node.value, str))
        return frozenset(node.value for node in texts if node not in asked)

    @cached_property
    def variables_set(self) -> frozenset[str]:
        """Return the variables of the environment that the program sets by `os.environ[name] = …`."""
        return frozenset(
            str(node.slice.value)
            for module, node in self.of(ast.Subscript)
            if isinstance(node.ctx, ast.Store)
            and isinstance(node.slice, ast.Constant)
            and self.name_of(node.value, module) == "os.environ"
        )

    @cached_property
    def configured_names(self) -> frozenset[str]:
        """Return every word in the configurations: it may be the name of a field."""
        found: set[str] = set()
        for source in itertools.islice(self.configurations.values(), MOST_CONFIGURATIONS):
            with suppress(OSError), Path(source).open(errors="replace") as stream:
                found.update(re.findall(r"\w+", stream.read(LONGEST_CONFIGURATION)))
        return frozenset(found)

    @cached_property
    def tops(self) -> frozenset[str]:
        """Return the first parts of the names of the modules."""
        return frozenset(name.partition(".")[0] for name in self.modules)

    @cached_property
    def inherited(self) -> frozenset[str]:
        """Return the names of the classes that others inherit from."""
        return frozenset(spelled(base).rpartition(".")[2] for _, node in self.of(ast.ClassDef) for base in node.bases)

    @cached_property
    def methods(self) -> Mapping[str, Sequence[tuple[Module, ast.ClassDef, Function]]]:
        """Return the methods of all classes at the top of modules, by their names."""
        found: dict[str, list[tuple[Module, ast.ClassDef, Function]]] = {}
        for module in self.modules.values():
            classes = [owner for owner in module.definitions.values() if isinstance(owner, ast.ClassDef)]
            for owner in classes:
                for item in owner.body:
                    if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        found.setdefault(item.name, []).append((module, owner, item))
        return found

    @cached_property
    def concrete_methods(self) -> Mapping[str, Sequence[tuple[Module, ast.ClassDef, Function]]]:
        """Return the same without those that only demand a method of the classes which are derived from theirs."""
        return {name: [one for one in found if not _is_abstract(one[2])] for name, found in self.methods.items()}

    @cached_property
    def properties(self) -> Mapping[str, Sequence[tuple[Module, ast.ClassDef, Function]]]:
        """Return the methods that are read like attributes, by their names."""
        found = {name: [one for one in methods if is_property(one[2])] for name, methods in self.methods.items()}
        return {name: methods for name, methods in found.items() if methods}

    @cached_property
    def with_properties(self) -> frozenset[ast.AST]:
        """Return the expressions in which a property may be read."""
        found: set[ast.AST] = set()
        for module, read in self.of(ast.Attribute) if self.properties else ():
            for node in itertools.chain([read], module.above(read)) if read.attr in self.properties else ():
                if node in found or isinstance(node, ast.stmt):
                    break
                found.add(node)
        return frozenset(found)

    def name_of(self, node: ast.AST, module: Module) -> str:
        """Return the whole dotted name of an expression, such as torch.distributed.barrier; empty if it has none."""
        if not isinstance(node, (ast.Name, ast.Attribute)) and node not in self.looked_up:
            return ""
        found = self._names.get(node)
        if found is None:
            found = self._names[node] = self._name_of(node, module)
        return found

    @cached_property
    def _names(self) -> dict[ast.AST, str]:
        """Return the results of `name_of` so far: most names are asked for a dozen times."""
        return {}

    def _name_of(self, node: ast.AST, module: Module) -> str:
        if self.looked_up and node in self.looked_up:
            return self.looked_up[node]
        if isinstance(node, ast.Attribute):
            base = self.name_of(node.value, module)
            if base in self.modules or base in self.boot_names:
                return self._followed(f"{base}.{node.attr}")
            return f"{base}.{node.attr}" if base else ""
        if not isinstance(node, ast.Name):
            return ""
        if node.id in module.definitions:
            return f"{module.name}.{node.id}"
        if node.id == "cls" and (owner := class_around(node, module)) is not None:
            return f"{module.name}.{owner.name}"
        if node.id in module.aliases:
            return self.imported(node, module)[-1]
        for star in module.stars:
            if (found := self._given_by_star(star, node.id, 0)) or star.startswith("torch"):
                return found or f"{star}.{node.id}"
        return node.id

    def imported(self, node: ast.Name, module: Module) -> list[str]:
        """Return the whole names that an imported name may have here: of the innermost function that imports it."""
        imports = module.imports.get(node.id, ())
        scopes = [above for above in module.above(node) if isinstance(above, FUNCTIONS)] if imports else []
        for scope in (*scopes, module.tree):
            if own := [name for statement, name in imports if module.scope_of(statement) is scope]:
                return [self._followed(name) for name in own]
        return [self._followed(module.aliases[node.id])]

    def imported_from(self, owner: str, name: str) -> str:
        """Return the whole name of what a module has under a name, also where it imports that from elsewhere."""
        return self._followed(f"{owner}.{name}")

    def _followed(self, name: str, depth: int = 0) -> str:
        """Return what a name of a local module means where that module imported it from elsewhere."""
        owner, _, last = name.rpartition(".")
        if owner in self.boot_names:
            name = f"{MAIN}.{last}"
        module = self.boot if owner in self.boot_names else self.modules.get(owner)
        if module is None or last in module.definitions or depth > _LONGEST_CHAIN:
            return name
        if last in module.aliases:
            return self._followed(module.aliases[last], depth + 1)
        return next((found for star in module.stars if (found := self._given_by_star(star, last, depth + 1))), name)

    def _given_by_star(self, star: str, name: str, depth: int) -> str:
        """Return what `from star import *` means by a name; empty if that local module gives no such name."""
        module = self.modules.get(star)
        found = self._followed(f"{star}.{name}", depth) if module is not None else ""
        is_given = module is not None and (name in module.aliases or self.definition(found) is not None)
        return found if is_given else ""

    def definition(self, name: str) -> tuple[Module, Definition] | None:
        """Return the function or class of a local module that a whole name means."""
        owner, _, last = name.rpartition(".")
        module = self.modules.get(owner)
        return (module, module.definitions[last]) if module and last in module.definitions else None

    def called(self, call: ast.Call, module: Module) -> tuple[Module, Definition] | None:
        """Return what a call calls: a function or class by its name, or the only method of that name."""
        found = self.definition(self.name_of(call.func, module))
        if found is None and isinstance(call.func, ast.Attribute) and not self.is_of_library(call.func.value, module):
            methods = self.concrete_methods.get(call.func.attr, ())
            if len(methods) == 1 and not may_be_of_model(call.func, methods[0][1]):
                return methods[0][0], methods[0][2]
            return None
        inner = module.inner_function(call.func) if found is None and isinstance(call.func, ast.Name) else None
        return (module, inner) if inner is not None else found

    def own_method_called(self, call: ast.Call, module: Module) -> tuple[Module, Function] | None:
        """Return the method that `self.method()` calls, if the class around defines it, and no other is based on it."""
        owner = class_around(call, module) if is_of_self(call.func) else None
        if owner is None or owner.name in self.inherited or not isinstance(call.func, ast.Attribute):
            return None
        name = call.func.attr
        methods = [one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == name]
        return (module, methods[0]) if len(methods) == 1 else None

    def is_of_library(self, node: ast.AST, module: Module) -> bool:
        """Return whether an object surely has no methods of the program: `os.path`, a text."""
        root = self.name_of(node, module).partition(".")[0]
        is_imported = bool(root) and spelled(node).partition(".")[0] in module.aliases
        return isinstance(node, (ast.Constant, ast.JoinedStr)) or (is_imported and root not in self.tops)

    def is_made_by_library(self, node: ast.AST, module: Module) -> bool:
        """Return whether a variable holds only what calls of libraries return: `bar = tqdm(…)`."""
        calls = module.assigned_calls.get(node.id, ()) if isinstance(node, ast.Name) else ()
        return bool(calls) and all(self.is_of_library(call.func, module) for call in calls)

    def property_of(self, node: ast.Attribute) -> tuple[Module, Function] | None:
        """Return the function behind an attribute: the only property of that name."""
        found = self.methods.get(node.attr, ())
        return (found[0][0], found[0][2]) if len(found) == 1 and is_property(found[0][2]) else None

    def imports(self, *packages: str) -> bool:
        """Return whether any module imports one of these packages."""
        return not self._imported.isdisjoint(packages)

    @cached_property
    def _imported(self) -> frozenset[str]:
        """Return the whole name of all that is imported, and of each package above it."""
        names = {name for one in self.modules.values() for name in (*one.aliases.values(), *one.stars)}
        parted = (name.split(".") for name in names)
        return frozenset(".".join(parts[:length]) for parts in parted for length in range(1, len(parts) + 1))


def may_be_of_model(method: ast.Attribute, owner: ast.ClassDef) -> bool:
    """Return whether a method that every model and optimizer has is asked of an object that is not named as its class.

    `model.state_dict()`, where only the class AppState has a method of this name.
    """
    name = spelled(method.value).rpartition(".")[2].replace("_", "").lower()
    return method.attr in _OF_MODELS and name != "self" and (not name or name not in owner.name.lower())


def is_set_by_name(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether a node is `setattr(object, name, value)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "setattr"
        and len(node.args) == _OF_SETATTR
    )


def _is_abstract(method: Function) -> bool:
    """Return whether a method is there for others to define it: all that it does is to raise NotImplementedError."""
    last = method.body[-1]
    return isinstance(last, ast.Raise) and len(method.body) <= _MOST_ABSTRACT and "NotImplemented" in unparsed(last)


def _only_reads(call: ast.Call, method: ast.Attribute, module: Module) -> bool:
    """Return whether a method leaves what a container holds as it is; of a mapping, it may take entries out."""
    keys: list[ast.expr] = call.args[:1] if method.attr == "pop" else []
    loops = [loop for above in module.above(call) for loop in getattr(above, "generators", ())] if keys else []
    for loop in loops:  # (args.pop(key) for key in ("model", "data"))
        if spelled(loop.target) == spelled(keys[0]):
            keys = getattr(loop.iter, "elts", keys)
    takes_entries = bool(keys) and all(isinstance(getattr(key, "value", None), str) for key in keys)
    return method.attr in _READS or takes_entries


def _sets_any_field(node: ast.Call | ast.Subscript) -> bool:
    """Return whether a node sets a field of `self`, or of a configuration, by the name in a variable."""
    if isinstance(node, ast.Call):
        target = spelled(node.args[0]) if spelled(node.func) == "setattr" and len(node.args) > 1 else ""
        return bool(target == "self" or CONFIGURATION.search(target)) and isinstance(node.args[1], ast.Name)
    is_store = isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Name)
    return is_store and spelled(node.value) == "self.__dict__"


def _fields_set_in(owner: ast.ClassDef) -> Iterator[str]:
    """Yield the fields that a class declares, or sets in its methods."""
    for node in walk(owner):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and spelled(node.value) == "self":
            yield node.attr
    for statement in owner.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
