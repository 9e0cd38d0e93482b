"""Compare how a boot file gets its processes and ranks with what its mode provides."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import FSDP, INIT, Code, is_count, is_ddp
from jobsubmit.check.parsers.accepted import Option
from jobsubmit.check.program.calls import SPAWNS, Reach, argument
from jobsubmit.check.program.module import FUNCTIONS, Module, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN, Several
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to
from jobsubmit.check.start.environment import WITH_TORCHRUN
from jobsubmit.common.finding import Finding

_PICKS_DEVICE = ("set_device", "device", "cuda", "to")
_ASKS_FOR_GROUP = re.compile(r"initiali[sz]ed\(")
_MAKE_GROUPS = (
    "init_process_group",
    "init_device_mesh",
    "init_distributed",
    "initialize_model_parallel",
    "_init_distributed",
)
_STARTS_NOTHING = frozenset(
    [
        *("torch", "torchvision", "torchaudio", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "PIL", "cv2"),
        *("tqdm", "yaml", "wandb", "tensorboard", "tensorboardX", "einops", "h5py", "rich", "loguru", "termcolor"),
        *("timm", "omegaconf", "hydra", "datasets", "tiktoken", "sentencepiece", "pycocotools", "psutil", "requests"),
    ]
)
_OF_GROUP = frozenset(
    f"torch.distributed.{name}" for name in ("all_gather", "all_reduce", "barrier", "broadcast", "new_group", "reduce")
)
_LONGEST_WAY, _MOST_CALLS = 3, 8  # functions that call one another, and calls of one of them
_SAYS_SO = re.compile(r"(?:init|set_?up)\w*(?:dist|ddp)|(?:dist|ddp)\w*\.?(?:init|set_?up|launch)", re.IGNORECASE)

_OF_GPUS = re.compile(r"gpu|device_count|__main__|distributed|ddp|parallel", re.IGNORECASE)
_CHANGES_WORDS = frozenset(["argv", "exec", "setattr"])  # they may give a local rank that is not passed


def check_ranks(code: Code) -> Iterator[Finding]:
    """Yield what is wrong with the way in which the code gets its rank and its processes."""
    yield from _no_group(code)
    not_passed = list(_local_rank(code)) if code.facts.has_launcher else []
    yield from not_passed or _group_left_out(code)
    yield from _unpicklable(code)
    if not code.facts.has_launcher:
        yield from _no_processes(code)
    else:
        yield from _no_launcher(code)
        yield from _spawns_inside(code)


def _no_launcher(code: Code) -> Iterator[Finding]:
    """Yield an error where a program of OpenMMLab's kind does not get `--launcher pytorch`."""
    for option in code.line.options if code.is_parallel else ():
        if "--launcher" not in option.names:
            continue
        default = UNKNOWN if option.field in code.fields_given else option.default
        value = code.values.arguments.get(option.field, default)
        choices = option.settings.get("choices")
        is_known = isinstance(choices, (list, tuple)) and {"none", "pytorch"} <= {*choices}
        if is_known and value == "none" and not any(code.calls(INIT)):
            yield Finding(
                "error" if option.is_sure else "warning",
                "no-init",
                option.where,
                "--launcher is none in this job: no process group is made, and each process trains alone",
                "pass --launcher pytorch: hyperparameters: {launcher: pytorch}",
            )
            return


def _no_group(code: Code) -> Iterator[Finding]:
    """Yield an error where DistributedDataParallel is used and no process group is made."""
    if code.has_framework or _makes_group(code):
        return
    needing = _needing_group(code)
    for module, call, name in sorted(code.reached.calls, key=lambda one: not is_ddp(one[2])):
        if is_ddp(name) or call in needing:
            yield Finding(
                code.level_of(call, module),
                "no-init",
                module.where(call),
                f"{name.rpartition('.')[2]} needs a process group, but init_process_group is never called",
                'call torch.distributed.init_process_group("nccl"), or "gloo" on CPUs, before it',
            )
            return
    if code.facts.has_launcher and code.is_parallel and not code.knows_others:
        yield from _trained_by_each(code)


