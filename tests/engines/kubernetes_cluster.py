"""A real Kubernetes with Volcano for the tests: control plane and nodes as children of ours; run it to build it.

Every node is a containerd and a kubelet; their pods meet on one bridge of this machine, without a route out.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster_programs
import packages
import yaml

_DEBIAN = ("containerd", "runc", "containernetworking-plugins", "debootstrap", "openssl", "iproute2", "procps")
_PORT = 18000
_KUBELET_PORT = 10250
_BRIDGE, _NET = "jobsubmit0", "10.88"
GATEWAY = f"{_NET}.0.1"
_CGROUPS = Path("/sys/fs/cgroup")
# kubelet sets these for the whole machine.
_SYSCTLS = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
)
_SCHEDULER = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: overcommit}, {name: predicates}, {name: proportion}, {name: nodeorder}, {name: binpack}]
"""


@dataclass
class Cluster:
    """Hold a running cluster: how to get in, and its processes by name."""

    folder: Path
    kubeconfig: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def kubectl(self, *args: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl as the administrator."""
        command = [str(cluster_programs.folder() / "bin" / "kubectl"), "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(args)}: {done.stderr}")
        return done.stdout

    def kill_node(self, number: int) -> None:
        """Let a node vanish: its kubelet and its runtime, with all that runs on it."""
        for name in (f"kubelet{number}", f"containerd{number}"):
            process = self.processes.pop(name)
            if name.startswith("containerd"):
                _end_containers(self.folder / f"node{number}")
            process.kill()
            process.wait()


def revive_node(cluster: Cluster, number: int) -> None:
    """Bring back a node that was killed, without what ran on it."""
    folder = cluster.folder / f"node{number}"
    _spawn(cluster, f"containerd{number}", ["containerd", "-c", folder / "containerd.toml"])
    _wait_for_runtime(cluster, number)
    _end_containers(folder)
    _spawn_kubelet(cluster, number, cluster_programs.folder() / "bin")
    _wait_for_node(cluster, number)


def is_there() -> bool:
    """Tell whether all programs are installed and built, and whether we may run them."""
    return os.geteuid() == 0 and shutil.which("containerd") is not None and cluster_programs.is_built()


@contextmanager
def running(folder: Path, nodes: int = 2) -> Iterator[Cluster]:
    """Run a cluster; of what it changes on this machine nothing is left afterwards."""
    programs = cluster_programs.folder()
    for name in ("log", "pki", "etcd"):
        (folder / name).mkdir(parents=True)
    cluster = Cluster(folder, folder / "kubeconfig")
    before = _sysctls()
    try:
        _make_credentials(folder / "pki")
        _write_kubeconfig(cluster)
        _make_bridge()
        _start(cluster, programs / "bin", programs, nodes)
        yield cluster
    finally:
        _stop(cluster, nodes)
        subprocess.run(["sysctl", "-q", "-w", *before], check=False, capture_output=True)


# ── start ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _start(cluster: Cluster, programs: Path, cache: Path, nodes: int) -> None:
    api = f"https://127.0.0.1:{_PORT + 1}"
    pki, kubeconfig = cluster.folder / "pki", f"--kubeconfig={cluster.kubeconfig}"
    etcd = [f"http://127.0.0.1:{_PORT}", f"http://127.0.0.1:{_PORT + 9}"]
    _spawn(
        cluster,
        "etcd",
        [
            programs / "etcd",
            f"--data-dir={cluster.folder / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={etcd[0]}",
            f"--advertise-client-urls={etcd[0]}",
            f"--listen-peer-urls={etcd[1]}",
            f"--initial-advertise-peer-urls={etcd[1]}",
            f"--initial-cluster=default={etcd[1]}",
        ],
    )
    _spawn(
        cluster,
        "apiserver",
        [
            programs / "kube-apiserver",
            f"--etcd-servers={etcd[0]}",
            "--bind-address=127.0.0.1",
            f"--secure-port={_PORT + 1}",
            f"--advertise-address={GATEWAY}",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={pki}/server.crt",
            f"--tls-private-key-file={pki}/server.key",
            f"--client-ca-file={pki}/ca.crt",
            f"--token-auth-file={pki}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.key",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--kubelet-preferred-address-types=InternalIP",
            "--profiling=false",
            "--default-not-ready-toleration-seconds=5",
            "--default-unreachable-toleration-seconds=5",
        ],
    )
    with ThreadPoolExecutor() as pool:
        runtimes = [pool.submit(_start_runtime, cluster, number, cache) for number in range(1, nodes + 1)]
        _wait(lambda: cluster.kubectl("get", "--raw", "/readyz", check=False) == "ok", "the API server", cluster)
        _spawn(
            cluster,
            "controllers",
            [
                programs / "kube-controller-manager",
                kubeconfig,
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={_PORT + 2}",
                f"--service-account-private-key-file={pki}/sa.key",
                f"--root-ca-file={pki}/ca.crt",
                "--node-monitor-grace-period=10s",
                "--node-monitor-period=1s",
                "--controllers=*,-ttl,-bootstrapsigner,-tokencleaner,-certificatesigningrequest-signing-controller",
            ],
        )
        _start_volcano(cluster, programs, cache)
        for runtime in runtimes:
            runtime.result()
    for number in range(1, nodes + 1):
        _start_kubelet(cluster, number, programs)
        _wait_for_node(cluster, number)  # kubelets bind one fixed socket for device plugins: two at once collide
    _start_dns(cluster, programs, api)
    queue = ["get", "queue", "default", "-o", "jsonpath={.status.state}"]
    _wait(lambda: cluster.kubectl(*queue, check=False) == "Open", "Volcano's queue", cluster)
    _wait(lambda: "default" in cluster.kubectl("get", "sa", check=False), "the service account", cluster)


def _start_volcano(cluster: Cluster, programs: Path, cache: Path) -> None:
    pki, kubeconfig = cluster.folder / "pki", f"--kubeconfig={cluster.kubeconfig}"
    webhook = f"https://127.0.0.1:{_PORT + 3}"
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=_volcano_objects(cache, webhook))
    # `kubectl wait` fails for a type that has no conditions yet.
    established = '{range .items[*]}{.status.conditions[?(@.type=="Established")].status}{"\\n"}{end}'
    types = ["get", "crd", "-o", f"jsonpath={established}"]
    _wait(lambda: set(cluster.kubectl(*types, check=False).splitlines()) == {"True"}, "Volcano's types", cluster)
    scheduler = cluster.folder / "scheduler.yaml"
    scheduler.write_text(_SCHEDULER)
    common = [kubeconfig, "--logtostderr", "--v=2"]
    admissions = "/jobs/mutate,/jobs/validate,/podgroups/validate,/queues/mutate,/queues/validate"
    _spawn(
        cluster,
        "vc-webhook",
        [
            programs / "vc-webhook-manager",
            *common,
            "--listen-address=127.0.0.1",
            f"--port={_PORT + 3}",
            f"--webhook-url={webhook}",
            f"--ca-cert-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/server.crt",
            f"--tls-private-key-file={pki}/server.key",
            f"--enabled-admission={admissions}",
        ],
    )
    _spawn(cluster, "vc-controllers", [programs / "vc-controller-manager", *common, "--leader-elect=false"])
    _spawn(
        cluster,
        "vc-scheduler",
        [
            programs / "vc-scheduler",
            *common,
            "--leader-elect=false",
            f"--scheduler-conf={scheduler}",
            "--schedule-period=200ms",
        ],
    )


def _volcano_objects(cache: Path, webhook: str) -> str:
    """Return Volcano's own definitions and webhooks, the latter to be found where our process listens."""
    chosen = []
    for item in yaml.safe_load_all((cache / "volcano-development.yaml").read_text()):
        kind = (item or {}).get("kind")
        name = (item or {}).get("metadata", {}).get("name", "")
        if kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            if "hypernodes" in name or "cronjobs" in name:
                continue
            for hook in item["webhooks"]:
                hook["clientConfig"] = {"url": webhook + hook["clientConfig"]["service"]["path"]}
        if kind in ("CustomResourceDefinition", "Namespace") or "Webhook" in str(kind):
            chosen.append(item)
    return str(yaml.safe_dump_all(chosen))


def _start_runtime(cluster: Cluster, number: int, cache: Path) -> None:
    """Start containerd for one node, and give it the images."""
    folder = cluster.folder / f"node{number}"
    (folder / "cni").mkdir(parents=True)
    config = {
        "version": 2,
        "root": str(folder / "root"),
        "state": str(folder / "state"),
        "oom_score": 0,  # where there is no CAP_SYS_RESOURCE it may not be lowered
        "grpc": {"address": str(folder / "containerd.sock")},
        "plugins": {
            "io.containerd.grpc.v1.cri": {
                "sandbox_image": cluster_programs.PAUSE_IMAGE,
                "restrict_oom_score_adj": True,
                "disable_hugetlb_controller": True,
                "disable_tcp_service": True,
                "containerd": {
                    "snapshotter": "overlayfs",
                    "default_runtime_name": "runc",
                    "runtimes": {
                        "runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": False}}
                    },
                },
                "cni": {"bin_dir": "/usr/lib/cni", "conf_dir": str(folder / "cni")},
            },
            "io.containerd.internal.v1.opt": {"path": str(folder / "opt")},
        },
    }
    (folder / "containerd.toml").write_text(_toml(config))
    ranges = [[{"subnet": f"{_NET}.0.0/16", "rangeStart": f"{_NET}.{number}.2", "rangeEnd": f"{_NET}.{number}.250"}]]
    bridge = {"type": "bridge", "bridge": _BRIDGE, "isGateway": False, "ipMasq": False, "hairpinMode": True}
    bridge["ipam"] = {"type": "host-local", "dataDir": str(folder / "ipam"), "ranges": ranges}
    network = {"cniVersion": "0.4.0", "name": "jobsubmit", "plugins": [bridge]}
    (folder / "cni" / "10-jobsubmit.conflist").write_text(json.dumps(network))
    _spawn(cluster, f"containerd{number}", ["containerd", "-c", folder / "containerd.toml"])
    ctr = ["ctr", "--address", str(folder / "containerd.sock")]
    _wait_for_runtime(cluster, number)
    for image in sorted((cache / "images").glob("*.tar")):
        command = [*ctr, "--namespace", "k8s.io", "images", "import", str(image)]
        subprocess.run(command, check=True, capture_output=True)


