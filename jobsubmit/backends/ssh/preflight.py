"""What would keep a job from starting on its hosts, or make it hang: found before anything is uploaded or started."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsubmit.agent.supervisor.network import watch_seed
from jobsubmit.backends.ssh.connecting import FACTS, question_of
from jobsubmit.backends.ssh.connection import ask, ask_all
from jobsubmit.errors import BackendError

if TYPE_CHECKING:
    from jobsubmit.backends.ssh.spec import SshBackendSpec

_ANSWER_SECONDS = 10.0
_MOST_SKEW_SECONDS = 30.0
_LEAST_DISK, _LEAST_SHARED_MEMORY = 200 << 20, 32 << 20  # bytes
_SAME_EVERYWHERE = {"version": "Python", "torch": "torch", "nccl": "NCCL"}
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class Problem(NamedTuple):
    """What is wrong, and what to do."""

    text: str
    hint: str


class HostFacts(NamedTuple):
    """The facts of a host, and how many seconds its clock is ahead of ours."""

    facts: Mapping[str, Any]
    skew: float


def examine(spec: SshBackendSpec, job_id: str, env: Mapping[str, str], *, needs_torch: bool) -> list[Problem]:
    """Return what is certain to go wrong on the hosts, the worst first; empty if they are ready."""
    question = question_of(spec.python, spec.interface)
    answers = ask_all(spec.hosts, lambda host: _facts_of(host, spec.workdir, question))
    problems = [Problem(error.message, error.hint) for error in answers.values() if isinstance(error, BackendError)]
    if problems:
        return problems
    found = {host: answer for host, answer in answers.items() if isinstance(answer, HostFacts)}
    problems = [*_of_each(spec, found, needs_torch=needs_torch), *_of_all(found)]
    if not problems and len(found) > 1:
        problems = list(_of_network(spec, job_id, env, found))
    return problems


def _facts_of(host: str, root: str, question: Mapping[str, Any]) -> HostFacts:
    """Ask for the facts; the difference of the clocks is off by as long as the answer took, or waited for us."""
    before = time.time()
    facts = ask(host, root, FACTS, question).document
    return HostFacts(facts, float(facts["clock"]) - (before + time.time()) / 2)


def _of_each(spec: SshBackendSpec, found: Mapping[str, HostFacts], *, needs_torch: bool) -> Iterator[Problem]:
    for host, (facts, _) in found.items():
        python = facts["python"]
        if "problem" in python:
            yield Problem(f"{host}: {python['problem']}", "set backend.python to the Python of your training there")
        elif needs_torch and python.get("is_environment") and "torch" not in python:
            hint = f"install it there: {python['program']} -m pip install torch"
            yield Problem(f"{host}: {python['program']} has no torch, and the launcher is part of torch", hint)
        if facts["missing_tools"]:
            yield Problem(f"{host}: not on its PATH: {', '.join(facts['missing_tools'])}", "install them")
        if not facts["is_writable"]:
            yield Problem(f"{host}: {spec.workdir} cannot be written", "set backend.workdir to a folder of yours there")
        if "address_problem" in facts:
            yield Problem(f"{host}: {facts['address_problem']}", "set backend.interface to the one between the hosts")
        yield from _of_room(spec, host, facts)
        users = facts["gpu_users"] if not spec.share_gpus else []
        strangers = [user for user in users if ", job " not in user]
        if strangers:
            hint = "end that process, choose another host, or set backend.share_gpus: true to share the GPU with it"
            yield Problem(f"{host}: {strangers[0]}", hint)


def _of_room(spec: SshBackendSpec, host: str, facts: Mapping[str, Any]) -> Iterator[Problem]:
    if facts["disk"] is not None and facts["disk"] < _LEAST_DISK:
        text = f"{host}: the disk of {spec.workdir} has only {facts['disk'] >> 20} MiB left"
        yield Problem(text, "free space there, or set backend.workdir to a folder on another disk")
    memory = facts["shared_memory"]
    if facts["gpus"] and memory is not None and memory < _LEAST_SHARED_MEMORY:
        text = f"{host}: /dev/shm has only {memory >> 20} MiB left, and NCCL and data loaders need it"
        yield Problem(text, "delete files in /dev/shm, or make it larger (as root): mount -o remount,size=8G /dev/shm")


def _of_all(found: Mapping[str, HostFacts]) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for host, (facts, _) in found.items():
        other = seen.setdefault(facts["identity"], host)
        if other != host:
            yield Problem(f"{other} and {host} are the same machine", "name each host once in backend.hosts")
    for name, title in _SAME_EVERYWHERE.items():
        versions = {host: facts["python"].get(name) for host, (facts, _) in found.items()}
        if name == "torch" and any(versions.values()):
            versions = {host: version or "not installed" for host, version in versions.items()}
        if len({version for version in versions.values() if version}) > 1:
            listed = ", ".join(f"{host}: {version}" for host, version in versions.items() if version)
            yield Problem(f"the versions of {title} differ: {listed}", "install the same version on all hosts")
    drivers = {host: facts["driver"] for host, (facts, _) in found.items() if facts["gpus"]}
    if any(drivers.values()) and not all(drivers.values()):
        without = next(host for host, driver in drivers.items() if not driver)
        yield Problem(
            f"{without} has GPUs, but NVIDIA's driver is not loaded", f"see what this prints: ssh {without} nvidia-smi"
        )
    ahead = max(found, key=lambda host: found[host].skew)
    behind = min(found, key=lambda host: found[host].skew)
    apart = found[ahead].skew - found[behind].skew
    if apart > _MOST_SKEW_SECONDS:
        text = f"the clock of {ahead} is {apart:.0f} s ahead of that of {behind}"
        yield Problem(text, "set the clocks (NTP): jobsubmit compares times to find which rank failed first")


def _of_network(
    spec: SshBackendSpec, job_id: str, env: Mapping[str, str], found: Mapping[str, HostFacts]
) -> Iterator[Problem]:
    """Try whether each host reaches host 0, at the address of the rendezvous and at those that variables choose."""
    first, *others = spec.hosts
    address = found[first].facts["address"]
    chosen = dict(_chosen_addresses(env, found))
    places = sorted({address, *(addresses[first] for addresses in chosen.values() if addresses.get(first))})
    seeds = [job_id, watch_seed(job_id)]
    listening = {"addresses": places, "seeds": seeds}
    try:
        opened = ask(first, spec.workdir, "listen", listening, seconds=_ANSWER_SECONDS).document
    except BackendError as error:
        yield Problem(error.message, error.hint)
        return
    question = {"addresses": places, "ports": opened["ports"]}
    answers = ask_all(others, lambda host: ask(host, spec.workdir, "reach", question).document["problems"])
    ask(first, spec.workdir, "missing", {"names": []})  # it listens until the next question
    for place, problem in opened["problems"].items():
        yield Problem(f"{first} cannot listen at {place}: {problem}", f"log in and look for the cause: ssh {first}")
    usable = found[first].facts.get("interface") or f"the one with the address {address}"
    for host, problems in answers.items():
        if isinstance(problems, BackendError):
            yield Problem(problems.message, problems.hint)
            continue
        if problems.get(address):
            yield _unreachable(spec, host, first, address, problems[address], found)
            return
        for variable, addresses in chosen.items():
            own, its = addresses.get(first), addresses.get(host)
            problem = problems.get(own) if own else f"{first} has no such interface"
            problem = problem or (None if its else f"{host} has no such interface")
            if own and own == its:
                problem = f"{first} and {host} have the same address there, {own}"
            if problem:
                text = f"{variable}={env[variable]} does not lead from {host} to {first}: {problem}"
                yield Problem(text, f"set {variable} in env to the interface between the hosts: {usable}")
                return


def _unreachable(
    spec: SshBackendSpec, host: str, first: str, address: str, problem: str, found: Mapping[str, HostFacts]
) -> Problem:
    interface = found[first].facts.get("interface") or "unknown interface"
    text = f"{host} does not reach {first} at {address} ({interface}), {problem}"
    others = {name: own for name, own in found[first].facts["addresses"].items() if own not in (address, "127.0.0.1")}
    if spec.interface or not others:
        return Problem(text, "open the ports 20000 to 29999 between the hosts, or set backend.interface to another one")
    listed = ", ".join(f"{name} ({own})" for name, own in sorted(others.items()))
    return Problem(
        text,
        f"set backend.interface to the one between the hosts ({first} also has {listed}), which also sets "
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; or open the ports 20000 to 29999",
    )


def _chosen_addresses(
    env: Mapping[str, str], found: Mapping[str, HostFacts]
) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield each variable of the job that chooses an interface, and the address that each host has there."""
    for variable in _INTERFACE_VARIABLES:
        value = env.get(variable, "")
        if not re.fullmatch(r"=?[A-Za-z0-9_.-]+", value):
            continue  # not set, or a list, or a list of what not to use
        name, is_exact = value.lstrip("="), value.startswith("=") or variable.startswith("GLOO")
        yield (
            variable,
            {
                host: next(
                    (
                        own
                        for key, own in sorted(facts["addresses"].items())
                        if key == name or (not is_exact and key.startswith(name))
                    ),
                    None,
                )
                for host, (facts, _) in found.items()
            },
        )
