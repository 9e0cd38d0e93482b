"""LaunchPlan → what every process of a job is given: its command line and environment, and where each value is from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from jobsubmit.agent import node_contract as contract
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.spec.constraints import SINGLE_NODE_RANKS

Origin: TypeAlias = Literal["spec", "platform", "jobsubmit", "launcher"]

_DOCUMENTED_FOLDER = "/home/ma-user/modelarts/user-job-dir"


class Value(NamedTuple):
    """A word or a variable's value and who gives it; an open one is known on the node only, and is described.

    `field` is the one of the job file that it is from, if it is.
    """

    text: str
    origin: Origin
    is_open: bool = False
    field: str = ""


Environment: TypeAlias = Mapping[str, Value]


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
    """The variables that all processes share, and the nodes with what is their own."""

    environment: Environment
    nodes: tuple[Node, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """What is decided when a job starts; what is left out stays open."""

    hosts: Sequence[str] = ()
    port: int | None = None
    job_id: str = ""
    accelerators: int | None = None


def expand(plan: LaunchPlan, start: Start = Start(), only: int | None = None) -> Expansion:
    """Return what each process sees; with `only` those of one node."""
    nproc = plan.nproc_per_node or start.accelerators
    nodes = range(plan.nodes) if only is None else [only]
    notes = []
    if plan.rdzv and plan.rdzv.backend == "c10d" and plan.nodes > 1:
        notes.append("c10d gives ranks in the order of the nodes' addresses as text: shown as if that were theirs")
    if nproc is None:
        notes.append("resources.nproc_per_node is left out: one process is shown, a node starts one per accelerator")
    if plan.min_nodes < plan.nodes:
        notes.append(f"an elastic job: shown with {plan.nodes} nodes")
    shared = dict(_shared(plan, start, nproc))
    return Expansion(shared, tuple(_node(plan, start, node, nproc) for node in nodes), tuple(notes))


def build_boot_words(plan: LaunchPlan, node: int = 0, local_rank: int = 0, start: Start = Start()) -> list[Value]:
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
        return [Value(f"--local-rank={local_rank}", "launcher"), *words]
    if plan.mode == "spawn":
        address, port = _host(start, 0), _port(start)
        is_open = address.is_open or port.is_open
        words.append(Value(f"--init_method=tcp://{address.text}:{port.text}", "platform", is_open))
        if plan.nodes > 1:
            words += [Value(f"--world_size={plan.nodes}", "platform"), Value(f"--rank={node}", "platform")]
    return words


def _name(word: str) -> str:
    return word.removeprefix("--").partition("=")[0]


def _origin(plan: LaunchPlan, word: str) -> Origin:
    injected = [f"--{name}={value}" for name, value in SINGLE_NODE_RANKS.items()]
    return "jobsubmit" if plan.mode == "spawn" and plan.nodes == 1 and word in injected else "spec"


def _host(start: Start, node: int) -> Value:
    if node < len(start.hosts):
        return Value(start.hosts[node], "platform")
    return Value(f"<address of node {node}>", "platform", is_open=True)


def _port(start: Start) -> Value:
    if start.port is None:
        return Value(f"<port, {contract.DEFAULT_PORT} unless the backend leases one>", "jobsubmit", is_open=True)
    return Value(str(start.port), "jobsubmit")


def _shared(plan: LaunchPlan, start: Start, nproc: int | None) -> Iterator[tuple[str, Value]]:
    """Yield the variables that are the same for every process (platform documentation; torch.distributed.run)."""
    yield from ((name, Value(text, "spec")) for name, text in plan.env)
    yield from ((name, Value(f"<secret {source}>", "spec", is_open=True)) for name, source in plan.secrets)
    hosts = [_host(start, node) for node in range(plan.nodes)]
    is_open = any(host.is_open for host in hosts)
    listed = "<addresses of all nodes>" if is_open else ",".join(host.text for host in hosts)
    yield contract.HOSTS, Value(listed, "platform", is_open)
    yield contract.NODE_COUNT, Value(str(plan.nodes), "platform")
    yield contract.HOST_COUNT, Value(str(plan.nodes), "platform")
    count = Value("<accelerators of the node>", "platform", is_open=True)
    yield contract.GPU_COUNT, count if start.accelerators is None else Value(str(start.accelerators), "platform")
    yield contract.TASK_NAME, Value("worker", "platform")
    yield contract.LOG_FOLDER, Value("<folder of the platform's logs>", "platform", is_open=True)
    yield (
        contract.JOB_FOLDER,
        Value(f"<folder that holds the code, e.g. {_DOCUMENTED_FOLDER}>", "platform", is_open=True),
    )
    job_id = Value(start.job_id, "jobsubmit") if start.job_id else Value("<id of the job>", "jobsubmit", is_open=True)
    yield contract.JOB_ID, job_id
    yield contract.PORT, _port(start)
    yield contract.RESTART_COUNT, Value("0", "jobsubmit")
    for mount in plan.mounts:
        yield mount.variable, Value(f"<the directory of {mount.kind} {mount.name}>", "platform", is_open=True)
        if mount.passed_as == "env" and mount.kind != "checkpoint":
            yield mount.name, Value(f"<the directory of {mount.kind} {mount.name}>", "spec", is_open=True)
    yield contract.NNODES, Value(str(plan.nodes), "jobsubmit")
    yield contract.NPROC_PER_NODE, Value(count.text if nproc is None else str(nproc), "jobsubmit", nproc is None)
    yield contract.RDZV_ID, job_id
    if contract.THREADS not in dict(plan.env):
        yield contract.THREADS, Value("<CPUs of the node, divided by its processes>", "jobsubmit", is_open=True)
    if contract.UNBUFFERED not in dict(plan.env):
        yield contract.UNBUFFERED, Value("1", "jobsubmit")
    if plan.profile:
        yield contract.PROFILE, Value(plan.profile, "spec")
    if plan.mode == "spawn" or plan.command is not None:
        yield contract.MASTER_ADDR, hosts[0]._replace(origin="jobsubmit")
        yield contract.MASTER_PORT, _port(start)
        return
    yield from _of_launcher(plan, start, nproc, job_id)


def _of_launcher(plan: LaunchPlan, start: Start, nproc: int | None, job_id: Value) -> Iterator[tuple[str, Value]]:
    is_static = plan.mode == "launch" or (plan.rdzv is not None and plan.rdzv.backend == "static")
    if is_static:
        yield contract.MASTER_ADDR, _host(start, 0)._replace(origin="launcher")
        yield contract.MASTER_PORT, _port(start)._replace(origin="launcher")
    else:
        yield contract.MASTER_ADDR, Value("<address of the node with rank 0>", "launcher", is_open=True)
        yield contract.MASTER_PORT, Value("<a free port, chosen when the nodes meet>", "launcher", is_open=True)
    yield contract.RUN_ID, job_id._replace(origin="launcher")
    yield contract.USE_AGENT_STORE, Value("<True or False>", "launcher", is_open=True)
    local, world = str(nproc or 1), str(plan.nodes * (nproc or 1))
    for name, text in (
        (contract.LOCAL_WORLD_SIZE, local),
        (contract.WORLD_SIZE, world),
        (contract.GROUP_WORLD_SIZE, str(plan.nodes)),
        (contract.ROLE_WORLD_SIZE, world),
        (contract.ROLE_NAME, "default"),
        (contract.TORCH_RESTARTS, "0"),
        (contract.TORCH_MAX_RESTARTS, str(plan.restarts.max) if _is_elastic(plan) and plan.restarts else "0"),
    ):
        yield (
            name,
            Value(
                text, "launcher", is_open=nproc is None and name not in (contract.GROUP_WORLD_SIZE, contract.ROLE_NAME)
            ),
        )


def _is_elastic(plan: LaunchPlan) -> bool:
    return plan.min_nodes < plan.nodes


def _node(plan: LaunchPlan, start: Start, node: int, nproc: int | None) -> Node:
    own: dict[str, Value] = {
        contract.NODE_INDEX: Value(str(node), "platform"),
        contract.OWN_ADDRESS: _host(start, node),
        contract.OWN_NAME: Value("<name of the instance>", "platform", is_open=True),
        contract.NODE_RANK: Value(str(node), "jobsubmit"),
        contract.NODE_ADDR: _host(start, node)._replace(origin="jobsubmit"),
    }
    boot = [Value(word, "spec") for word in plan.command] if plan.command else [Value(str(plan.boot_file), "spec")]
    if plan.mode == "spawn" or plan.command is not None:
        return Node(node, own, (Process(node, None, None, (*boot, *build_boot_words(plan, node, 0, start)), {}),))
    each = nproc or 1
    words = None if plan.mode == "launch" and plan.local_rank == "argument" else build_boot_words(plan, node, 0, start)
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
        argv = (*boot, *(words if words is not None else build_boot_words(plan, node, local, start)))
        processes.append(Process(node, node * each + local, local, argv, environment))
    return Node(node, own, tuple(processes))
