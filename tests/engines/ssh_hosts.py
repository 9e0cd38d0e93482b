"""Hosts that are reached with SSH, on this machine (root): each has its own network, host name, processes and home.

The first is gpu1. They share the rest of the file system, as hosts with a shared folder do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import packages

_START_SECONDS = 20
_SSHD = "/usr/sbin/sshd"
USER, _USER_ID = "trainer", 12345


def is_there() -> bool:
    """Tell whether there can be any."""
    tools = ("ip", "tc", "ssh", "ssh-keygen", "unshare", "nft", "nsenter")
    return os.geteuid() == 0 and Path(_SSHD).exists() and all(map(shutil.which, tools))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@dataclass
class Hosts:
    """Running hosts; `bin` is a folder whose `ssh` knows them by name."""

    folder: Path
    subnet: str
    tag: str
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def address(self, number: int) -> str:
        """Return the address of a host, the first being 1."""
        return f"{self.subnet}.{10 + number}"

    def home(self, number: int) -> Path:
        """Return its home, as this machine sees it."""
        return self.folder / f"home{number}"

    def start(self, number: int) -> None:
        """Start a host, with the address it had before, if any."""
        space, link = self.space(number), self.link(number)
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "-n", space, "link", "set", "eth0", "address", f"02:4a:53:00:00:{number:02x}")  # as after a reboot
        _run("ip", "link", "set", link, "master", self.bridge, "up")
        _run("ip", "-n", space, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _run("ip", "-n", space, "link", "set", device, "up")
        config = self.folder / f"sshd{number}.conf"
        config.write_text(
            f"Port 22\nListenAddress {self.address(number)}\nHostKey {self.folder}/host\nStrictModes no\nUsePAM no\n"
            f"AuthorizedKeysFile /home/client.pub\nPidFile none\nMaxStartups 100\n"
        )
        self.home(number).mkdir(exist_ok=True)
        root, *users = Path("/etc/passwd").read_text().splitlines(keepends=True)
        passwd = self.folder / f"passwd{number}"
        ordinary = f"{USER}:x:{_USER_ID}:{_USER_ID}::/home/{USER}:/bin/bash\n"
        passwd.write_text(root.replace(":/root:", f":{self.home(number)}:") + "".join(users) + ordinary)
        begin = (
            f"mount -t tmpfs tmpfs /home && cp {self.folder}/client.pub /home && mkdir /home/{USER} && "
            f"chown {_USER_ID}:{_USER_ID} /home/{USER} && "
            "mknod -m 666 /home/null c 1 3 && mount --bind /home/null /dev/null && "  # some containers keep it for root
            f"mount --bind {passwd} /etc/passwd && mount --bind {self.folder}/hosts /etc/hosts && "
            f"hostname gpu{number} && exec {_SSHD} -D -f {config} -E {self.folder}/sshd{number}.log"
        )
        own = [
            "unshare",
            "--uts",
            "--mount",
            "--propagation",
            "slave",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            begin,
        ]
        self.processes[number] = subprocess.Popen(["ip", "netns", "exec", space, *own], start_new_session=True)
        deadline = time.monotonic() + _START_SECONDS
        while self.ssh(number, "true").returncode != 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"gpu{number} does not answer: {self.ssh(number, 'true').stderr}")
            time.sleep(0.1)

    @property
    def bridge(self) -> str:
        return f"jsb{self.tag}"

    def space(self, number: int) -> str:
        """Return the name of its network namespace."""
        return f"jsn{self.tag}-{number}"

    def link(self, number: int) -> str:
        """Return the name of this machine's end of its cable."""
        return f"jsl{self.tag}-{number}"

    def ssh(self, number: int, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host."""
        return subprocess.run([self.bin / "ssh", f"gpu{number}", command], capture_output=True, text=True, timeout=60)

    def inside(self, number: int, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in the network of a host, with its input."""
        command = ["ip", "netns", "exec", self.space(number), *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True)

    def processes_of(self, number: int) -> list[int]:
        """Return the pids on a host, as this machine sees them, apart from sshd's own."""
        done = subprocess.run(["ip", "netns", "pids", self.space(number)], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split() if not _is_of_sshd(int(pid))]

    def unplug(self, number: int) -> None:
        """Pull its cable."""
        _run("ip", "link", "set", self.link(number), "down")

    def plug(self, number: int) -> None:
        """Put its cable back."""
        _run("ip", "link", "set", self.link(number), "up")

    def power_off(self, number: int) -> None:
        """End all its processes at once."""
        process = self.processes.pop(number)
        for pid in subprocess.run(["ip", "netns", "pids", self.space(number)], capture_output=True).stdout.split():
            if _is_first(int(pid)):
                os.kill(int(pid), signal.SIGKILL)
        process.kill()
        process.wait()
        _run("ip", "netns", "del", self.space(number))
        subprocess.run(["ip", "link", "del", self.link(number)], capture_output=True)

    @property
    def sockets(self) -> Path:
        """Return the folder of the sockets of shared connections, as XDG_RUNTIME_DIR; their paths must be short."""
        return Path(tempfile.gettempdir()) / f"js{self.tag}"

    def break_connections(self) -> None:
        """Kill every connection to the hosts."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = f"{self.sockets}/".encode() in (process / "cmdline").read_bytes()
            except OSError:
                continue
            if is_ours:
                with suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)

    def firewall(self, number: int, ports: str) -> None:
        """Drop what comes in on some ports, 20000-29999 or one of them; `` lifts it."""
        rule = f" tcp dport {ports} drop\n" if ports else ""
        text = f"table inet f {{\n chain i {{\n type filter hook input priority 0;\n{rule} }}\n}}\n"
        self.inside(number, "nft", "flush", "ruleset")
        self.inside(number, "nft", "-f", "-", text=text)


def _is_first(pid: int) -> bool:
    """Tell whether a process is the first of its own namespace."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    names = next(line for line in text.splitlines() if line.startswith("NSpid:")).split()
    return len(names) > 2 and names[-1] == "1"


def _is_of_sshd(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return words.startswith((b"sshd", _SSHD.encode(), b"unshare")) or not words


@contextmanager
def running(folder: Path, count: int) -> Iterator[Hosts]:
    """Run some hosts; everything they are made of ends with the block."""
    tag = f"{os.getpid() % 100_000:05d}"
    hosts = Hosts(folder, f"10.77.{1 + os.getpid() % 250}", tag)
    hosts.bin.mkdir()
    hosts.sockets.mkdir(mode=0o700)
    for key in ("client", "host"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    known = (folder / "host.pub").read_text().split()
    numbers = range(1, count + 1)
    (folder / "known_hosts").write_text("".join(f"{hosts.address(n)} {known[0]} {known[1]}\n" for n in numbers))
    names = "".join(f"{hosts.address(n)} gpu{n}\n" for n in numbers)  # without one, each look for a name takes seconds
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    entries = [
        f"Host gpu{n} {hosts.address(n)}\n HostName {hosts.address(n)}\n User root\n IdentityFile {folder}/client\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {folder}/known_hosts\n"
        for n in numbers
    ]
    # far1 is gpu1, and can be reached only by way of the last host.
    entries += [
        entry.replace(f"Host gpu{n} ", f"Host far{n} ") + f" ProxyJump gpu{count}\n"
        for n, entry in enumerate(entries, 1)
    ]
    (folder / "config").write_text("".join(entries))
    (hosts.bin / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (hosts.bin / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    try:
        _run("ip", "link", "add", hosts.bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{hosts.subnet}.1/24", "dev", hosts.bridge)
        _run("ip", "link", "set", hosts.bridge, "up")
        for number in numbers:
            hosts.start(number)
        yield hosts
    finally:
        for number in list(hosts.processes):
            hosts.power_off(number)
        hosts.break_connections()
        shutil.rmtree(hosts.sockets)
        subprocess.run(["ip", "link", "del", hosts.bridge], capture_output=True)


if __name__ == "__main__":
    if not is_there():
        packages.install(["openssh-server", "openssh-client", "iproute2", "nftables", "util-linux"])
    sys.exit(0 if is_there() else 1)
