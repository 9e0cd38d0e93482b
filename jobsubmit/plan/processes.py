"""LaunchPlan → command line and environment of every process of a job, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from jobsubmit.agent import node_contract as contract
from jobsubmit.agent.tracking import tracking_variables
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.spec.constraints import SINGLE_NODE_RANKS

Origin: TypeAlias = Literal["spec", "platform", "jobsubmit", "launcher"]

_DOCUMENTED_FOLDER = "/home/ma-user/modelarts/user-job-dir"


class Value(NamedTuple):
    """A word or a variable's value, and its origin; an open one is known only on the node, and `text` describes it.

    `field` is the field of the job file that it comes from, if any.
    """

    text: str
    origin: Origin
    is_open: bool = False
    field: str = ""


Environment: TypeAlias = Mapping[str, Value]

# What is decided only when a job starts.
_PORT = Value(f"<port, {contract.DEFAULT_PORT} unless the backend assigns one>", "jobsubmit", is_open=True)
_JOB_ID = Value("<id of the job>", "jobsubmit", is_open=True)


@dataclass(frozen=True)
class Process:
    """A process that runs the boot file; `rank` is None in mode spawn, where it starts the ranks itself."""

    node: int
    rank: int | None
    local_rank: int | None
    argv: tuple[Value, ...]
    environment: Environment


@dataclass(frozen=True)
class Node:
    """A node's own variables and its processes."""

    index: int
    environment: Environment
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class Expansion:
    """The variables that all processes share, and the nodes with their own variables and processes."""

    environment: Environment
    nodes: tuple[Node, ...]
    notes: tuple[str, ...]


def expand(plan: LaunchPlan, only: int | None = None) -> Expansion:
    """Return what each process sees; with `only` those of one node."""
    nodes = range(plan.nodes) if only is None else [only]
    notes = []
    if plan.rdzv and plan.rdzv.backend == "c10d" and plan.nodes > 1:
        notes.append("c10d assigns ranks in the text order of node addresses: this output assumes that order")
    if plan.nproc_per_node is None:
        notes.append("resources.nproc_per_node is not set: one process is shown, a node starts one per accelerator")
    if plan.min_nodes < plan.nodes:
        notes.append(f"elastic job: shown with {plan.nodes} nodes")
    added = [f"--{mount.name}" for mount in plan.mounts if mount.declaration and plan.command is None]
    if added:
        notes.append(f"not shown: the start script adds {', '.join(added)} if the boot file declares it")
    return Expansion(dict(_shared(plan)), tuple(_node(plan, node) for node in nodes), tuple(notes))


def build_boot_words(plan: LaunchPlan, node: int = 0, local_rank: int = 0) -> list[Value]:
    """Return the words after the boot file (or the user's own command)."""
    words = [
        Value(word, _origin(plan, word), field="args" if index >= plan.args_from else f"hyperparameters.{_name(word)}")
        for index, word in enumerate(plan.arguments)
    ]
    given = [
        Value(f"--{mount.name}=<the directory of {mount.kind} {mount.name}>", "spec", is_open=True, field=mount.field)
        for mount in plan.mounts
        if mount.passed_as == "hyperparameter"
    ]
    words = given + words
    if plan.command is not None:
        return words
    if plan.mode == "launch" and plan.local_rank == "argument":
        return [Value(f"{plan.local_rank_option}={local_rank}", "launcher"), *words]
    if plan.mode == "spawn":
        words.append(Value(f"--init_method=tcp://{_host(0).text}:{_PORT.text}", "platform", is_open=True))
        if plan.nodes > 1:
            words += [Value(f"--world_size={plan.nodes}", "platform"), Value(f"--rank={node}", "platform")]
    return words


def _name(word: str) -> str:
    return word.removeprefix("--").partition("=")[0]


def _origin(plan: LaunchPlan, word: str) -> Origin:
    injected = [f"--{name}={value}" for name, value in SINGLE_NODE_RANKS.items()]
    return "jobsubmit" if plan.mode == "spawn" and plan.nodes == 1 and word in injected else "spec"


def _host(node: int) -> Value:
    return Value(f"<address of node {node}>", "platform", is_open=True)


