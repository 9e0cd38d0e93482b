"""What a model inside DistributedDataParallel is called by: the keys of its state, and its own attributes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.origins import last_value, origins
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import Module, class_around, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters, values_of_field
from jobsubmit.check.wrapper import is_unconditional, is_wrapped, names_of_wrappers
from jobsubmit.common.finding import Finding

# Code that changes the keys.
_CHANGES = frozenset(["consume_prefix_in_state_dict_if_present", "removeprefix", "module.", "_orig_mod."])
_OF_MODEL = re.compile(r"model|net(?:work)?$|generator|backbone", re.IGNORECASE)
# What DistributedDataParallel has itself or by torch.nn.Module, beside its methods.
OWN_NAMES = frozenset(
    [
        *("module", "device", "device_ids", "output_device", "process_group", "dim", "training", "reducer", "logger"),
        *(
            "add_module",
            "apply",
            "bfloat16",
            "buffers",
            "children",
            "compile",
            "cpu",
            "cuda",
            "double",
            "eval",
            "float",
        ),
        *("extra_repr", "forward", "get_buffer", "get_parameter", "get_submodule", "half", "ipu", "join", "join_hook"),
        *("load_state_dict", "modules", "mtia", "named_buffers", "named_children", "named_modules", "named_parameters"),
        *("no_sync", "parameters", "register_buffer", "register_comm_hook", "register_forward_hook", "register_module"),
        *("register_backward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_parameter"),
        *("register_full_backward_pre_hook", "register_load_state_dict_post_hook", "register_state_dict_post_hook"),
        *("register_load_state_dict_pre_hook", "register_state_dict_pre_hook", "requires_grad_", "scatter", "gather"),
        *("set_extra_state", "get_extra_state", "set_submodule", "share_memory", "state_dict", "to", "to_empty"),
        *("to_kwargs", "train", "type", "will_sync_module_buffers", "xpu", "zero_grad", "dump_patches"),
        *("call_super_init", "broadcast_buffers", "find_unused_parameters", "require_backward_grad_sync"),
        *("T_destination", "bucket_bytes_cap", "device_type", "gradient_as_bucket_view", "is_multi_device_module"),
        *("join_device", "join_process_group", "lazy_bucket_allocation", "mixed_precision", "parameters_to_ignore"),
        *("require_forward_param_sync", "skip_all_reduce_unused_params", "static_graph", "broadcast_bucket_size"),
        *("use_side_stream_for_tensor_copies", "modules_buffers", "named_module_buffers", "forward_sync_buffers"),
    ]
)
# What DeepSpeed's wrapper has instead.
_OF_ENGINE = frozenset(
    [
        *("optimizer", "lr_scheduler", "backward", "step", "save_checkpoint", "load_checkpoint", "global_rank"),
        *("local_rank", "global_steps", "micro_steps", "gradient_accumulation_steps", "get_global_grad_norm"),
        *("is_gradient_accumulation_boundary", "cur_scale", "loss_scale", "save_16bit_model"),
    ]
)


_DEEPEST = 6
_FILE = re.compile(r"[\w.-]+\.(?:pth?|ckpt|bin|tar|pkl|safetensors)$")


class _State(NamedTuple):
    """A state that is saved or loaded: under which key of the checkpoint, and whether the model is wrapped."""

    key: str
    is_wrapped: bool
    call: ast.Call
    module: Module


def check_wrapped_state(code: Code) -> Iterator[Finding]:
    """Yield a warning for a state whose keys do not fit, and an error for attributes that only the model inside has."""
    if not code.wraps_models or code.world_size == 1:
        return
    yield from _other_keys(code)
    yield from _copied_keys(code)
    yield from _attributes_inside(code)


def _other_keys(code: Code) -> Iterator[Finding]:
    if _CHANGES & (code.names_in_use | {keyword.arg for _, keyword in code.program.of(ast.keyword)}):
        return
    saved: dict[str, list[_State]] = {}
    for state in _saved(code):
        saved.setdefault(state.key, []).append(state)
    for loaded in _loaded(code):
        states = _of_same_file(code, loaded, saved.get(loaded.key, []))
        if states and all(state.is_wrapped is not loaded.is_wrapped for state in states):
            saving = states[0].module.where(states[0].call)
            yield Finding(
                "warning",
                "other-keys",
                loaded.module.where(loaded.call),
                f"the keys of this state begin with `module.`, because {saving} saves the wrapper; the model that "
                "loads it has keys without that: torch refuses to load it"
                if states[0].is_wrapped
                else f"the keys of this state do not begin with `module.`, because {saving} saves the model inside the "
                "wrapper; the wrapper that loads it has keys with that: torch refuses to load it",
                "save and load the model inside the wrapper: model.module.state_dict()",
            )
            return


def _copied_keys(code: Code) -> Iterator[Finding]:
    """Yield a warning where a model that is no wrapper, at least in one branch, gets the state of a wrapper.

    `teacher_without_ddp.load_state_dict(student.state_dict())`
    """
    for module, call in code.program.calls_of_attribute.get("load_state_dict", ()):
        given = call.args[0] if len(call.args) == 1 and not call.keywords else None
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
        if given is None or not _is_call_of(given, "state_dict") or not isinstance(target, ast.Name):
            continue
        source = given.func.value if isinstance(given.func, ast.Attribute) else target
        stores = module.stores.get((module.scope_of(target), target.id), ())
        inner = [one for one in stores if getattr(assigned_to(one, module), "attr", "") == "module"]
        if inner and is_wrapped(code, source, module) and code.reached.of(call, module):
            yield Finding(
                "warning",
                "other-keys",
                module.where(call),
                "the keys of this state begin with `module.`, because it is that of a wrapper; the model that loads it "
                "has keys without that: torch refuses to load it",
                "load the state of what is inside the wrapper: model.module.state_dict()",
            )
            return


def _of_same_file(code: Code, loaded: _State, states: list[_State]) -> list[_State]:
    """Return the states that may be in the file that is loaded, by the names of files that are written down."""
    files = _files_of(code, loaded.call, loaded.module)
    own = {one: _files_of(code, one.call, one.module) for one in states}
    sure = [one for one in states if own[one] & files]
    return sure or [one for one in states if not files or not own[one]]


def _files_of(code: Code, call: ast.Call, module: Module) -> set[str]:
    """Return the names of the files that a state is saved to, or loaded from, if they are written down."""
    saving = next((above for above in module.above(call) if _is_call_of(above, "save")), None)
    if saving is not None:
        paths = [given for given in saving.args if call not in walk(given)]
    else:
        parts = {part for given in call.args for _, part in origins(code, given, module)}
        loads = (one for part in parts for one in walk(part) if _is_call_of(one, "load"))
        paths = [given for load in loads for given in load.args[:1]]
    texts = {text for path in paths for text in _ends_of(code, path, module)}
    return {found[0] for text in texts if (found := _FILE.search(text))}


def _ends_of(code: Code, path: ast.expr | None, module: Module, depth: int = 0) -> Iterator[str]:
    """Yield the texts with which a path may end: `folder / "last.pth"`, or an entry of what a loop goes through."""
    if depth > _DEEPEST:
        return
    ends: list[tuple[Module, ast.expr | None]] = []
    match path:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name():
            loops = (above for above in module.above(path) if isinstance(above, ast.For))
            entries = [loop.iter for loop in loops if unparsed(loop.target) == path.id]
            ends = [(module, entries[0] if entries else last_value(path, module))]
            ends += _given_as(code, path, module) if ends[0][1] is None else []
        case ast.Attribute():
            ends = values_of_field(code.program, path.attr)
        case ast.BinOp(op=ast.Mod()):
            ends = [(module, path.left)]
        case ast.BinOp():
            ends = [(module, path.right)]
        case ast.Call(func=ast.Attribute(attr="format", value=text)):
            ends = [(module, text)]
        case ast.JoinedStr(values=parts) | ast.Call(args=parts) if parts:
            ends = [(module, parts[-1])]
        case ast.Call(func=ast.Attribute(value=owner)):
            ends = [(module, owner)]
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            ends = [(module, entry) for entry in entries]
    for home, end in ends:
        yield from _ends_of(code, end, home, depth + 1)


def _given_as(code: Code, name: ast.Name, module: Module) -> list[tuple[Module, ast.expr | None]]:
    """Return what the calls of a function give for a parameter."""
    function = module.function_of(name)
    if function is None or name.id not in parameters(function):
        return []
    return [(home, given_for(call, function, name.id)) for home, call in code.program.calls_to(function, module)]


def _is_call_of(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    """Return whether a node is a call of a function of such a name: `torch.save`, `save_on_master`."""
    return isinstance(node, ast.Call) and unparsed(node.func).rpartition(".")[2].startswith(name)


def _saved(code: Code) -> Iterator[_State]:
    for module, call, _ in code.reached.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "state_dict" or call.args or call.keywords:
            continue
        found = is_wrapped(code, call.func.value, module)
        if found is not None:
            yield _State(_key_of(call, module), found, call, module)


def _key_of(value: ast.AST, module: Module) -> str:
    """Return the key of a dictionary that a value is given for, if it stands in one."""
    parent = module.parents.get(value)
    if isinstance(parent, ast.Dict):
        key = parent.keys[parent.values.index(value)] if value in parent.values else None
        return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
    if isinstance(parent, ast.keyword):
        return parent.arg or ""
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return ""


def _loaded(code: Code) -> Iterator[_State]:
    for module, call, _ in code.reached.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "load_state_dict" or len(call.args) != 1:
            continue
        strict = argument(call, "strict")
        is_strict = strict is None or code.values.of(strict, module) is True
        is_resumed = is_strict and not _is_for_pretrained(call, module)
        key = _key_read(call.args[0], module) if is_resumed else None
        found = is_wrapped(code, call.func.value, module) if key is not None else None
        if key is not None and found is not None:
            yield _State(key, found, call, module)


def _is_for_pretrained(call: ast.Call, module: Module) -> bool:
    """Return whether a condition has a state loaded that was trained elsewhere: `if pretrained:`."""
    tests = (above.test for above in module.above(call) if isinstance(above, ast.If))
    return any("pretrained" in unparsed(test) for test in tests)


def _key_read(given: ast.expr, module: Module) -> str | None:
    """Return the key of a checkpoint that is read: empty for the whole of it; None if it is not a checkpoint."""
    if isinstance(given, ast.Name):
        made = last_value(given, module)
        return None if made is None or isinstance(made, ast.Name) else _key_read(made, module)
    if isinstance(given, ast.Subscript) and isinstance(given.slice, ast.Constant):
        return str(given.slice.value)
    is_load = isinstance(given, ast.Call) and unparsed(given.func).rpartition(".")[2] == "load"
    return "" if is_load else None


def _attributes_inside(code: Code) -> Iterator[Finding]:
    """Yield a finding for an attribute of the model that is asked of the wrapper, which has none of that name.

    One that is surely asked comes before others.
    """
    yield from sorted(_asked_of_wrapper(code), key=lambda finding: finding.level)[:1]


def _asked_of_wrapper(code: Code) -> Iterator[Finding]:
    stores = [store for places in code.program.attribute_stores.values() for _, store in places]
    given = {store.attr for store in stores if spelled(store.value) != "self"}
    members = set(code.program.methods) | {store.attr for store in stores if spelled(store.value) == "self"}
    may_exist = given | OWN_NAMES | _looked_up(code) | (_OF_ENGINE if "deepspeed" in code.names else set())
    is_sure = all(code.reached.is_sure(call, module) for module, call, name in code.reached.calls if is_ddp(name))
    names = names_of_wrappers(code)
    for module, node in code.program.of(ast.Attribute):
        is_candidate = isinstance(node.ctx, ast.Load) and node.attr not in may_exist and not node.attr.startswith("_")
        owner = node.value
        named = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if not is_candidate or named not in names:
            continue
        if not code.reached.of(node, module) or not is_wrapped(code, node.value, module):
            continue
        if _is_only_passed_on(code, node, module):
            continue
        is_sure_here = node.attr in members or is_unconditional(node, module)  # else it may be for another wrapper
        if is_sure_here and not is_guarded(node, module):
            yield Finding(
                code.level_of(node, module) if is_sure else "warning",
                "wrapped-attribute",
                module.where(node),
                f"{unparsed(node.value)} is the wrapper DistributedDataParallel here, which has no attribute "
                f"{node.attr}: only the model inside may have it",
                f"use {unparsed(node.value)}.module.{node.attr}",
            )


def _is_only_passed_on(code: Code, node: ast.Attribute, module: Module) -> bool:
    """Return whether a method asks for its own name, `self.model.infer()` in `infer`, and none of its class is called.

    Then all calls of this name may be of the model.
    """
    method, owner = module.function_of(node), class_around(node, module)
    if method is None or owner is None or method.name != node.attr or owner.name in code.program.inherited:
        return False
    calls = code.program.calls_of_attribute.get(node.attr, ())
    receivers = [spelled(call.func.value) for _, call in calls if isinstance(call.func, ast.Attribute)]
    return all(_OF_MODEL.search(one.rpartition(".")[2]) for one in receivers)


def _looked_up(code: Code) -> frozenset[str]:
    """Return the attributes that may be set or looked for by names; all texts, if those of a wrapper are computed."""
    found: set[str] = set()
    for module, call, name in code.program.calls:
        if name not in ("hasattr", "getattr", "setattr") or len(call.args) < 2:  # noqa: PLR2004 - object and name
            continue
        attribute = call.args[1]
        if isinstance(attribute, ast.Constant):
            found.add(str(attribute.value))
        elif name == "setattr" and is_wrapped(code, call.args[0], module):
            return code.texts
    return frozenset(found)


def is_guarded(node: ast.Attribute, module: Module) -> bool:
    """Return whether a condition decides whether an attribute is read, and seems to ask whether the object is wrapped.

    It names the object, or its other branch reads the model inside.
    """
    owner = spelled(node.value)
    inner = [one for one in module.of(ast.Attribute) if one.attr == "module" and spelled(one.value) == owner]
    around_inner = {above for one in inner for above in (one, *module.above(one))}
    own = {node, *module.above(node)}
    for above in module.above(node):
        if isinstance(above, ast.Try):
            return True
        if isinstance(above, (ast.If, ast.IfExp)):
            others = (
                one
                for one in walk(above.test)
                if getattr(module.parents.get(one), "attr", "") not in (node.attr, "training")
            )
            if _others(above, own) & around_inner or any(spelled(one) == owner for one in others):
                return True
    return False


def _others(choice: ast.If | ast.IfExp, own: set[ast.AST]) -> set[ast.AST]:
    """Return what stands in the branches of a choice in which something else does not."""
    branches = [choice.body, choice.orelse] if isinstance(choice, ast.If) else [[choice.body], [choice.orelse]]
    return {one for branch in branches if own.isdisjoint(branch) for one in branch}
