"""Values that the code fixes although they differ between processes or jobs."""

from __future__ import annotations

import ast
import ipaddress
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import INIT, INIT_OF_DEEPSPEED, INIT_RPC, SPAWN, Code, is_count
from jobsubmit.check.origins import beginning_of, origins
from jobsubmit.check.program.calls import Reach, argument
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.check.shell.started import SUPPOSED_ADDRESS
from jobsubmit.check.start.device_of_call import device_text, set_in_this_job
from jobsubmit.check.start.environment import uses_environment
from jobsubmit.common.finding import Finding, Level

_WITHOUT_NUMBER = ("cpu", "cuda")
_RPC_OPTIONS = "torch.distributed.rpc.TensorPipeRpcBackendOptions"
_HANDED_ON = frozenset(["TCPStore", "FileStore", "bcast"])
_OF_NODES = re.compile(r"world|node|machine")
_OF_BOTH = "$NNODES and $NPROC_PER_NODE"
_OWN_ADDRESS = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_FREE_PORT = re.compile(r"\.bind\(\([^)]*, 0\)\)|find_free_port|TCPServer\(\([^)]*, 0\)")
THIS_NODE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - names a user may write
_OF_NODE = ("file:///tmp/", "file:///var/tmp/", "file:///dev/shm/", "file:///run/")


def check_fixed(code: Code) -> Iterator[Finding]:
    """Yield values that should not be fixed: world size, rank, master address and port, NCCL without GPUs."""
    for module, call in code.calls(INIT, least=Reach.SURELY):
        if code.has_framework and is_fallback(code, call, module):
            continue
        yield from _world(code, module, call)
        yield from _nccl(code, module, call)
        yield from _device(code, module, call)
        yield from _meeting(code, module, call)
    for module, call in code.calls(INIT):
        if not code.reached.is_sure(call, module) and not is_fallback(code, call, module):
            literal = isinstance(argument(call, "world_size", 3), ast.Constant)
            found = [*(_world(code, module, call) if literal else ()), *_nccl(code, module, call)]
            found += [finding for finding in _meeting(code, module, call) if code.facts.nodes > 1]
            yield from (replace(finding, level="warning") for finding in found)
    for module, call in code.calls(INIT_OF_DEEPSPEED, least=Reach.SURELY):
        yield from _nccl(code, module, call, "dist_backend")
    calls = list(code.calls(INIT_RPC))
    for module, call in calls:
        yield from _world(code, module, call)
    if calls and not any(True for _ in code.calls(INIT)):
        yield from _meeting(code, *calls[0])
    for module, call in code.calls(_RPC_OPTIONS):
        yield from _address(code, module, call, argument(call, "init_method", 2))