def _shared(plan: LaunchPlan) -> Iterator[tuple[str, Value]]:
    """Yield the variables that are the same for every process (platform documentation; torch.distributed.run)."""
    yield from ((name, Value(text, "spec")) for name, text in plan.env)
    yield from ((name, Value(f"<secret {source}>", "spec", is_open=True)) for name, source in plan.secrets)
    yield contract.HOSTS, Value("<addresses of all nodes>", "platform", is_open=True)
    yield contract.NODE_COUNT, Value(str(plan.nodes), "platform")
    yield contract.HOST_COUNT, Value(str(plan.nodes), "platform")
    count = Value("<accelerators of the node>", "platform", is_open=True)
    yield contract.GPU_COUNT, count
    yield contract.TASK_NAME, Value("worker", "platform")
    yield contract.LOG_FOLDER, Value("<folder of the platform's logs>", "platform", is_open=True)
    folder = f"<folder that holds the code, e.g. {_DOCUMENTED_FOLDER}>"
    yield contract.JOB_FOLDER, Value(folder, "platform", is_open=True)
    yield contract.JOB_ID, _JOB_ID
    yield contract.PORT, _PORT
    yield contract.RESTART_COUNT, Value("0", "jobsubmit")
    for mount in plan.mounts:
        yield mount.variable, Value(f"<the directory of {mount.kind} {mount.name}>", "platform", is_open=True)
        if mount.passed_as == "env" and mount.kind != "checkpoint":
            yield mount.name, Value(f"<the directory of {mount.kind} {mount.name}>", "spec", is_open=True)
    yield contract.NNODES, Value(str(plan.nodes), "jobsubmit")
    nproc = plan.nproc_per_node
    yield contract.NPROC_PER_NODE, Value(count.text if nproc is None else str(nproc), "jobsubmit", nproc is None)
    yield contract.RDZV_ID, _JOB_ID
    if contract.THREADS not in dict(plan.env):
        yield contract.THREADS, Value("<CPUs of the node, divided by its processes>", "jobsubmit", is_open=True)
    if contract.UNBUFFERED not in dict(plan.env):
        yield contract.UNBUFFERED, Value("1", "jobsubmit")
    for name, text in tracking_variables(plan.tracking, _JOB_ID.text, 0).items():
        if name not in dict(plan.env):
            yield name, Value(text, "jobsubmit", is_open=True)
    if plan.profile:
        yield contract.PROFILE, Value(plan.profile, "spec")
    if not plan.has_launcher:
        yield contract.MASTER_ADDR, _host(0)._replace(origin="jobsubmit")
        yield contract.MASTER_PORT, _PORT
        return
    yield from _of_launcher(plan)


def _of_launcher(plan: LaunchPlan) -> Iterator[tuple[str, Value]]:
    is_static = plan.mode == "launch" or (plan.rdzv is not None and plan.rdzv.backend == "static")
    if is_static:
        yield contract.MASTER_ADDR, _host(0)._replace(origin="launcher")
        yield contract.MASTER_PORT, _PORT._replace(origin="launcher")
    else:
        yield contract.MASTER_ADDR, Value("<address of the node with rank 0>", "launcher", is_open=True)
        yield contract.MASTER_PORT, Value("<a free port, chosen at the rendezvous>", "launcher", is_open=True)
    yield contract.RUN_ID, _JOB_ID._replace(origin="launcher")
    yield contract.USE_AGENT_STORE, Value("<True or False>", "launcher", is_open=True)
    local = plan.nproc_per_node or 1
    world = str(plan.nodes * local)
    restarts = plan.restarts.max if plan.restarts and plan.min_nodes < plan.nodes else 0
    for name, text in (
        (contract.LOCAL_WORLD_SIZE, str(local)),
        (contract.WORLD_SIZE, world),
        (contract.GROUP_WORLD_SIZE, str(plan.nodes)),
        (contract.ROLE_WORLD_SIZE, world),
        (contract.ROLE_NAME, "default"),
        (contract.TORCH_RESTARTS, "0"),
        (contract.TORCH_MAX_RESTARTS, str(restarts)),
    ):
        is_open = plan.nproc_per_node is None and name not in (contract.GROUP_WORLD_SIZE, contract.ROLE_NAME)
        yield name, Value(text, "launcher", is_open)


def _node(plan: LaunchPlan, node: int) -> Node:
    own: dict[str, Value] = {
        contract.NODE_INDEX: Value(str(node), "platform"),
        contract.OWN_ADDRESS: _host(node),
        contract.OWN_NAME: Value("<name of the instance>", "platform", is_open=True),
        contract.NODE_RANK: Value(str(node), "jobsubmit"),
        contract.NODE_ADDR: _host(node)._replace(origin="jobsubmit"),
    }
    boot = [Value(word, "spec") for word in plan.command] if plan.command else [Value(str(plan.boot_file), "spec")]
    if not plan.has_launcher:
        return Node(node, own, (Process(node, None, None, (*boot, *build_boot_words(plan, node)), {}),))
    each = plan.nproc_per_node or 1
    words = None if plan.mode == "launch" and plan.local_rank == "argument" else build_boot_words(plan, node)
    processes = []
    for local in range(each):
        rank = str(node * each + local)
        environment: dict[str, Value] = {
            contract.RANK: Value(rank, "launcher"),
            contract.LOCAL_RANK: Value(str(local), "launcher"),
            contract.GROUP_RANK: Value(str(node), "launcher"),
            contract.ROLE_RANK: Value(rank, "launcher"),
            contract.ERROR_FILE: Value("<a file of the launcher>", "launcher", is_open=True),
        }
        argv = (*boot, *(words if words is not None else build_boot_words(plan, node, local)))
        processes.append(Process(node, node * each + local, local, argv, environment))
    return Node(node, own, tuple(processes))