def _needing_group(code: Code) -> frozenset[ast.Call]:
    """Return the calls that fail without a process group, and that all processes which were followed surely make."""
    calls = {call for _, call, name in code.reached.calls if name.endswith(f".{FSDP}") or name in _OF_GROUP}
    if not calls or not code.followed_whole or _may_start_by_library(code):
        return frozenset()
    sure = ({event.call for event in one.events.values() if event.is_sure} for one in code.followed_whole)
    return frozenset(calls.intersection(*sure))


def _may_start_by_library(code: Code) -> bool:
    """Return whether a library that is called may make the process group: those of data, logs and models do not."""
    used = {
        module.aliases[root].partition(".")[0]
        for module, call, _ in code.reached.calls
        if (root := spelled(call.func).partition(".")[0]) in module.aliases
    }
    return bool(used - code.program.tops - _STARTS_NOTHING - sys.stdlib_module_names)


def _trained_by_each(code: Code) -> Iterator[Finding]:
    """Yield a warning for a training that each process of a launcher does by itself: the program knows of no other."""
    for module, call, _ in code.reached.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            yield Finding(
                "warning",
                "no-init",
                module.where(call),
                "no code makes a process group: each process would train a model of its own, on all of the data",
                "call torch.distributed.init_process_group(), wrap the model in DistributedDataParallel and divide the "
                "data by a DistributedSampler; or start one process: nodes: 1, nproc_per_node: 1",
            )
            return


def _group_left_out(code: Code) -> Iterator[Finding]:
    """Yield a warning where several processes train, and a condition of this job leaves out their process group.

    `if args.distributed: init_process_group()`, where nothing sets the argument.
    """
    may_be_made = code.looks_up_attributes and not code.followed_whole
    if code.has_framework or may_be_made or any(_is_said_to(code, *one) for one in code.reached.calls):
        return
    made = [
        (module, module.parents.get(node))
        for module, node in code.program.of(ast.Attribute, ast.Name)
        if (node.attr if isinstance(node, ast.Attribute) else node.id) in _MAKE_GROUPS
        if code.may_be_used(node, module)
    ]
    left_out = [
        (module.where(call), condition)
        for module, call in made
        if isinstance(call, ast.Call) and (condition := _what_leaves_out(code, call, module)) is not None
    ]
    if not made or len(left_out) < len(made):
        return
    where, condition = left_out[0]
    hint = "pass what the condition asks for, or call init_process_group() without it"
    wraps = [
        module.where(call)
        for module, call, name in code.reached.calls
        if is_ddp(name) and code.reached.is_sure(call, module)
    ]
    if wraps and not code.looks_up_names:
        text = "DistributedDataParallel needs a process group, and init_process_group is not called"
        yield Finding("warning", "no-init", wraps[0], f"{text}: {condition}", hint)
    elif code.is_parallel and "backward" in code.names and (code.facts.has_launcher or _are_nodes_alone(code)):
        text = "the processes make no process group, so each trains by itself"
        if not code.facts.has_launcher:
            text = "no process makes a process group, so each node trains by itself"
        yield Finding("warning", "no-init", where, f"{text}: {condition}", hint)


def _are_nodes_alone(code: Code) -> bool:
    """Return whether each of several nodes executes the program once, and this starts no other programs."""
    starts = any(name.startswith("subprocess.") for _, _, name in code.reached.calls)
    return code.facts.nodes > 1 and not starts and not any(_no_processes(code))


def _what_leaves_out(code: Code, call: ast.Call, module: Module, depth: int = 0) -> str | None:
    """Return the condition that leaves out a call, or all calls of its function: "`args.dist` does not hold"."""
    condition: str | None = None
    inner: ast.AST = call
    for above in module.above(call):
        left = (one.test for one in _left_before(inner, above) if not _ASKS_FOR_GROUP.search(unparsed(one.test)))
        if (test := next((one for one in left if code.values.truth(one, module) is True), None)) is not None:
            condition = f"`{unparsed(test)}` holds"
        if isinstance(above, FUNCTIONS):
            if condition is not None or above.name in code.spawned:
                break
            calls = code.program.calls_to(above, module) if depth < _LONGEST_WAY else ()
            conditions = (_what_leaves_out(code, one, home, depth + 1) for home, one in calls[:_MOST_CALLS])
            found = list(takewhile(lambda one: one is not None, conditions))
            return found[0] if found and len(found) == len(calls) else None
        if isinstance(above, ast.If) and inner in above.body and _surely_fails(code, above.test, module):
            condition = f"`{unparsed(above.test)}` does not hold"
        if isinstance(above, ast.If) and inner in above.orelse and code.values.truth(above.test, module) is True:
            condition = f"`{unparsed(above.test)}` holds"
        inner = above
    return condition


