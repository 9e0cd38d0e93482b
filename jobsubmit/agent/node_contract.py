"""The node contract: every variable that a node's processes see, who sets it, and what a job file must not set.

Apart from templates and tests, only this table names these variables. It defines what a job file may set, what is
removed from a node's environment, the `unset` line of the start script, `render --expand`, the paste commands, the
environment of pods, and the table of the documentation.
"""

from __future__ import annotations

# Who gives a variable: the platform, jobsubmit, the start script, the launcher, or the shell.
PLATFORM, JOBSUBMIT, SCRIPT, LAUNCHER, SHELL = "platform", "jobsubmit", "script", "launcher", "shell"


class Variable(str):
    """The name of a variable, as a string with attributes."""

    meaning: str
    given_by: str
    is_reserved: bool  # a job file must not set it, and one that is around a job is removed
    same_on_all_nodes: bool
    same_in_all_processes: bool  # of a node


TABLE = []  # type: list[Variable]


def _variable(
    name: str, given_by: str, meaning: str, *, reserved: bool = True, per_node: bool = False, per_process: bool = False
) -> Variable:
    variable = Variable(name)
    variable.meaning, variable.given_by, variable.is_reserved = meaning, given_by, reserved
    variable.same_on_all_nodes, variable.same_in_all_processes = not (per_node or per_process), not per_process
    TABLE.append(variable)
    return variable


# ── the platform's (ModelArts and Volcano document them; local and Slurm give them in the same words) ─────────────────
HOSTS = _variable("VC_WORKER_HOSTS", PLATFORM, "addresses of all nodes, separated by commas, node 0 first")
NODE_COUNT = _variable("VC_WORKER_NUM", PLATFORM, "number of nodes")
NODE_INDEX = _variable("VC_TASK_INDEX", PLATFORM, "index of this node, from 0", per_node=True)
HOST_COUNT = _variable("MA_NUM_HOSTS", PLATFORM, "number of nodes")
GPU_COUNT = _variable("MA_NUM_GPUS", PLATFORM, "accelerators of a node; on the local backend, nproc_per_node")
TASK_NAME = _variable("MA_TASK_NAME", PLATFORM, "role of the node: worker")
OWN_ADDRESS = _variable("MA_CURRENT_IP", PLATFORM, "address of this node", per_node=True)
OWN_NAME = _variable("MA_CURRENT_INSTANCE_NAME", PLATFORM, "name of this node's instance", per_node=True)
JOB_FOLDER = _variable("MA_JOB_DIR", PLATFORM, "parent of the code folder")
LOG_FOLDER = _variable("MA_LOG_DIR", PLATFORM, "folder of the platform's logs")

# ── jobsubmit's ─────────────────────────────────────────────────────────────────────────────────────────────────────
JOB_ID = _variable("JOBSUBMIT_JOB_ID", JOBSUBMIT, "id of the job")
PORT = _variable("JOBSUBMIT_MASTER_PORT", JOBSUBMIT, "port of the rendezvous; default 6060")
RESTART_COUNT = _variable("JOBSUBMIT_RESTART_COUNT", JOBSUBMIT, "number of restarts of the job")
HOSTS_FILE = _variable("JOBSUBMIT_HOSTS_FILE", JOBSUBMIT, "file with the addresses, if too long for a variable")
CHECKPOINTS = _variable("JOBSUBMIT_CHECKPOINT_DIR", JOBSUBMIT, "folder of the checkpoints")
PROFILE = _variable("JOBSUBMIT_PROFILE", JOBSUBMIT, "what is timed in every step: sync or buckets")
# And the name of an input or output, with `_` for `-`: its folder.
INPUT_PREFIX, OUTPUT_PREFIX = "JOBSUBMIT_INPUT_", "JOBSUBMIT_OUTPUT_"

# What the agent gives its own parts; they are no promise to anybody.
AGENT_REQUEST = _variable("JOBSUBMIT_REQUEST", JOBSUBMIT, "of the agent: what the job is")
FETCH_ORDER = _variable("JOBSUBMIT_ORDER", JOBSUBMIT, "of the agent: where the code is")
LOG_LIMIT = _variable("JOBSUBMIT_LOG_LIMIT", JOBSUBMIT, "of the agent: maximum size of a log, in bytes")
AGENT_DIR = _variable("JOBSUBMIT_GANG_DIR", JOBSUBMIT, "of the agent: the node's directory")
AGENT_NODE = _variable("JOBSUBMIT_GANG_NODE", JOBSUBMIT, "of the agent: index of the node", per_node=True)
AGENT_MODE = _variable("JOBSUBMIT_GANG_MODE", JOBSUBMIT, "of the agent: mode of the job")
AGENT_HANG_AFTER = _variable("JOBSUBMIT_GANG_HANG_AFTER", JOBSUBMIT, "of the agent: hang_after, in seconds")
RANK_PID = _variable("JOBSUBMIT_GANG_RANK_PID", JOBSUBMIT, "of the agent: pid of the rank above", per_process=True)
SPAWN_RANK = _variable(
    "JOBSUBMIT_GANG_SPAWN_RANK", JOBSUBMIT, "of the agent: local rank being started", per_process=True
)
SPAWN_COUNT = _variable("JOBSUBMIT_GANG_SPAWN_COUNT", JOBSUBMIT, "of the agent: how many ranks mp.spawn starts")
ASSUMED = _variable("JOBSUBMIT_GANG_ASSUMED", JOBSUBMIT, "of the agent: set if it only may be a rank", per_process=True)

