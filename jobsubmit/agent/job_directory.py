"""Every file of a job directory: who writes it, and its purpose."""

from __future__ import annotations

import os
import signal

STREAMS = ("stdout", "stderr")
RESOLVED, PLAN, DIFFERENCE, LEFT_OUT = "resolved.yaml", "plan.json", "uncommitted.diff", "left-out.json"
SCRIPT_NAME = "start.sh"
LOCAL_REQUEST = "local.json"  # what the local backend was asked for
SIGNAL_BASE = 128  # a shell reports signal N as exit code 128 + N
USUAL_ROOT = "~/.jobsubmit"  # of the jobs on a host; the queue is there, whatever the work folder of a job is
STACK_SIGNAL = (signal.SIGRTMAX - 3) if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2  # asks a rank for its stacks


class JobDirectory:
    """The paths of a job's files; on a platform each node has such a directory for each attempt."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path = os.fspath(path)
        # The client writes these, before and while it submits.
        self.record = os.path.join(path, "record.json")  # what the job is, and where it went
        self.resolved = os.path.join(path, RESOLVED)  # the job file, with flags applied and paths absolute
        self.plan = os.path.join(path, PLAN)  # what was decided, for `rerun` and `report`
        self.difference = os.path.join(path, DIFFERENCE)  # what of the code is in no commit
        self.left_out = os.path.join(path, LEFT_OUT)  # what of the code was not uploaded, and why
        self.submitting = os.path.join(path, "submitting")  # locked while a client submits the job
        self.cancel_asked = os.path.join(path, "cancel-asked")  # for a client that is still submitting it
        # The guardian and the supervisor of a local job write these, or the agent of a node.
        self.request = os.path.join(path, LOCAL_REQUEST)
        self.lock = os.path.join(path, "lock")  # held as long as guardian or supervisor lives
        self.status = os.path.join(path, "status.json")  # a NodeStatus, replaced whole
        self.events = os.path.join(path, "events.jsonl")  # an Event a line; the ranks append, too
        self.agent_log = os.path.join(path, "gang.log")  # the output of guardian and supervisor themselves
        self.reserve = os.path.join(path, ".reserve")  # room for the last status on a disk that is full by then
        self.control_group = os.path.join(path, "control-group")  # the path of the job's control group
        self.processes = os.path.join(path, "processes.json")  # by whom, and which processes were seen
        self.hosts = os.path.join(path, "hosts")  # the addresses of all nodes, where they are too many for a variable
        self.nodes = os.path.join(path, "nodes")  # of a local job: each node's MA_JOB_DIR, by its number
        self.checkpoints = os.path.join(path, "checkpoints")
        # Ranks and nodes write these; see logs/.
        self.logs = os.path.join(path, "logs")
        self.log_index = os.path.join(self.logs, "index")
        self.log_cuts = os.path.join(self.logs, "cuts.json")
        self.stacks = os.path.join(path, "stacks")  # where each rank was when the job hung
        self.timing = os.path.join(path, "timing")  # what each rank measured; see timing/recorder.py
        # Whoever wants the job to end writes it: empty, or its grace time in seconds.
        self.cancel = os.path.join(path, "cancel")

        # Whoever runs this node for an engine of ours writes it: the grace time of its processes, in seconds.
        self.stop = os.path.join(path, "stop")

    def log_of(self, node: int, rank: int | None, stream: str) -> str:
        """Return the log of one stream of a rank, or of its node apart from its ranks."""
        name = "node-%d" % node if rank is None else "rank-%d" % rank
        return os.path.join(self.logs, "%s.%s.log" % (name, stream))

    def stacks_of(self, rank: int) -> str:
        """Return the file to which a rank writes its stacks when asked."""
        return os.path.join(self.stacks, "rank-%d.txt" % rank)

    def standstill_of(self, rank: int) -> str:
        """Return the file in which a rank notes what it waits for in NCCL, if it waits long."""
        return os.path.join(self.stacks, "rank-%d.nccl.json" % rank)

    def error_of(self, rank: int) -> str:
        """Return the copy of torch's error file of a rank."""
        return os.path.join(self.path, "error-rank-%d.json" % rank)

    def data_of(self, kind: str, name: str) -> str:
        """Return the folder of an input or an output."""
        return os.path.join(self.path, kind + "s", name)

    def node_of(self, attempt: int, node: int) -> JobDirectory:
        """Return the job directory of one node in one attempt, in a folder that the nodes of a job share."""
        return JobDirectory(os.path.join(self.path, "run-%d" % attempt, "node-%d" % node))