def _toml(table: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    lines = [f"[{'.'.join(path)}]"] if path else []
    words = {True: "true", False: "false"}
    for key, value in table.items():
        if not isinstance(value, dict):
            lines.append(f"{key} = {words[value] if isinstance(value, bool) else repr(value)}")
    tables = [_toml(value, (*path, f'"{key}"')) for key, value in table.items() if isinstance(value, dict)]
    return "\n".join([*lines, *tables])


def _start_kubelet(cluster: Cluster, number: int, programs: Path) -> None:
    folder, group = cluster.folder / f"node{number}", f"jobsubmit-node{number}"
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": GATEWAY,
        "port": _KUBELET_PORT + number,
        "healthzPort": _PORT + 20 + number,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "podLogsDir": str(folder / "logs"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "failSwapOn": False,
        "failCgroupV1": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "clusterDNS": [GATEWAY],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "5s",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 99,
        "imageGCLowThresholdPercent": 98,
        "maxPods": 250,
        "serializeImagePulls": False,
    }
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(config))
    for hierarchy in _CGROUPS.iterdir():  # its root must be there before it starts, in every hierarchy of cgroup v1
        if not hierarchy.is_dir():
            continue
        (hierarchy / group).mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / name).exists():
                (hierarchy / group / name).write_text((hierarchy / name).read_text())
    _spawn_kubelet(cluster, number, programs)


