"""Test what a submission from this machine needs. No test starts or changes a job."""

from __future__ import annotations

import hashlib
import http.client
import os
import platform
import shlex
import shutil
import socket
import stat
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from jobsubmit.agent.atomic_write import make_private
from jobsubmit.agent.authorities import make_context
from jobsubmit.agent.node_contract import DEFAULT_PORT
from jobsubmit.agent.supervisor.network import lease_port
from jobsubmit.agent.supervisor.node_scope import find_gpus
from jobsubmit.backends.local.python import ChosenPython, choose_python, version_of
from jobsubmit.backends.registry import open_backend
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.config import Settings
from jobsubmit.errors import JobSubmitError, StoreError
from jobsubmit.jobs.prepare import prepare
from jobsubmit.plan import launch_plan as planning
from jobsubmit.spec.loader import LoadedSpec
from jobsubmit.stores.opening import open_store

Verdict: TypeAlias = Literal["ok", "warn", "fail"]

# What the start script calls.
_TOOLS = ("bash", "getconf", "grep", "tr")
_SKEW_WARNED, _SKEW_REFUSED = 60, 900  # seconds; beyond 15 minutes S3 and OBS refuse (platform documentation)
_ANSWER_SECONDS = 5


class Line(NamedTuple):
    """The result of one test, and what to do if it is not ok."""

    subject: str
    verdict: Verdict
    text: str
    next_step: str = ""


