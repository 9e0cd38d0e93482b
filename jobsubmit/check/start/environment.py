"""Variables of launchers and schedulers that the code reads, compared with those that this job's processes have."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import INIT, Code
from jobsubmit.check.collectives.rank_conditions import holds_on_rank_zero, is_in_branch_of_zero
from jobsubmit.check.origins import origins
from jobsubmit.check.program.calls import Reach, argument, hides_arguments
from jobsubmit.check.program.module import FUNCTIONS, Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

# What launchers set and mode spawn does not (torch.distributed.run's environment).
LAUNCHER_VARIABLES = tuple(contract.UNSET_BY_SCRIPT)
# What srun and mpirun set for each of their tasks.
OF_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE")
OF_SCHEDULERS = (
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NNODES", "SLURM_JOB_NODELIST"),
    *OF_MPI,
)
JOB_OF_SLURM = ("SLURM_JOB_ID", "SLURM_JOBID")
_RANKS_OF_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_RANKS_OF_SCHEDULERS = ("SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", *_RANKS_OF_MPI)
_GETS = ("os.environ.get", "os.getenv")
# What srun sets for each of its tasks: its rank, its rank on its node, and the number of tasks.
OF_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
# What launchers and libraries set, which this job may start or use.
_SET_BY_LAUNCHERS = (
    *("TORCH", "OMP_", "MKL_", "NCCL_", "CUDA_", "GLOO_", "ACCELERATE_", "FSDP_", "DEEPSPEED_", "CROSS_", "PL_", "LT_"),
    *("HYDRA_", "OMPI_", "PMI", "MV2_"),
)
_LOAD_VARIABLES = ("dotenv", "environs", "decouple", "environ")
_SETTERS = ("setdefault", "update", "putenv")
WITH_TORCHRUN = (
    "start it with torchrun: `jobsubmit run -- torchrun --nproc_per_node=N FILE`; or in the job file replace `command` "
    "by mode: torchrun and boot_file: FILE"
)
_INIT_METHOD, _RANK = 1, 4  # the places of arguments of init_process_group
_LOCALID = "SLURM_LOCALID"
_FROM_MPI = re.compile(r"\bMPI\.COMM_WORLD\b")
_SETS_RANKS = ("submitit", "idr_torch")
_WRITTEN_RANKS = ("os.environ['RANK']", "os.environ['WORLD_SIZE']")
_NEAR_LINES, _ALIKE = 4, 0.7
_OF_SYSTEM = re.compile(r"HOME$|USER$|LOGNAME$|PATH$|PWD$|HOSTNAME$|TE?MP|SHELL$|LANG|SCRATCH|CONDA|VIRTUAL_ENV|SLURM_")
_OF_TOOLS = re.compile(r"(?:WANDB|HF|TRANSFORMERS|TOKENIZERS|MLFLOW|COMET|NEPTUNE|AWS|CUDA|OMP|MKL|NCCL|GLOO|TORCH)_?")
_DEEPEST = 3  # functions that call each other
_JOINS = re.compile(r"init_process_group|set_device|cuda|return .*rank", re.IGNORECASE)


def check_environment(code: Code) -> Iterator[Finding]:
    """Yield variables that the code takes its rank from, and that this job's processes do not have as it expects."""
    written = _written(code)
    found = _sure_reads(code, written)
    reads = [(module.where(node), name) for module, node, name in found]
    yield from _reads_a_schedulers_words(code, reads)
    yield from _knows_other_ranks(code)
    yield from _asks_mpi(code)
    yield from _set_by_nothing(code, reads, written)
    yield from _left_out_of_several(code, found, written)
    yield from itertools.islice(_reads_a_launchers_words(code, reads, written), 1 if _is_task(code) else None)


