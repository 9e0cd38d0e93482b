"""A real Slurm for the tests: its daemons as children of ours, N virtual nodes on loopback; run it to install it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import packages

_DEBIAN = ("slurmctld", "slurmd", "slurm-client", "munge")
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
_BASE_PORT = 17000
_HOSTS = Path("/etc/hosts")

_CONF = """\
ClusterName=jobsubmit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
EnforcePartLimits=ALL
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=5
MinJobAge={min_job_age}
InactiveLimit=0
JobRequeue=1
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=slurm[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4 RealMemory=8000 \
Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=short Nodes=ALL MaxTime=1 State=UP
"""


@dataclass
class Slurm:
    """Hold a running cluster: the environment its clients need, and the daemons by name."""

    environment: dict[str, str]
    nodes: int
    spool: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def kill(self, daemon: str) -> None:
        """Kill one daemon, e.g. `slurmd.2`, as a crash does; with a node go the steps that run on it."""
        process = self.daemons[daemon]
        for pid in [process.pid, *(_children(process.pid) if daemon.startswith("slurmd") else ())]:
            _signal(pid, signal.SIGKILL)
        process.wait()


def is_there() -> bool:
    """Tell whether Slurm's programs are installed, and whether we may run them as virtual nodes."""
    return os.geteuid() == 0 and all(shutil.which(program) for program in _PROGRAMS)


@contextmanager
def running(folder: Path, nodes: int = 2, base_port: int = _BASE_PORT, min_job_age: int = 3600) -> Iterator[Slurm]:
    """Run a cluster of `nodes` virtual nodes, each with a host name of its own (slurm1, slurm2, …)."""
    (folder / "state").mkdir(parents=True)
    # Sockets are below the nodes' spool folders, and the kernel takes 107 letters for the path of one.
    spool = Path(tempfile.mkdtemp(prefix="slurm-"))
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(
        _CONF.format(
            folder=folder,
            spool=spool,
            host=host,
            port=base_port,
            first=base_port + 1,
            last=base_port + nodes,
            nodes=nodes,
            min_job_age=min_job_age,
        )
    )
    (folder / "gres.conf").write_text(f"NodeName=slurm[1-{nodes}] Name=gpu File=/dev/tty[0-1]\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    cluster = Slurm({"SLURM_CONF": str(conf)}, nodes, spool)
    with _names([f"slurm{number}" for number in range(1, nodes + 1)]):
        try:
            _start(cluster, folder)
            yield cluster
        finally:
            _stop(cluster)
            shutil.rmtree(spool, ignore_errors=True)


def _start(cluster: Slurm, folder: Path) -> None:
    munge = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.sock"]
    munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"]
    cluster.daemons["munged"] = _daemon(folder, "munged", munge)
    _wait((folder / "munge.sock").exists, "munged", folder)
    start_controller(cluster, folder)
    for number in range(1, cluster.nodes + 1):
        start_node(cluster, folder, number)
    _wait(lambda: idle_nodes(cluster) == cluster.nodes, "the nodes", folder)


def start_controller(cluster: Slurm, folder: Path) -> None:
    """Start the controller, and return when it answers."""
    conf = cluster.environment["SLURM_CONF"]
    cluster.daemons["slurmctld"] = _daemon(folder, "slurmctld", ["slurmctld", "-D", "-i", "-f", conf])
    ping = ["scontrol", "ping"]
    environment = {**os.environ, **cluster.environment}
    _wait(
        lambda: "UP" in subprocess.run(ping, env=environment, capture_output=True, text=True).stdout,
        "the controller",
        folder,
    )


def start_node(cluster: Slurm, folder: Path, number: int) -> None:
    """Start the daemon of one node, in a UTS namespace of its own: its host name is the node's."""
    conf, name = cluster.environment["SLURM_CONF"], f"slurm{number}"
    (cluster.spool / name).mkdir(exist_ok=True)
    start = 'hostname "$1" && exec slurmd -D -N "$1" -f "$2"'
    command = ["unshare", "--uts", "sh", "-c", start, "sh", name, conf]
    cluster.daemons[f"slurmd.{number}"] = _daemon(folder, f"slurmd.{number}", command)


def idle_nodes(cluster: Slurm) -> int:
    """Return how many nodes wait for work."""
    command = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%t"]
    done = subprocess.run(command, env={**os.environ, **cluster.environment}, capture_output=True, text=True)
    return done.stdout.split().count("idle")


def _daemon(folder: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.out").open("ab") as log:
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


def _wait(is_so: object, what: str, folder: Path, seconds: float = 30) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            said = "".join(log.read_text(errors="replace")[-2000:] for log in sorted(folder.glob("*.out")))
            raise RuntimeError(f"Slurm: {what} did not come up\n{said}")
        time.sleep(0.05)


def _stop(cluster: Slurm) -> None:
    environment = {**os.environ, **cluster.environment}
    if "slurmctld" in cluster.daemons and cluster.daemons["slurmctld"].poll() is None:
        subprocess.run(["scancel", "--full", "--user=root"], env=environment, capture_output=True, timeout=20)
        time.sleep(0.3)
    for name, process in reversed(cluster.daemons.items()):
        left = _children(process.pid) if name.startswith("slurmd") else []
        process.terminate()
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in left:
            _signal(pid, signal.SIGKILL)
    for pid in _orphans(cluster):
        _signal(pid, signal.SIGKILL)


def _orphans(cluster: Slurm) -> list[int]:
    """Return the pids of this cluster's step daemons whose own slurmd is gone: a test may have lost a node."""
    ours = f"SLURM_CONF={cluster.environment['SLURM_CONF']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_step = (process / "comm").read_text().startswith("slurmstepd")
            if is_step and ours in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _children(pid: int) -> list[int]:
    """Return the pids below a process, step daemons and what they started among them."""
    parents: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(process.name))
    found, queue = [], [pid]
    while queue:
        below = parents.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def _names(names: list[str]) -> Iterator[None]:
    """Let the nodes' names lead to this machine while the cluster runs; slurmd and the jobs look them up."""
    ours = {f"127.0.0.1 {name}" for name in names}
    before = _HOSTS.read_text()
    missing = [line for line in sorted(ours) if line not in before.splitlines()]
    with _HOSTS.open("a") as hosts:
        hosts.writelines(f"{line}\n" for line in missing)
    try:
        yield
    finally:
        lines = [line for line in _HOSTS.read_text().splitlines(keepends=True) if line.strip() not in missing]
        _HOSTS.write_text("".join(lines))


if __name__ == "__main__":
    packages.install(_DEBIAN)