def examine(settings: Settings, loaded: LoadedSpec | None) -> Iterator[Line]:
    """Yield the result of each test; with a job file, also of its store, backend and code."""
    yield Line("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    backend = loaded.spec.backend if loaded else None
    python = choose_python(getattr(backend, "python", None) if backend and backend.is_this_machine else None)
    yield _torch(python)
    yield _tools()
    yield _state(settings)
    yield _port()
    plan = planning.build_plan(loaded.spec, settings) if loaded else None
    yield from _store(plan.store if plan else settings.completed(StoreAddress()))
    if loaded is None:
        yield _backend(settings)
    else:
        yield from _job(loaded, settings)


def _torch(python: ChosenPython | None) -> Line:
    if python is None:
        return Line("torch", "warn", "`python` is not on PATH", "activate the environment that your training runs in")
    version = version_of(python, "torch")
    if not python.shows_packages:
        return Line(
            "torch",
            "warn",
            f"is not checked for {python.program} ({python.why}): to check it, jobsubmit starts no Python that "
            "a job file names; it reads the packages of venv and conda environments only",
            f'check it yourself: {python.program} -c "import torch"',
        )
    if not version:
        where = f"for {python.program} ({python.why}), which local jobs use"
        step = f"only local jobs need it here: run {python.program} -m pip install torch, or set backend.python"
        return Line("torch", "warn", f"is not installed {where}", step)
    version = f"{version} for {python.program} ({python.why}), which local jobs use"
    gpus = find_gpus(os.environ)
    if not gpus:
        return Line("torch", "ok", f"{version}; no GPU found: local jobs train on CPUs with Gloo")
    driver = "with a driver" if Path("/proc/driver/nvidia/version").exists() else "WITHOUT a driver"
    verdict: Verdict = "ok" if driver == "with a driver" else "warn"
    return Line(
        "torch", verdict, f"{version}; GPUs: {len(gpus)}, {driver}", "" if verdict == "ok" else "run nvidia-smi"
    )


def _tools() -> Line:
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return Line("shell", "fail", f"not on PATH: {', '.join(missing)}", "install them: the start script calls them")
    return Line("shell", "ok", f"all on PATH: {', '.join(_TOOLS)}")


def _state(settings: Settings) -> Line:
    try:
        if not settings.state_dir.is_dir():
            make_private(str(settings.state_dir))
        with tempfile.TemporaryFile(dir=settings.state_dir):
            pass
    except OSError as error:
        step = "set JOBSUBMIT_STATE_DIR to a folder that you can write to"
        return Line("state", "fail", f"{settings.state_dir}: {error.strerror}", step)
    free = shutil.disk_usage(settings.state_dir).free / (1 << 30)
    rights = stat.S_IMODE(settings.state_dir.stat().st_mode)
    if rights & 0o077:
        text = (
            f"{settings.state_dir}: other users have access (mode {rights:o}); what jobsubmit creates in it is private"
        )
        return Line("state", "warn", text, f"chmod 700 {shlex.quote(str(settings.state_dir))}")
    return Line("state", "ok", f"{settings.state_dir}, {free:,.1f} GiB free")


def _port() -> Line:
    try:
        port, held = lease_port(uuid.uuid4().hex)
        held.close()
    except OSError as error:
        return Line("port", "fail", error.strerror or str(error), "stop the programs that use the ports")
    with socket.socket() as probe:
        try:
            probe.bind(("", DEFAULT_PORT))
        except OSError:
            text = f"port {port} is free for a local job; {DEFAULT_PORT} is in use on this machine"
            return Line("port", "warn", text, "free it only if you run start scripts by hand without a port")
    return Line("port", "ok", f"port {port} is free for a local job; {DEFAULT_PORT} is free, too")


def _store(address: StoreAddress) -> Iterator[Line]:
    where = f"{address.uri}{f' at {address.endpoint_url}' if address.endpoint_url else ''}"
    if address.endpoint_url:
        yield from _clock(address, address.endpoint_url)

    def tried() -> str:
        store = open_store(address, is_brief=True)
        key, data = f"jobsubmit-doctor-{uuid.uuid4().hex[:12]}", b"jobsubmit doctor"
        began = time.monotonic()
        store.put(key, data, hashlib.sha256(data).hexdigest())
        same = store.get(key) == data
        store.delete(key)
        said = [f"addressing {address.addressing}" if address.addressing else "", address.region or ""]
        details = ", ".join(filter(None, said))
        seconds = time.monotonic() - began
        text = f"{where}: wrote, read and deleted an object in {seconds:.2f} s{f' ({details})' if details else ''}"
        return text if same else ""

    yield _tried("store", tried, f"{where}: the object that was read differs from the one that was written")


def _clock(address: StoreAddress, endpoint: str) -> Iterator[Line]:
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - the scheme was checked with the job file
    try:
        certificates = open_store(address).certificates
        context = make_context(certificates) if endpoint.startswith("https://") else None
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=context) as answer:  # noqa: S310
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date")
    except (OSError, ValueError, http.client.HTTPException, StoreError):
        return  # that it cannot be reached, the next line says
    if not date:
        return
    skew = abs(time.time() - parsedate_to_datetime(date).timestamp())
    verdict: Verdict = "ok" if skew < _SKEW_WARNED else "warn" if skew < _SKEW_REFUSED else "fail"
    step = "" if verdict == "ok" else "set this machine's clock (NTP): requests are refused if it is 15 minutes off"
    yield Line("clock", verdict, f"differs from the store's clock by {skew:.0f} s", step)


def _backend(settings: Settings) -> Line:
    kind = settings.default_backend.kind if settings.default_backend else "local"

    def tried() -> str:
        open_backend(kind, settings).find(f"doctor-{uuid.uuid4().hex[:12]}")
        return f"{kind} is reachable"

    return _tried("backend", tried)


def _job(loaded: LoadedSpec, settings: Settings) -> Iterator[Line]:
    try:
        prepared = prepare(loaded, settings)
    except JobSubmitError as error:
        yield Line("job", "fail", error.message, error.hint)
        return
    yield Line("job", "ok", f"{loaded.document.source}: mode {prepared.plan.mode}, the checks found no errors")
    kind = prepared.plan.backend.kind

    def tried() -> str:
        open_backend(kind, settings).preflight(prepared.plan, prepared.request)
        return f"{kind} is reachable, and would accept the job"

    yield _tried("backend", tried)


def _tried(subject: str, act: Callable[[], str], otherwise: str = "") -> Line:
    try:
        text = act()
    except JobSubmitError as error:
        return Line(subject, "fail", error.message, error.hint)
    except OSError as error:
        return Line(subject, "fail", str(error), "check the state directory (line `state`)")
    return Line(subject, "ok", text) if text else Line(subject, "fail", otherwise)