def _set_by_nothing(code: Code, reads: Sequence[tuple[str, str]], written: set[str]) -> Iterator[Finding]:
    """Yield an error for each variable that is surely read, and that neither the shell, the job nor Slurm sets."""
    if _sets_computed_names(code, written):
        return
    first = {name: where for where, name in reversed(reads) if _VARIABLE.fullmatch(name)}
    for name, where in reversed(first.items()):
        if why := _why_unset(code, name):
            text = f"{name} is read from the environment, but {why}"
            yield Finding("error", "unset-variable", where, text, f"set it in the job file: `env: {{{name}: …}}`")


def _left_out_of_several(
    code: Code, reads: Sequence[tuple[Module, ast.expr, str]], written: set[str]
) -> Iterator[Finding]:
    """Yield a warning for a variable that a job for other machines seems to forget, or to set by another name."""
    if code.facts.may_be_set is not None or _sets_computed_names(code, written):
        return
    import difflib

    set_by_job = [name for name in code.facts.environment if _is_set_by_job(code, name)]
    unread = [one for one in set_by_job if one not in code.texts and not _OF_TOOLS.match(one)]
    known = [(module.scope_of(node), node.lineno) for module, node, name in reads if name in set_by_job]
    for module, node, name in reads:
        is_own = _VARIABLE.fullmatch(name) and not contract.is_reserved(name) and name not in OF_SCHEDULERS
        if not is_own or name in set_by_job or _OF_SYSTEM.match(name) or _OF_TOOLS.match(name):
            continue
        scope, line = module.scope_of(node), node.lineno
        is_beside = any(scope is place and abs(line - number) <= _NEAR_LINES for place, number in known)
        other = difflib.get_close_matches(name, unread, 1, _ALIKE)
        if is_beside or other:
            text = f"{name} is read from the environment, and the job file sets only others that are read beside it"
            hint = f"set it in the job file, unless the image has it: `env: {{{name}: …}}`"
            if other:
                text = f"{name} is read from the environment, and the job file sets {other[0]}, which no code reads"
                hint = f"set {name} instead of {other[0]}"
            yield Finding("warning", "unset-variable", module.where(node), text, hint)
            return


def _is_set_by_job(code: Code, name: str) -> bool:
    return code.facts.environment.get(name) is not None and not contract.is_reserved(name)


def _why_unset(code: Code, name: str) -> str:
    """Return why a variable that no launcher sets is not set; empty if it may be."""
    facts = code.facts
    if contract.is_reserved(name) or name in OF_SCHEDULERS:
        return ""
    if name.startswith("SLURM_"):
        is_on_slurm = facts.environment.get(JOB_OF_SLURM[0], UNKNOWN) is not None
        is_set = is_on_slurm or facts.environment.get(name) is not None or name in (facts.may_be_set or ())
        return "" if is_set else "this job does not run on Slurm, which sets it"
    if facts.may_be_set is None or name in facts.may_be_set or name.startswith(_SET_BY_LAUNCHERS):
        return ""
    return "neither this shell nor the job file sets it"


def _sets_computed_names(code: Code, written: set[str]) -> bool:
    """Return whether the program may set variables whose names are not written down."""
    given = (call.args[0] for _, call in code.calls("os.environ.update", "os.putenv") if call.args)
    return (
        written.issuperset(LAUNCHER_VARIABLES)
        or code.program.imports(*_LOAD_VARIABLES)
        or any(not isinstance(one, ast.Dict) for one in given)
    )


def _knows_other_ranks(code: Code) -> Iterator[Finding]:
    """Yield a warning where a rank is looked up under the names of MPI only: the default would be the rank of all."""
    own = [name for name in _RANKS_OF_MPI if name in code.texts]
    if _is_started_by_mpi(code) or not own or "RANK" in code.texts or code.has_framework:
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