def is_fallback(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a group is made only where there is none, and something else, or a library, makes one before."""
    tests = (unparsed(above.test) for above in module.above(call) if isinstance(above, ast.If))
    is_made_before = code.has_framework or sum(1 for _ in code.calls(INIT)) > 1
    return is_made_before and any("is_initialized" in test for test in tests)


def _world(code: Code, module: Module, call: ast.Call) -> Iterator[Finding]:
    size = code.values.of(argument(call, "world_size", 3), module)
    rank = argument(call, "rank", 4)
    expected = code.world_size
    # The one process of a launcher on each node may start the others.
    starts_more = code.facts.has_launcher and code.processes == 1 and any(code.calls(SPAWN))
    if is_count(size) and size > 0 and expected not in (None, 0, size) and not starts_more:
        spelled = unparsed(argument(call, "world_size", 3) or call)
        known = f"world_size is {size}" if spelled == str(size) else f"world_size={spelled} is {size}"
        why = f"{known}, but the job has {expected} processes"
        if code.facts.has_launcher:
            hint = "world_size counts processes: leave it out, it is read from the environment"
        elif code.line.option("--world_size"):
            hint = (
                "world_size counts processes; the argument --world_size counts nodes: multiply it by the processes per "
                "node"
            )
        elif names := _options_of(code, argument(call, "world_size", 3), module):
            values = "$NNODES" if _counts_nodes(code, argument(call, "world_size", 3), module, names) else _OF_BOTH
            hint = f"it is computed from {names}: pass {values} in command: [bash, -c, …]"
        else:
            hint = "world_size counts the processes of all nodes: multiply those of a node by the number of nodes"
        yield Finding("error", "fixed-world-size", module.where(call), why, hint)
    if isinstance(rank, ast.Constant) and isinstance(rank.value, int) and rank.value >= 0 and (expected or 2) > 1:
        yield Finding(
            "error",
            "fixed-world-size",
            module.where(call),
            f"every process uses the same rank {rank.value}",
            "leave out rank and world_size, which are in the environment; under mp.spawn, compute them",
        )


def _counts_nodes(code: Code, node: ast.expr | None, module: Module, names: str) -> bool:
    """Return whether a single option counts the nodes, and the program multiplies it by the processes of each."""
    parts = [one for _, part in origins(code, node, module) for one in walk(part)] if node is not None else []
    products = (one for one in parts if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult))
    return ", " not in names and _OF_NODES.search(names) is not None and any(products)


def _options_of(code: Code, node: ast.expr | None, module: Module) -> str:
    """Return the options of a start command that a number is computed from, as one text."""
    parts = [one for _, part in origins(code, node, module) for one in walk(part)] if node is not None else []
    fields = {one.attr for one in parts if isinstance(one, ast.Attribute)} if code.facts.mode == "command" else set()
    passed = code.facts.options_given
    used = (one for one in code.line.options if one.field in fields and passed & set(one.names))
    return ", ".join(max(one.names, key=len) for one in used)


def _nccl(code: Code, module: Module, call: ast.Call, name: str = "backend") -> Iterator[Finding]:
    node = argument(call, name, 0)
    backend = code.values.of(node, module)
    level: Level = "error"
    hint = 'use "gloo" on CPUs: backend = "nccl" if torch.cuda.is_available() else "gloo"'
    if backend is UNKNOWN and isinstance(node, ast.Name):
        backend, level = _only_text(code, module, node.id), "warning"
        hint = f"if it is an argument of the script, pass --{node.id}=gloo; otherwise {hint}"
    elif isinstance(node, ast.Name) and code.line.kind == "configurator" and code.line.option(f"--{node.id}"):
        hint = f"pass --{node.id}=gloo"
    elif isinstance(node, ast.Attribute) and backend is not UNKNOWN:
        names = (max(one.names, key=len) for one in code.options if one.field == node.attr and one.takes_value)
        hint = next((f"pass {name}=gloo" for name in names if name.startswith("--")), hint)
    if code.facts.gpus == 0 and str(backend).lower() == "nccl":
        yield Finding(
            level, "nccl-on-cpu", module.where(call), f"backend nccl needs GPUs, but {code.facts.no_gpus}", hint
        )


def _device(code: Code, module: Module, call: ast.Call) -> Iterator[Finding]:
    """Yield an error for `init_process_group(device_id=…)` of a device without its number, which torch refuses."""
    given = argument(call, "device_id")
    choices = [(module, given)]
    if isinstance(given, ast.Name):
        choices = [(module, one) for one in set_in_this_job(code, given, module)] or [
            (home, one) for home, one in origins(code, given, module) if isinstance(one, ast.Call)
        ]
    texts = {device_text(code, one, home) for home, one in choices}
    if len(texts) == 1 and not texts.isdisjoint(_WITHOUT_NUMBER):
        yield Finding(
            "error",
            "group-device",
            module.where(call),
            f"init_process_group() refuses device_id={unparsed(given or call)}, because it has no number: it is "
            f'torch.device("{texts.pop()}")',
            'pass device_id only on GPUs, with the local rank: torch.device("cuda", local_rank); else leave it out',
        )


def _only_text(code: Code, module: Module, name: str) -> str:
    """Return the only text that a variable is set to, where what is executed may set it again and no argument does."""
    if any(word.lstrip("-").startswith(f"{name}=") for word in code.facts.argv):
        return ""
    values = [
        node.value
        for node in module.of(ast.Assign)
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    value = values[0].value if len(values) == 1 and isinstance(values[0], ast.Constant) else None
    return value if isinstance(value, str) else ""


def _meeting(code: Code, module: Module, call: ast.Call) -> Iterator[Finding]:
    is_rpc = code.program.name_of(call.func, module) == INIT_RPC
    if not is_rpc and not _is_for_another_start(code, module, call):
        yield from _address(code, module, call, argument(call, "init_method", 1))
        yield from _own_ports(code, module, argument(call, "init_method", 1))
    if is_rpc and argument(call, "rpc_backend_options") is not None:
        return
    if not is_rpc and not uses_environment(code, module, call):
        return
    for home, node, name, value in _variables_set(code):
        is_sure = code.reached.is_sure(node, home)
        if not is_sure and code.facts.has_launcher:
            continue  # it may be for a start by hand
        if name == contract.MASTER_ADDR and value in THIS_NODE and code.facts.nodes > 1:
            level: Level = "error" if is_sure else "warning"
            yield _fixed_master(home.where(node), f"MASTER_ADDR={value}: each node would connect only to itself", level)
        elif name == contract.MASTER_ADDR and isinstance(value, str) and value not in (*THIS_NODE, SUPPOSED_ADDRESS):
            level = "error" if is_sure and code.facts.is_this_machine and _is_elsewhere(value) else "warning"
            yield _fixed_master(
                home.where(node), f"MASTER_ADDR={value} is a fixed address: the nodes of the job have others", level
            )
        elif name == contract.MASTER_PORT and value is not UNKNOWN and code.facts.has_launcher:
            yield _fixed_master(home.where(node), f"MASTER_PORT={value} replaces the port that the launcher listens on")


def _variables_set(code: Code) -> Iterator[tuple[Module, ast.AST, Any, Any]]:
    """Yield where a variable of the environment is set, with its name and value."""
    for module, node in code.program.of(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and code.program.name_of(target.value, module) == "os.environ":
                if code.reached.of(node, module):
                    yield module, node, code.values.of(target.slice, module), code.values.of(node.value, module)
    for module, call in code.calls("os.environ.update"):
        for keyword in call.keywords:
            yield module, call, keyword.arg, code.values.of(keyword.value, module)
        for given in call.args:
            for key, value in zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ():
                yield module, call, code.values.of(key, module), code.values.of(value, module)


def _is_for_another_start(code: Code, module: Module, call: ast.Call) -> bool:
    """Return whether a launcher's processes may take another branch: one that names no address."""
    others = (one for home, one in code.calls(INIT) if home is module and one is not call)
    above = list(module.above(call))
    is_fallback = any(isinstance(node, ast.ExceptHandler) for node in above)
    branches = {node for node in above if isinstance(node, ast.If) or (is_fallback and isinstance(node, ast.Try))}
    return code.facts.has_launcher and any(
        argument(other, "init_method", 1) is None and branches & set(module.above(other)) for other in others
    )


def _address(code: Code, module: Module, call: ast.Call, method: ast.expr | None) -> Iterator[Finding]:
    """Yield an error where all nodes would meet at an address of their own."""
    text = beginning_of(code, method, module)
    level: Level = "error"
    if not text and isinstance(method, ast.Attribute):
        text, level = _only_address(code, method, module), "warning"
    if code.facts.nodes > 1 and host_of(text) in THIS_NODE:
        yield _fixed_method(code, module.where(call), f"each node would connect only to itself at {text}", level)
    if code.facts.is_this_machine and _is_elsewhere(host_of(text)):
        said = f"no process could listen at {text}: it is not an address of this machine"
        yield _fixed_method(code, module.where(call), said, level)
    if code.facts.nodes > 1 and text.startswith(_OF_NODE):
        place = text.removeprefix("file://")
        said, level = f"each node has its own {place}: the nodes would not meet there", "error"
        if code.facts.is_this_machine:
            said, level = f"on other backends each node has its own {place}: the nodes would not meet there", "warning"
        yield _fixed_method(code, module.where(call), said, level)


def host_of(text: str) -> str:
    """Return the host of `tcp://host:port`; empty for any other text."""
    return re.split(r"[:/]", text.removeprefix("tcp://"))[0] if text.startswith("tcp://") else ""


def _is_elsewhere(host: str) -> bool:
    """Return whether an address in numbers is surely none of this machine: no process could listen there."""
    with suppress(ValueError, OSError):
        address = ipaddress.IPv4Address(host)
        own = _OWN_ADDRESS.findall(Path("/proc/net/fib_trie").read_text())  # no socket: a check must open none
        return bool(own) and not address.is_loopback and not address.is_unspecified and host not in own
    return False


def _only_address(code: Code, field: ast.Attribute, module: Module) -> str:
    """Return the only address that a setting is given in the code; nothing if the job's arguments name that setting."""
    if any(field.attr in word for word in code.facts.argv):
        return ""
    parts = [part for _, part in origins(code, field, module) if not isinstance(part, (ast.Name, ast.Attribute))]
    texts = {unparsed(part) for part in parts if "://" in unparsed(part)}
    values = {_first_text(part) for part in parts if unparsed(part) in texts}
    return values.pop() if len(values) == len(texts) == 1 else ""


def _first_text(node: ast.AST) -> str:
    """Return a text, or what is written down of it: `tcp://localhost:` of f"tcp://localhost:{port}"."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _own_ports(code: Code, module: Module, method: ast.expr | None) -> Iterator[Finding]:
    """Yield a warning where each node meets at a port that it has found free by itself."""
    has_other_group = sum(1 for _ in code.calls(INIT)) > 1 and any("broadcast" in name for name in code.names_in_use)
    if code.facts.nodes == 1 or method is None or has_other_group or _HANDED_ON & code.names_in_use:
        return
    for home, part in origins(code, method, module):
        for call in (one for one in walk(part) if isinstance(one, ast.Call)):
            found = code.program.definition(code.program.name_of(call.func, home))
            if found is not None and _FREE_PORT.search(unparsed(found[1])) and code.reached.is_sure(call, home):
                text = f"{unparsed(call)} finds another port on each node: they would not meet"
                yield _fixed_method(code, home.where(call), text, "warning")
                return


def _fixed_method(code: Code, where: str, text: str, level: Level) -> Finding:
    hint = "remove init_method: the launcher sets MASTER_ADDR and MASTER_PORT, which are used without it"
    if code.facts.mode == "command":
        hint = 'write init_method="env://": it uses MASTER_ADDR and MASTER_PORT, which are set on each node'
    elif not code.facts.has_launcher:
        hint = "use the address that the job gets: init_method=args.init_method"
    return Finding(level, "fixed-master", where, text, hint)


def _fixed_master(where: str, text: str, level: Level = "error") -> Finding:
    return Finding(
        level,
        "fixed-master",
        where,
        text,
        "leave MASTER_ADDR and MASTER_PORT to the launcher (in mode spawn, use --init_method); "
        "to run the script by hand as well, set them with os.environ.setdefault",
    )