def _wait_for_runtime(cluster: Cluster, number: int) -> None:
    """Return when a containerd answers a kubelet: the last thing it says before it does."""
    log = cluster.folder / "log" / f"containerd{number}.log"
    _wait(lambda: "Start streaming server" in log.read_text(errors="replace"), f"containerd {number}", cluster)


def _wait_for_node(cluster: Cluster, number: int) -> None:
    status = ["get", "node", f"machine{number}", "--no-headers"]
    _wait(lambda: " Ready " in cluster.kubectl(*status, check=False), f"node {number}", cluster)


def _spawn_kubelet(cluster: Cluster, number: int, programs: Path) -> None:
    folder = cluster.folder / f"node{number}"
    _spawn(
        cluster,
        f"kubelet{number}",
        [
            programs / "kubelet",
            f"--config={folder / 'kubelet.yaml'}",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--hostname-override=machine{number}",
            f"--node-ip={GATEWAY}",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'kubelet' / 'pki'}",
            "--v=2",
        ],
    )


def _start_dns(cluster: Cluster, programs: Path, api: str) -> None:
    config = cluster.folder / "Corefile"
    config.write_text(
        f".:53 {{\n  bind {GATEWAY}\n  errors\n  kubernetes cluster.local {{\n    kubeconfig {cluster.kubeconfig}\n"
        "    pods verified\n    ttl 1\n  }\n}\n"
    )
    _spawn(cluster, "coredns", [programs / "coredns", "-conf", config])