def _asks_mpi(code: Code) -> Iterator[Finding]:
    """Yield an error where the rank is MPI's, but no mpirun starts the processes: each is rank 0 of a world of 1."""
    variables = [code.facts.environment.get(name) for name in OF_MPI]
    has_mpi = not code.facts.has_launcher or UNKNOWN in variables  # else a shell sets them to those of torch
    if "COMM_WORLD" not in code.names or has_mpi or code.world_size == 1:
        return
    given = [
        (module, rank)
        for module, call in code.calls(INIT, least=Reach.SURELY)
        if (rank := argument(call, "rank", _RANK)) is not None
    ]
    written = [
        (module, node.value)
        for module, node in code.program.of(ast.Assign)
        if any(unparsed(target) in _WRITTEN_RANKS for target in node.targets) and code.reached.is_sure(node, module)
    ]
    for module, rank in (*given, *written):
        asked = [(home, part) for home, part in origins(code, rank, module) if _FROM_MPI.search(unparsed(part))]
        if any(code.reached.is_sure(part, home) for home, part in asked) and not _is_guarded(rank, module):
            text = f"{unparsed(rank)} is the rank of MPI, but no mpirun starts the processes: each would train alone"
            hint = "take the rank from RANK, which the launcher sets, or start the job with mpirun in `command`"
            yield Finding("error", "same-ranks", module.where(rank), text, hint)
            return


def _is_started_by_mpi(code: Code) -> bool:
    """Return whether the processes may know each other through MPI: no launcher of torch starts them."""
    return not code.facts.has_launcher or any(code.facts.environment.get(name, UNKNOWN) is not None for name in OF_MPI)


def _sure_reads(code: Code, written: set[str]) -> list[tuple[Module, ast.expr, str]]:
    """Return where a variable is surely read that must be set, and its name; not those that the program sets itself.

    Where the process group is made comes first: what a logger reads does less harm.
    """
    found = [
        (module, node, name)
        for module, node in code.program.of(ast.Subscript, ast.Call)
        if (name := _read_variable(code, module, node)) and name not in written
        if _is_for_rank_0(code, node, module) and not _is_guarded(node, module)
    ]
    return sorted(found, key=lambda read: not _JOINS.search(unparsed(read[0].scope_of(read[1]))))