# ── the start script's, from the platform's ───────────────────────────────────────────────────────────────────────────
NNODES = _variable("NNODES", SCRIPT, "number of nodes")
NODE_RANK = _variable("NODE_RANK", SCRIPT, "index of this node, from 0", per_node=True)
NPROC_PER_NODE = _variable("NPROC_PER_NODE", SCRIPT, "training processes of each node")
NODE_ADDR = _variable("NODE_ADDR", SCRIPT, "address of this node", per_node=True)
MASTER_ADDR = _variable("MASTER_ADDR", SCRIPT, "address of node 0")
MASTER_PORT = _variable("MASTER_PORT", SCRIPT, "port of the rendezvous")
RDZV_ID = _variable("RDZV_ID", SCRIPT, "id of the rendezvous: the job's")
UNBUFFERED = _variable("PYTHONUNBUFFERED", SCRIPT, "1: output is written as soon as it is printed", reserved=False)
_variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", SCRIPT, "1: ranks get a store of their own", reserved=False)
THREADS = _variable("OMP_NUM_THREADS", SCRIPT, "CPUs of the node, divided by its processes", reserved=False)

# ── the launcher's (torch.distributed.run) ──────────────────────────────────────────────────────────────────────────
RANK = _variable("RANK", LAUNCHER, "rank of this process over all nodes", per_process=True)
LOCAL_RANK = _variable("LOCAL_RANK", LAUNCHER, "rank of this process on its node", per_process=True)
WORLD_SIZE = _variable("WORLD_SIZE", LAUNCHER, "number of processes over all nodes")
LOCAL_WORLD_SIZE = _variable("LOCAL_WORLD_SIZE", LAUNCHER, "number of processes of this node")
GROUP_RANK = _variable("GROUP_RANK", LAUNCHER, "rank of the node among those that joined", per_node=True)
GROUP_WORLD_SIZE = _variable("GROUP_WORLD_SIZE", LAUNCHER, "number of nodes that joined")
ROLE_RANK = _variable("ROLE_RANK", LAUNCHER, "rank among the processes of one role", per_process=True)
ROLE_WORLD_SIZE = _variable("ROLE_WORLD_SIZE", LAUNCHER, "number of processes of one role")
ROLE_NAME = _variable("ROLE_NAME", LAUNCHER, "name of the role: default", reserved=False)
RUN_ID = _variable("TORCHELASTIC_RUN_ID", LAUNCHER, "id of the rendezvous")
USE_AGENT_STORE = _variable("TORCHELASTIC_USE_AGENT_STORE", LAUNCHER, "whether the ranks use the launcher's store")
ERROR_FILE = _variable("TORCHELASTIC_ERROR_FILE", LAUNCHER, "file for the error of this process", per_process=True)
TORCH_RESTARTS = _variable("TORCHELASTIC_RESTART_COUNT", LAUNCHER, "how often the launcher has restarted its ranks")
TORCH_MAX_RESTARTS = _variable("TORCHELASTIC_MAX_RESTARTS", LAUNCHER, "how often the launcher may restart its ranks")

# ── what would steer the shell that runs the start script ───────────────────────────────────────────────────────────
for _name in ("BASHOPTS", "SHELLOPTS", "BASH_ENV", "CDPATH", "IFS", "PS4", "BASH_VERSINFO", "UID", "EUID", "PPID"):
    _variable(_name, SHELL, "of bash")

DEFAULT_PORT = 6060  # of the rendezvous, where nothing leases one; the platform's own (platform documentation)
LONGEST_VALUE = 100_000  # characters that we give to a variable; the kernel's limit is 131,071 bytes

PLATFORM_PREFIXES = ("MA_", "VC_")
OWN_PREFIXES = ("JOBSUBMIT_", "jobsubmit_")
LAUNCHER_PREFIXES = ("PET_", "TORCHELASTIC_")  # torchrun reads each of its options from PET_… (torch.distributed.run)
RESERVED_PREFIXES = (*LAUNCHER_PREFIXES, *PLATFORM_PREFIXES, *OWN_PREFIXES, "BASH_FUNC_")

# A platform that runs one node of ours may know these better than we do.
PLATFORM_MAY_GIVE = (OWN_ADDRESS, OWN_NAME, TASK_NAME)


def _named(*sources: str) -> tuple[str, ...]:
    """Return the reserved variables that some sources set, except those that a prefix covers."""
    found = [variable for variable in TABLE if variable.given_by in sources and variable.is_reserved]
    return tuple(str(variable) for variable in found if not variable.startswith(RESERVED_PREFIXES))


OF_TRAINING, OF_SHELL = _named(LAUNCHER, SCRIPT), _named(SHELL)


def is_reserved(name: str) -> bool:
    """Return whether a variable is reserved: a job file must not set it, and a node removes it from its environment."""
    return name.startswith(RESERVED_PREFIXES) or name in OF_TRAINING or name in OF_SHELL


SET_BY_SCRIPT = [variable for variable in TABLE if variable.given_by == SCRIPT]
# The start script unsets these: a launcher that is started in a shell of the user's must not take them for its own.
UNSET_BY_SCRIPT = [variable for variable in TABLE if variable.given_by == LAUNCHER and variable in OF_TRAINING]
