"""Compare how a boot file gets its processes and ranks with what its mode provides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import INIT, Code, is_count, is_ddp
from jobsubmit.check.parsers.accepted import Option
from jobsubmit.check.program.calls import SPAWNS, Reach, argument, hides_arguments
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.operations import UNKNOWN, Several
from jobsubmit.check.program.variables import assigned_to
from jobsubmit.common.finding import Finding

# What launchers set and mode spawn does not (torch.distributed.run's environment).
LAUNCHER_VARIABLES = tuple(contract.UNSET_BY_SCRIPT)
# What srun and mpirun set for each of their tasks.
OF_SCHEDULERS = (
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NNODES", "SLURM_JOB_NODELIST"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE"),
)
JOB_OF_SLURM = ("SLURM_JOB_ID", "SLURM_JOBID")
_RANKS_OF_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_RANKS_OF_SCHEDULERS = ("SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", *_RANKS_OF_MPI)
_GETS = ("os.environ.get", "os.getenv")
_OF_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
_SETTERS = ("setdefault", "update", "putenv")
_PICKS_DEVICE = ("set_device", "device", "cuda", "to")
_INIT_METHOD, _WORLD_SIZE, _RANK = 1, 3, 4
_MAKE_GROUPS = (
    "init_process_group",
    "init_device_mesh",
    "init_distributed",
    "initialize_model_parallel",
    "_init_distributed",
)
_SAYS_SO = re.compile(r"(?:init|set_?up)\w*(?:dist|ddp)|(?:dist|ddp)\w*\.?(?:init|set_?up|launch)", re.IGNORECASE)
_WITH_TORCHRUN = (
    "start it with torchrun: `jobsubmit run -- torchrun --nproc_per_node=N FILE`; or in the job file replace `command` "
    "by mode: torchrun and boot_file: FILE"
)
_LOCALID = "SLURM_LOCALID"
_JOINS = re.compile(r"init_process_group|set_device|cuda|return .*rank", re.IGNORECASE)


def check_ranks(code: Code) -> Iterator[Finding]:
    """Yield what is wrong with the way in which the code gets its rank and its processes."""
    yield from _no_group(code)
    written = _written(code)
    reads = list(_sure_reads(code, written))
    yield from _reads_a_schedulers_words(code, reads)
    yield from _knows_other_ranks(code)
    yield from _unpicklable(code)
    if not code.facts.has_launcher:
        yield from _reads_a_launchers_words(code, reads, written)
        yield from _no_processes(code)
    else:
        yield from _local_rank(code)
        yield from _spawns_inside(code)


def _knows_other_ranks(code: Code) -> Iterator[Finding]:
    """Yield a warning where a rank is looked up under the names of MPI only: the default would be the rank of all."""
    own = [name for name in _RANKS_OF_MPI if name in code.texts]
    if not code.facts.has_launcher or not own or "RANK" in code.texts or code.has_framework:
        return
    for module, call in code.calls(INIT):
        rank = argument(call, "rank", _RANK)
        if rank is not None and code.reached.is_sure(call, module):
            yield Finding(
                "warning",
                "rank-env",
                module.where(call),
                f"the code looks for its rank in {own[0]}, which torchrun does not set: it sets RANK",
                "look for RANK as well, or leave rank and world_size out of init_process_group()",
            )
            return


def _no_group(code: Code) -> Iterator[Finding]:
    """Yield an error where DistributedDataParallel is used and no process group is made."""
    if code.has_framework or _makes_group(code):
        return
    for module, call, name in code.reached.calls:
        if is_ddp(name):
            yield Finding(
                code.level_of(call, module),
                "no-init",
                module.where(call),
                "DistributedDataParallel needs a process group, but init_process_group is never called",
                'call torch.distributed.init_process_group("nccl"), or "gloo" on CPUs, before it',
            )
            return


def _makes_group(code: Code) -> bool:
    """Return whether anything may make a process group: a function that is named nowhere does not."""
    for module, node in code.program.of(ast.Attribute, ast.Name):
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        if name in _MAKE_GROUPS:
            if code.may_be_used(node, module):
                return True
    return code.looks_up_names or any(_is_said_to(code, *reached) for reached in code.reached.calls)


def _is_said_to(code: Code, module: Module, call: ast.Call, name: str) -> bool:
    """Return whether the name of an unknown function says that it makes one: `utils.init_distributed_mode(args)`."""
    says_so = bool(_SAYS_SO.search(name or spelled(call.func)))
    return says_so and not name.startswith("torch.") and code.program.called(call, module) is None


def _local_rank(code: Code) -> Iterator[Finding]:
    declared = [o for o in code.line.options if {"--local_rank", "--local-rank"} & set(o.names)]
    passed = [word.partition("=")[0] for word in code.facts.argv if word.startswith(("--local-rank=", "--local_rank="))]
    if not declared or contract.LOCAL_RANK in code.names or code.line.gaps:
        return
    option = declared[0]
    if code.has_framework:
        yield from _left_out_of_group(code, option)
        return
    if option.default is UNKNOWN or isinstance(option.default, Several):
        return  # it may know it from something else
    if passed and (code.line.is_strict or any(passed[0] in o.names for o in declared)):
        return
    used = next(_device_uses(code, option), "")
    if used and not _is_set_again(code, "local_rank"):
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


def _left_out_of_group(code: Code, option: Option) -> Iterator[Finding]:
    """Yield an error where a library makes the group only for a local rank that is given, and nobody gives it."""
    passed = any(word.startswith(("--local-rank=", "--local_rank=")) for word in code.facts.argv)
    if option.default != -1 or passed or not code.facts.has_launcher:
        return
    for module, node in code.program.of(ast.If):
        is_asked = ast.unparse(node.test).endswith("local_rank == -1") and code.reached.is_sure(node, module)
        others = [inner for one in node.orelse for inner in ast.walk(one) if isinstance(inner, ast.Call)]
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


def _is_set_again(code: Code, field: str) -> bool:
    """Return whether a field of the arguments may be set later, to what differs between processes.

    A field of `self`, or of something imported, is none of the arguments.
    """
    return any(
        spelled(store.value) != "self"
        and spelled(store.value) not in home.aliases
        and code.reached.of(store, home)
        and not isinstance(assigned_to(store, home), ast.Constant)
        for home, store in code.program.attribute_stores.get(field, ())
    )


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
    for module, node in code.program.of(ast.Attribute):
        is_it = node.attr in names and isinstance(node.ctx, ast.Load)
        if not is_it or (code.facts.gpus == 0 and code.reached.of(node, module) is Reach.NEVER):
            continue
        for above in module.above(node):
            if isinstance(above, ast.stmt):
                break
            is_choice = isinstance(above, ast.keyword) and above.arg in ("device_ids", "output_device", "device")
            if isinstance(above, ast.Call):
                is_choice = ast.unparse(above.func).rpartition(".")[2] in _PICKS_DEVICE
            if isinstance(above, ast.Call) and not is_choice:
                is_choice = _is_passed_on(code, module, above, node)
            if is_choice or (isinstance(above, ast.JoinedStr) and "cuda" in ast.unparse(above)):
                yield module.where(node)


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
        and ast.unparse(inner.func).rpartition(".")[2] in _PICKS_DEVICE
        and any(isinstance(arg, ast.Name) and arg.id == name for arg in inner.args)
        for inner in ast.walk(found[1])
    )


def _depends_on_gpus_only(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether nothing but the number of GPUs keeps a call from being made: a launcher does not change it."""
    tests = [ast.unparse(node.test) for node in module.above(call) if isinstance(node, ast.If)]
    asks_launcher = bool({contract.RANK, contract.LOCAL_RANK, contract.WORLD_SIZE} & code.names)
    return not asks_launcher and all("gpu" in test or "device_count" in test or "__main__" in test for test in tests)