def _is_for_rank_0(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether rank 0 surely comes to a node: all ranks do, or it is below `if rank == 0:`, or called there."""
    if code.reached.is_sure(node, module):
        return True
    around = list(itertools.takewhile(lambda one: not isinstance(one, FUNCTIONS), module.above(node)))
    conditions = [one for one in around if isinstance(one, (ast.If, ast.IfExp, ast.Try, ast.For, ast.While))]
    function = module.function_of(node)
    block = getattr(conditions[0] if conditions else function, "body", None)
    before = [one for one in block if one not in around] if isinstance(block, list) else []
    if any(one in module.leaving and one.lineno < getattr(node, "lineno", 0) for one in before):
        return False  # a question may come before it
    if len(conditions) == 1 and is_in_branch_of_zero(code, node, module):
        holds = holds_on_rank_zero(code, getattr(conditions[0], "test", None), module)
        return holds and bool(code.reached.of(node, module)) and code.reached.is_sure(conditions[0], module)
    callers = code.program.calls_to(function, module) if function is not None and not conditions else ()
    return depth < _DEEPEST and any(_is_for_rank_0(code, call, home, depth + 1) for home, call in callers)


def _reads_a_launchers_words(code: Code, reads: Sequence[tuple[str, str]], written: set[str]) -> Iterator[Finding]:
    """Yield an error for each variable of a launcher that is read, or taken by torch, and that nothing sets."""
    if _is_task(code) and (code.has_framework or code.program.imports(*_SETS_RANKS)):
        return
    names = (*LAUNCHER_VARIABLES, *contract.SET_BY_SCRIPT)
    unset = [name for name in names if code.facts.environment.get(name, UNKNOWN) is None]
    yield from (_unset(code, where, name) for where, name in reads if name in unset)
    if "RANK" in written or "RANK" not in unset:
        return
    for module, call in code.calls(INIT, least=Reach.SURELY):
        is_open = _is_guarded(call, module) or hides_arguments(call) or code.has_framework
        if uses_environment(code, module, call) and argument(call, "rank", _RANK) is None and not is_open:
            yield _unset(code, module.where(call), "RANK")


def _reads_a_schedulers_words(code: Code, reads: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Yield an error for a variable of srun or mpirun that is read, and that nothing sets in this job."""
    for where, name in reads:
        if name in OF_SCHEDULERS and code.facts.environment.get(name, UNKNOWN) is None:
            text = f"{name} is read from the environment, but neither srun nor mpirun starts this job's processes"
            hint = "read RANK, LOCAL_RANK and WORLD_SIZE instead, which a launcher sets (mode: torchrun)"
            yield Finding("error", "rank-env", where, text, hint)
            return
        is_per_node = name in OF_TASK and code.facts.has_launcher and code.facts.nproc != 1
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
            if not _JOINS.search(unparsed(module.scope_of(node))):
                continue  # it may be for something else, as to copy data once for each node
        value = code.facts.environment.get(name, UNKNOWN)
        if name in OF_TASK and value is UNKNOWN and (default is not None or _is_guarded(node, module)):
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
    loop = next((one for one in loops if unparsed(one.target) == unparsed(read.slice)), None)
    names = code.values.of(loop.iter, module) if loop is not None else None
    leaves = loop is not None and any(isinstance(one, (ast.Break, ast.Return)) for one in walk(loop))
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


def _is_task(code: Code) -> bool:
    """Return whether srun or mpirun starts the processes."""
    return code.facts.has_launcher and code.facts.environment.get("RANK", UNKNOWN) is None


def _unset(code: Code, where: str, name: str) -> Finding:
    who = "mode spawn does not set it" if code.facts.mode == "spawn" else "this command does not set it"
    how = "use mode: torchrun, or compute it from --rank, --world_size (they count nodes) and the number of the process"
    if code.facts.mode == "command":
        how = f"{WITH_TORCHRUN}; or compute it from NODE_RANK and NNODES, which are set"
    if _is_task(code):
        who = "neither srun nor mpirun sets it"
        how = "let torchrun start the program (mode: torchrun), or take the rank from what srun or mpirun sets"
    if name in contract.SET_BY_SCRIPT:
        who = "the platform starts the boot file itself and does not set it"
        how = "use --rank, --world_size and --init_method, or MA_NUM_GPUS"
    return Finding("error", "rank-env", where, f"{name} is read from the environment, but {who}", how)


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
            names |= {n.value for n in walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            names |= {k.arg for k in node.keywords if k.arg}
    return names


def _is_environment(code: Code, node: ast.Assign | ast.AugAssign, module: Module) -> bool:
    """Return whether the whole environment gets another name, or something is merged into it."""
    side = node.value if isinstance(node, ast.Assign) else node.target
    return code.program.name_of(side, module) == "os.environ"


def _read_variable(code: Code, module: Module, node: ast.AST) -> str:
    """Return the variable whose absence is an error here: environ[X], or int(environ.get(X)); empty if not known."""
    name: ast.expr | None = None
    match node:
        case ast.Subscript(ctx=ast.Load()) if code.program.name_of(node.value, module) == "os.environ":
            name = node.slice
        case ast.Call(func=ast.Name(id="int"), args=[ast.Call(args=[asked], keywords=[]) as inner, *_]):
            name = asked if code.program.name_of(inner.func, module) in _GETS else None
    value = code.values.of(name, module)
    return value if isinstance(value, str) else ""


def _is_guarded(node: ast.AST, module: Module) -> bool:
    inside: ast.AST = node
    for above in module.above(node):
        if isinstance(above, ast.Try) and above.handlers and inside in above.body:
            return True
        if isinstance(above, ast.With) and any("suppress" in unparsed(item.context_expr) for item in above.items):
            return True
        inside = above
    return False