def _make_credentials(pki: Path) -> None:
    """Make one authority, one certificate for all our servers, a key for service accounts, and a token to get in."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=pki, check=True, capture_output=True)

    names = f"subjectAltName=IP:127.0.0.1,IP:{GATEWAY},IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc"
    (pki / "names").write_text(names)
    new = ("-newkey", "rsa:2048", "-nodes", "-keyout")
    openssl("req", "-x509", *new, "ca.key", "-out", "ca.crt", "-days", "30", "-subj", "/CN=jobsubmit-tests")
    openssl("req", *new, "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.crt", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-days", "30", *signed)
    openssl("genrsa", "-out", "sa.key", "2048")
    (pki / "tokens.csv").touch(0o600)
    (pki / "tokens.csv").write_text(f"{secrets.token_hex(16)},admin,admin,system:masters\n")


def _write_kubeconfig(cluster: Cluster) -> None:
    token = (cluster.folder / "pki" / "tokens.csv").read_text().partition(",")[0]
    cluster.kubeconfig.touch(0o600)
    cluster.kubeconfig.write_text(kubeconfig_text(cluster, token))


def kubeconfig_text(cluster: Cluster, token: str, namespace: str = "default") -> str:
    """Return a configuration of kubectl's that gets in with a token."""
    server = {"server": f"https://127.0.0.1:{_PORT + 1}", "certificate-authority": f"{cluster.folder}/pki/ca.crt"}
    return str(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": server}],
                "users": [{"name": "user", "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}],
            }
        )
    )


def _make_bridge() -> None:
    if subprocess.run(["ip", "link", "show", _BRIDGE], capture_output=True).returncode != 0:
        for args in (
            # An address of its own: a bridge takes that of a pod otherwise, which changes when the pod goes.
            ["link", "add", _BRIDGE, "address", "02:88:00:00:00:01", "type", "bridge"],
            ["addr", "add", f"{GATEWAY}/16", "dev", _BRIDGE],
            ["link", "set", _BRIDGE, "up"],
        ):
            subprocess.run(["ip", *args], check=True, capture_output=True)


def _sysctls() -> list[str]:
    done = subprocess.run(["sysctl", *_SYSCTLS], capture_output=True, text=True)
    return [line.replace(" = ", "=") for line in done.stdout.splitlines()]


def _spawn(cluster: Cluster, name: str, command: list[Any]) -> None:
    with (cluster.folder / "log" / f"{name}.log").open("wb") as log:
        cluster.processes[name] = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=cluster.folder,
            start_new_session=True,
        )


def _wait(is_so: Callable[[], bool], what: str, cluster: Cluster, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        started = cluster.processes.copy()  # other threads start more meanwhile
        dead = [name for name, process in started.items() if process.poll() is not None]
        if dead or time.monotonic() > deadline:
            logs = [(cluster.folder / "log" / f"{name}.log") for name in dead or started]
            said = "\n".join(f"── {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)
            raise RuntimeError(f"Kubernetes: {what} did not come up\n{said}")
        time.sleep(0.1)


# ── stop ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _stop(cluster: Cluster, nodes: int) -> None:
    runtimes = {f"containerd{number}" for number in range(1, nodes + 1)}
    for name, process in cluster.processes.items():
        if name not in runtimes:
            process.terminate()
    for number in range(1, nodes + 1):
        _end_containers(cluster.folder / f"node{number}")
    for name in runtimes & set(cluster.processes):
        cluster.processes[name].terminate()
    for process in cluster.processes.values():
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{cluster.folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True)
    for group in _CGROUPS.glob("*/jobsubmit-node*"):
        for below in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):
                below.rmdir()
        with suppress(OSError):
            group.rmdir()
    subprocess.run(["ip", "link", "delete", _BRIDGE], capture_output=True)


def _end_containers(folder: Path) -> None:
    """End every task of a node's runtime, and with them the shims that hold them."""
    ctr = ["ctr", "--address", str(folder / "containerd.sock"), "--namespace", "k8s.io"]
    if not (folder / "containerd.sock").exists():
        return
    with suppress(subprocess.TimeoutExpired):
        for kind in ("task", "container"):
            listed = subprocess.run([*ctr, kind, "ls", "-q"], capture_output=True, text=True, timeout=10).stdout.split()
            for name in listed:
                remove = [*ctr, kind, "rm", *(["--force"] if kind == "task" else []), name]
                subprocess.run(remove, capture_output=True, timeout=10)


if __name__ == "__main__":
    packages.install(_DEBIAN)
    cluster_programs.build()