def _left_before(node: ast.AST, block: ast.AST) -> Iterator[ast.If]:
    """Yield the conditions under which a function is left before a statement of a block: `if not args.dist: return`."""
    for body in (getattr(block, name, None) for name in ("body", "orelse")):
        before = body[: body.index(node)] if isinstance(body, list) and node in body else ()
        yield from (one for one in before if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return))


def _surely_fails(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition does not hold, whether there is a process group already or not."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    others = [part for part in parts if not _ASKS_FOR_GROUP.search(unparsed(part))]
    return any(code.values.truth(part, module) is False for part in others)


def _makes_group(code: Code) -> bool:
    """Return whether anything may make a process group: a function that is named nowhere does not."""
    if any(_is_said_to(code, *reached) for reached in code.reached.calls):
        return True
    named = [
        (module, node)
        for module, node in code.program.of(ast.Attribute, ast.Name)
        if (node.attr if isinstance(node, ast.Attribute) else node.id) in _MAKE_GROUPS
    ]
    if any(code.is_for_library(node, module) for module, node in named):
        return True
    made = [event.last for one in code.followed_whole for event in one.events.values()]
    if "DistributedDataParallel" in made and not code.program.unread:
        return not {*_MAKE_GROUPS}.isdisjoint(made)
    return any(code.may_be_used(node, module) for module, node in named) or code.looks_up_names


def _is_said_to(code: Code, module: Module, call: ast.Call, name: str) -> bool:
    """Return whether the name of an unknown function says that it makes one: `utils.init_distributed_mode(args)`."""
    says_so = bool(_SAYS_SO.search(name or spelled(call.func)))
    return says_so and not name.startswith("torch.") and code.program.called(call, module) is None


def _local_rank(code: Code) -> Iterator[Finding]:
    declared = [o for o in code.line.options if {"--local_rank", "--local-rank"} & set(o.names)]
    passed = [word.partition("=")[0] for word in code.facts.argv if word.startswith(("--local-rank=", "--local_rank="))]
    if not declared or code.line.gaps:
        return
    option = declared[0]
    if code.has_framework and not (_CHANGES_WORDS & code.names_in_use and _may_read_environment(code)):
        yield from _left_out_of_group(code, option)
    if code.has_framework or _may_read_environment(code):
        return
    if option.default is UNKNOWN or isinstance(option.default, Several):
        return  # it may know it from something else
    if passed and (code.line.is_strict or any(passed[0] in o.names for o in declared)):
        return
    used = next(_device_uses(code, option), "")
    if used and not _is_set_again(code, "local_rank", option.default):
        hint = 'read the environment: int(os.environ["LOCAL_RANK"])'
        result = f"and all processes of a node share one device ({used})"
        if option.default == -1:
            result = f"-1, as if it trained alone ({used})"
        if code.facts.mode == "launch" and "--local-rank" in option.names:
            hint += ", or set `local_rank: argument` in the job file"
        elif code.facts.mode == "launch":
            hint += ', or declare "--local-rank" beside it and set `local_rank: argument` in the job file'
        yield Finding(
            "error",
            "local-rank",
            option.where,
            f"{option.names[0]} is not passed in mode {code.facts.mode}, so every process uses its default, {result}",
            hint,
        )


def _may_read_environment(code: Code) -> bool:
    """Return whether anything that may be executed names the variable of the local rank, and not only compares it."""
    named = (
        (node, home)
        for home, node in code.program.of(ast.Constant, ast.Attribute, ast.Name)
        if contract.LOCAL_RANK in (getattr(node, "value", ""), getattr(node, "attr", ""), getattr(node, "id", ""))
        and not any(isinstance(above, ast.Compare) for above in home.above(node))
    )
    is_skimmed = any(contract.LOCAL_RANK in module.words for module in code.program.modules.values())
    return is_skimmed or any(code.may_be_used(node, home) for node, home in named)


def _left_out_of_group(code: Code, option: Option) -> Iterator[Finding]:
    """Yield an error where a library makes the group only for a local rank that is given, and nobody gives it."""
    passed = any(word.startswith(("--local-rank=", "--local_rank=")) for word in code.facts.argv)
    if option.default != -1 or passed or not code.facts.has_launcher:
        return
    for module, node in code.program.of(ast.If):
        is_asked = unparsed(node.test).endswith("local_rank == -1") and code.values.truth(node.test, module) is True
        is_asked = is_asked and code.reached.is_sure(node, module)
        others = [inner for one in node.orelse for inner in walk(one) if isinstance(inner, ast.Call)]
        if is_asked and any(spelled(one.func).rpartition(".")[2] in _MAKE_GROUPS for one in others):
            yield Finding(
                "error",
                "local-rank",
                option.where,
                f"{option.names[0]} is not passed in mode {code.facts.mode}, so every process uses its default, -1, "
                f"and makes no process group ({module.where(node)})",
                'give it the default int(os.environ["LOCAL_RANK"])',
            )
            return


def _is_set_again(code: Code, field: str, default: Any) -> bool:
    """Return whether a field of the arguments may be set later, to what differs between processes.

    A field of `self`, or of something imported, is none of the arguments.
    """
    return any(
        spelled(store.value) != "self"
        and spelled(store.value) not in home.aliases
        and code.reached.of(store, home)
        and not isinstance(assigned_to(store, home), ast.Constant)
        and code.values.of(assigned_to(store, home) or store, home) != default
        for home, store in code.program.attribute_stores.get(field, ())
    )


def _may_be_arguments(code: Code, owner: ast.expr, module: Module) -> bool:
    """Return whether an object may be the parsed arguments: not one that is imported, and holds something else."""
    return spelled(owner) not in module.aliases or code.values.namespaces.hold(owner, module)


def _device_uses(code: Code, option: Option) -> Iterator[str]:
    """Yield where the parsed local rank chooses a device, also under another name: args.gpu = args.local_rank."""
    copies = (
        node.targets[0].attr
        for _, node in code.program.of(ast.Assign)
        if isinstance(node.targets[0], ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "local_rank"
    )
    names = {"local_rank", *copies}
    fields = (
        (module, node)
        for module, node in code.program.of(ast.Attribute)
        if node.attr in names and isinstance(node.ctx, ast.Load) and _may_be_arguments(code, node.value, module)
    )
    for module, node in (*fields, *_variables_for_field(code, "local_rank")):
        if code.facts.gpus == 0 and code.reached.of(node, module) is Reach.NEVER:
            continue
        for above in module.above(node):
            if isinstance(above, ast.stmt):
                break
            is_choice = isinstance(above, ast.keyword) and above.arg in ("device_ids", "output_device", "device")
            if isinstance(above, ast.Call):
                is_choice = unparsed(above.func).rpartition(".")[2] in _PICKS_DEVICE
            if isinstance(above, ast.Call) and not is_choice:
                is_choice = _is_passed_on(code, module, above, node)
            if is_choice or (isinstance(above, ast.JoinedStr) and "cuda" in unparsed(above)):
                yield module.where(node)


def _variables_for_field(code: Code, field: str) -> Iterator[tuple[Module, ast.Name]]:
    """Yield the uses of variables that are set to a field of the arguments, and to nothing else."""
    for module, node in code.program.of(ast.Name):
        if isinstance(node.ctx, ast.Load) and "rank" in node.id:
            value = code.values.assigned(node, module)
            if isinstance(value, ast.Attribute) and value.attr == field and spelled(value.value) != "self":
                if _may_be_arguments(code, value.value, module):
                    yield module, node


def _is_passed_on(code: Code, module: Module, call: ast.Call, node: ast.AST) -> bool:
    """Return whether a function that is given the local rank chooses a device by it."""
    found = code.program.definition(code.program.name_of(call.func, module))
    if found is None or node not in call.args or isinstance(found[1], ast.ClassDef):
        return False
    own = [*found[1].args.posonlyargs, *found[1].args.args]
    position = call.args.index(node)
    name = own[position].arg if position < len(own) else ""
    return any(
        isinstance(inner, ast.Call)
        and unparsed(inner.func).rpartition(".")[2] in _PICKS_DEVICE
        and any(isinstance(arg, ast.Name) and arg.id == name for arg in inner.args)
        for inner in walk(found[1])
    )


def _does_not_ask_launcher(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether nothing but GPUs and settings decides whether a call is made: a launcher does not change it."""
    tests = [unparsed(node.test) for node in module.above(call) if isinstance(node, ast.If)]
    asks_launcher = bool({contract.RANK, contract.LOCAL_RANK, contract.WORLD_SIZE} & code.names)
    return not asks_launcher and all(_OF_GPUS.search(test) and "spawn" not in test for test in tests)


def _spawns_inside(code: Code) -> Iterator[Finding]:
    if code.facts.nproc == 1:
        return  # the launcher starts one process on each node, which starts the others
    for module, call in code.calls(*SPAWNS):
        is_sure = code.reached.is_sure(call, module)
        if not is_sure and not _does_not_ask_launcher(code, call, module):
            continue
        if code.values.of(argument(call, "nprocs", 2), module) == 1:
            continue
        yield Finding(
            "error" if is_sure else "warning",
            "nested-spawn",
            module.where(call),
            f"mp.spawn would start more processes in each process that mode {code.facts.mode} starts",
            "use mode: spawn, or call the worker directly and read RANK and LOCAL_RANK from the environment",
        )


def _unpicklable(code: Code) -> Iterator[Finding]:
    """Yield an error where mp.spawn is given a function inside another one, or a lambda."""
    for module, call in code.calls("torch.multiprocessing.spawn"):
        target = argument(call, "fn", 0)
        around = module.function_of(call)
        own = {node.name for node in walk(around) if isinstance(node, ast.FunctionDef)} if around else set()
        method = code.values.of(argument(call, "start_method", 5) or ast.Constant("spawn"), module)
        is_inner = isinstance(target, ast.Name) and target.id in own and around is not None and target.id != around.name
        if target is not None and method == "spawn" and (is_inner or isinstance(target, ast.Lambda)):
            name = (
                "a lambda" if isinstance(target, ast.Lambda) else f"{unparsed(target)}, a function inside another one"
            )
            yield Finding(
                code.level_of(call, module),
                "not-picklable",
                module.where(call),
                f"mp.spawn is given {name}: Python cannot send it to the processes, and none starts",
                "define it at the top level of the module, and pass what it needs in args",
            )
            return


def _no_processes(code: Code) -> Iterator[Finding]:
    processes = code.facts.nproc or 1
    if processes != code.facts.copies and not code.starts_processes and (code.is_distributed or _trains_alone(code)):
        yield Finding(
            "warning",
            "no-processes",
            code.program.boot.path,
            f"starts no processes: one trains on each node, but resources.nproc_per_node is {processes}",
            f"{WITH_TORCHRUN}; or use mp.spawn in the boot file"
            if code.facts.mode == "command"
            else "use mode: torchrun, which starts them, or mp.spawn in the boot file",
        )
    for module, call in code.calls(*SPAWNS):
        number = argument(call, "nprocs", 2)
        value = code.values.of(number, module)
        if is_count(value) and value > 0 and code.facts.nproc not in (None, value):
            yield Finding(
                "warning",
                "fixed-world-size",
                module.where(call),
                f"nprocs is {value}, but resources.nproc_per_node is {code.facts.nproc}",
                "set the number in one place: read NPROC_PER_NODE from the environment",
            )
        if number is not None and value == 0:
            yield Finding(
                "error",
                "no-processes",
                module.where(call),
                f"nprocs is {unparsed(number)}, which is 0 on these nodes: no process would start, nothing would "
                "train, and the exit code would be 0",
                'choose nodes with GPUs, or on nodes without them pass nprocs=int(os.environ["NPROC_PER_NODE"])',
            )


def _trains_alone(code: Code) -> bool:
    """Return whether it trains a model itself, and neither on all GPUs at once nor by anything of ours."""
    return (
        "backward" in code.names and not {"DataParallel", "data_parallel", contract.NPROC_PER_NODE} & code.names_in_use
    )