def _spawns_inside(code: Code) -> Iterator[Finding]:
    if code.facts.nproc == 1:
        return  # the launcher starts one process on each node, which starts the others
    for module, call in code.calls(*SPAWNS):
        is_sure = code.reached.is_sure(call, module)
        if not is_sure and not _depends_on_gpus_only(code, call, module):
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
        own = {node.name for node in ast.walk(around) if isinstance(node, ast.FunctionDef)} if around else set()
        method = code.values.of(argument(call, "start_method", 5) or ast.Constant("spawn"), module)
        is_inner = isinstance(target, ast.Name) and target.id in own and around is not None and target.id != around.name
        if target is not None and method == "spawn" and (is_inner or isinstance(target, ast.Lambda)):
            name = (
                "a lambda"
                if isinstance(target, ast.Lambda)
                else f"{ast.unparse(target)}, a function inside another one"
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
    if processes > 1 and not code.starts_processes and (code.is_distributed or _trains_alone(code)):
        yield Finding(
            "warning",
            "no-processes",
            code.program.boot.path,
            f"starts no processes: one trains on each node, but resources.nproc_per_node is {processes}",
            f"{_WITH_TORCHRUN}; or use mp.spawn in the boot file"
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
                f"it starts {value} processes on each node, but resources.nproc_per_node is {code.facts.nproc}",
                "set the number in one place: read NPROC_PER_NODE from the environment",
            )
        if number is not None and value == 0:
            yield Finding(
                "error",
                "no-processes",
                module.where(call),
                f"nprocs is {ast.unparse(number)}, which is 0 on these nodes: no process would start, nothing would "
                "train, and the exit code would be 0",
                "choose nodes with GPUs, or set another number of processes for nodes without GPUs",
            )


def _trains_alone(code: Code) -> bool:
    """Return whether it trains a model itself, and neither on all GPUs at once nor by anything of ours."""
    return "backward" in code.names and not {"DataParallel", "data_parallel", contract.NPROC_PER_NODE} & code.names


def _sure_reads(code: Code, written: set[str]) -> Iterator[tuple[str, str]]:
    """Yield where a variable is surely read that must be set, and its name; not those that the program sets itself."""
    for module, node in code.program.of(ast.Subscript, ast.Call):
        name = _read_variable(code, module, node)
        if name and name not in written and code.reached.is_sure(node, module) and not _is_guarded(node, module):
            yield module.where(node), name


def _reads_a_launchers_words(code: Code, reads: Sequence[tuple[str, str]], written: set[str]) -> Iterator[Finding]:
    for where, name in reads:
        if name in LAUNCHER_VARIABLES:
            yield _unset(code, where, name)
        if name in contract.SET_BY_SCRIPT and code.facts.environment.get(name, UNKNOWN) is None:
            text = (
                f"{name} is read from the environment, but the platform starts the boot file itself and does not set it"
            )
            yield Finding(
                "error", "rank-env", where, text, "use --rank, --world_size and --init_method, or MA_NUM_GPUS"
            )
    for module, call in code.calls(INIT, least=Reach.SURELY):
        is_from_environment = uses_environment(code, module, call) and argument(call, "rank", _RANK) is None
        is_open = _is_guarded(call, module) or hides_arguments(call) or code.has_framework
        if is_from_environment and "RANK" not in written and not is_open:
            yield _unset(code, module.where(call), "RANK")


def _reads_a_schedulers_words(code: Code, reads: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Yield an error for a variable of srun or mpirun that is read, and that nothing sets in this job."""
    for where, name in reads:
        if name in OF_SCHEDULERS and code.facts.environment.get(name, UNKNOWN) is None:
            text = f"{name} is read from the environment, but neither srun nor mpirun starts this job's processes"
            hint = "read RANK, LOCAL_RANK and WORLD_SIZE instead, which a launcher sets (mode: torchrun)"
            yield Finding("error", "rank-env", where, text, hint)
            return
        is_per_node = name in _OF_TASK and code.facts.has_launcher and code.facts.nproc != 1
        if is_per_node and code.facts.environment.get(name, UNKNOWN) is UNKNOWN:
            text = f"{name} counts tasks of Slurm, one per node here: all processes of a node have the same"
            hint = "read RANK, LOCAL_RANK and WORLD_SIZE instead, which the launcher sets"
            yield Finding("warning", "rank-env", where, text, hint)
            return
    yield from _falls_back(code)


def _falls_back(code: Code) -> Iterator[Finding]:
    """Yield a warning for a rank of srun or mpirun that is read with a default, and is the same in all processes."""
    if not code.facts.has_launcher or code.facts.nproc == 1:
        return
    for module, node in code.program.of(ast.Subscript, ast.Call):
        name, default = _asked_variable(code, module, node)
        if name not in _RANKS_OF_SCHEDULERS or not code.reached.of(node, module):
            continue
        if _is_default_of_set(code, module, node):
            continue
        if name == _LOCALID and not code.reached.is_sure(node, module):
            if not _JOINS.search(ast.unparse(module.scope_of(node))):
                continue  # it may be for something else, as to copy data once for each node
        value = code.facts.environment.get(name, UNKNOWN)
        if name in _OF_TASK and value is UNKNOWN and (default is not None or _is_guarded(node, module)):
            text = f"{name} counts tasks of Slurm, one per node here: all processes of a node have the same"
        elif value is None and default is not None and code.values.of(default, module) in (0, "0"):
            text = f"{name} is not set, because neither srun nor mpirun starts the processes: all of them use 0"
        else:
            continue
        hint = "read RANK, LOCAL_RANK and WORLD_SIZE instead, which the launcher sets"
        yield Finding("warning", "rank-env", module.where(node), text, hint)
        return


def _asked_variable(code: Code, module: Module, node: ast.AST) -> tuple[str, ast.expr | None]:
    """Return the variable that is read, and its default if one is given: `environ[X]`, `environ.get(X, default)`."""
    match node:
        case ast.Subscript(ctx=ast.Load()) if code.program.name_of(node.value, module) == "os.environ":
            if tried := _first_that_is_set(code, module, node):
                return tried, ast.Constant(None)
            return code.values.of(node.slice, module), None
        case ast.Call(args=[name, default]) if code.program.name_of(node.func, module) in _GETS:
            return code.values.of(name, module), default
    return "", None


def _first_that_is_set(code: Code, module: Module, read: ast.Subscript) -> str:
    """Return the variable that a loop over names finds first: `for v in ("SLURM_PROCID", "RANK"): if v in environ`."""
    loops = (above for above in module.above(read) if isinstance(above, ast.For))
    loop = next((one for one in loops if ast.unparse(one.target) == ast.unparse(read.slice)), None)
    names = code.values.of(loop.iter, module) if loop is not None else None
    leaves = loop is not None and any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(loop))
    if not leaves or not isinstance(names, list):
        return ""
    return next((str(name) for name in names if code.facts.environment.get(name, UNKNOWN) is not None), "")


def _is_default_of_set(code: Code, module: Module, node: ast.AST) -> bool:
    """Return whether a variable is only the default of one that is set: `get("RANK", get("PMI_RANK"))`."""
    for above in module.above(node):
        if isinstance(above, ast.stmt):
            return False
        name, default = _asked_variable(code, module, above)
        if default is not None and code.facts.environment.get(name) is not None:
            return True
    return False


def _unset(code: Code, where: str, name: str) -> Finding:
    how = "use mode: torchrun, or compute it from --rank, --world_size (they count nodes) and the number of the process"
    if code.facts.mode == "command":
        how = f"{_WITH_TORCHRUN}; or compute it from NODE_RANK and NNODES, which are set"
    who = "mode spawn does not set it" if code.facts.mode == "spawn" else "this command does not set it"
    text = f"{name} is read from the environment, but {who}"
    return Finding("error", "rank-env", where, text, how)


def uses_environment(code: Code, module: Module, call: ast.Call) -> bool:
    """Return whether a process group is initialized from MASTER_ADDR and MASTER_PORT."""
    method = argument(call, "init_method", _INIT_METHOD)
    if argument(call, "store", 5) is not None:
        return False
    if method is None:
        return True
    value = code.values.of(method, module)
    if value is UNKNOWN:  # an argument, whose default and whatever else it is set to are this
        return isinstance(method, ast.Attribute) and "env://" in code.names
    return value is None or str(value).startswith("env://")


def _written(code: Code) -> set[str]:
    """Return the environment variables that the program sets itself."""
    names: set[str] = set()
    for module, node in code.program.of(ast.Subscript, ast.Assign, ast.AugAssign, ast.Call):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            value = code.values.of(node.slice, module)
            if code.program.name_of(node.value, module) == "os.environ":
                names |= {value} if isinstance(value, str) else set(LAUNCHER_VARIABLES)
        if isinstance(node, (ast.Assign, ast.AugAssign)) and _is_environment(code, node, module):
            names |= set(LAUNCHER_VARIABLES)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SETTERS:
            names |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            names |= {k.arg for k in node.keywords if k.arg}
    return names


def _is_environment(code: Code, node: ast.Assign | ast.AugAssign, module: Module) -> bool:
    """Return whether the whole environment gets another name, or something is merged into it."""
    side = node.value if isinstance(node, ast.Assign) else node.target
    return code.program.name_of(side, module) == "os.environ"


def _read_variable(code: Code, module: Module, node: ast.AST) -> str:
    """Return the variable whose absence is an error here: environ[X], or int(environ.get(X))."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        if code.program.name_of(node.value, module) == "os.environ":
            return str(code.values.of(node.slice, module))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int" and node.args:
        inner = node.args[0]
        if isinstance(inner, ast.Call) and len(inner.args) == 1 and not inner.keywords:
            if code.program.name_of(inner.func, module) in _GETS:
                return str(code.values.of(inner.args[0], module))
    return ""


def _is_guarded(node: ast.AST, module: Module) -> bool:
    inside: ast.AST = node
    for above in module.above(node):
        if isinstance(above, ast.Try) and above.handlers and inside in above.body:
            return True
        if isinstance(above, ast.With) and any("suppress" in ast.unparse(item.context_expr) for item in above.items):
            return True
        inside = above
    return False
