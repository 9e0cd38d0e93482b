"""A stand-in for ModelArts: checks each signature and body, keeps jobs through the documented phases, and runs them.

It runs a job as the platform documents it: the code directory lies in MA_JOB_DIR, a preset framework's boot file gets
its hyperparameters as --name=value and some that it does not know, an image's command is started without a shell.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
from huaweicloudsdkmodelarts import v1 as sdk
from minio_server import Server

AK, SK, TOKEN, PROJECT = "AKTEST0000", "sk-test-0000000000", "token-test-000", "0f3a5c9e"
FLAVORS = {"cpu.1": 1, "cpu.2": 2}  # name → accelerators that a node is told to have
ENGINE = {"engine_name": "PyTorch", "engine_version": "pytorch_2.1.0"}
ADDRESSES = ("127.0.0.211", "127.0.0.212", "127.0.0.213")
_FINAL = ("Completed", "Failed", "Terminated", "Abnormal")
_PREVIEW = 5 << 20  # bytes
_FIRST_STEP = 0.3  # seconds in each of the first phases


@dataclass
class Fault:
    """Break some of the requests that fit: with a status, or `after` it was carried out, or by silence."""

    path: str
    status: int = 0
    count: int = 1
    after: bool = False
    silence: float = 0.0
    late: float = 0.0
    """Seconds after which a job is created that nobody was told of."""
    text: str = "a fault on purpose"
    answer: bytes = b""
    """What is answered with 200 instead."""


@dataclass
class Task:
    """Hold one node of a job."""

    log: Path
    process: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None


@dataclass
class Job:
    """Hold one training job."""

    body: dict[str, Any]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    phase: str = "Creating"
    created: float = field(default_factory=time.time)
    started: float = 0.0
    ended: float = 0.0
    is_asked_to_end: bool = False
    tasks: dict[str, Task] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the job as the service tells it."""
        end = self.ended or time.time()
        status: dict[str, Any] = {"phase": self.phase, "secondary_phase": self.phase, "tasks": sorted(self.tasks)}
        if self.started:
            status.update(start_time=int(self.started * 1000), duration=int((end - self.started) * 1000))
        status["task_statuses"] = [
            {"task": name, "exit_code": task.exit_code, "message": ""}
            for name, task in sorted(self.tasks.items())
            if task.exit_code
        ]
        metadata = {**self.body["metadata"], "id": self.id, "create_time": int(self.created * 1000)}
        return {**self.body, "metadata": metadata, "status": status}


class RefusedError(Exception):
    """Say what the service answers instead."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Service:
    """Keep jobs, and run them."""

    def __init__(self, folder: Path, store: Server) -> None:
        self.folder, self.store = folder, store
        self.jobs: dict[str, Job] = {}
        self.faults: list[Fault] = []
        self.names_are_unique = True
        self.requests: list[str] = []
        self.late = 0.0  # seconds after a job's end until the second half of its logs is there
        self.not_ready = 0  # how many looks at a log are answered with 204
        self.lock = threading.Lock()
        self.endpoint = ""

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:  # noqa: PLR0911, PLR0912 - one a path
        """Return status and document."""
        parts = path.strip("/").split("/")
        if parts[:2] != ["v2", PROJECT]:
            raise RefusedError(404, f"no such project: {parts[1:2]}")
        match (method, parts[2:]):
            case ("POST", ["training-jobs"]):
                return 201, self.create(body).document()
            case ("POST", ["training-job-searches"]):
                return 200, self.search(body)
            case ("GET", ["training-job-flavors"]):
                return 200, {"total_count": len(FLAVORS), "flavors": [{"flavor_id": name} for name in FLAVORS]}
            case ("GET", ["training-job-engines"]):
                return 200, {"total": 1, "items": [ENGINE]}
            case ("GET", ["training-jobs", job]):
                return 200, self.job(job).document()
            case ("DELETE", ["training-jobs", job]):
                if self.job(job).phase not in _FINAL:
                    raise RefusedError(400, "the job has not ended")
                del self.jobs[job]
                return 202, None
            case ("POST", ["training-jobs", job, "actions"]):
                if body != {"action_type": "terminate"}:
                    raise RefusedError(400, f"unknown action {body}")
                self.terminate(self.job(job))
                return 202, None
            case ("GET", ["training-jobs", job, "logs", task]):
                return self.log(self.job(job), task, query)
            case ("GET", ["training-jobs", job, "tasks", task, "logs", "preview"]):
                return self.preview(self.job(job), task)
            case ("GET", ["training-jobs", job, "events"]):
                noted = [{"time": int(time.time() * 1000), "level": "Info", "message": e} for e in self.job(job).events]
                offset = int(query.get("offset", 0))
                return 200, {"events": noted[offset : offset + int(query["limit"])]}
        raise RefusedError(404, f"no such thing: {method} {path}")

    def job(self, job: str) -> Job:
        """Return a job."""
        if job not in self.jobs:
            raise RefusedError(404, f"the training job {job} does not exist")
        return self.jobs[job]

    def create(self, body: dict[str, Any]) -> Job:
        """Take a job, and begin to run it."""
        check_body(body)
        with self.lock:
            names = [job.body["metadata"]["name"] for job in self.jobs.values()]
            if self.names_are_unique and body["metadata"]["name"] in names:
                raise RefusedError(400, f"the name {body['metadata']['name']} is taken")
            job = Job(body)
            self.jobs[job.id] = job
        threading.Thread(target=self._run, args=(job,), daemon=True).start()
        return job

    def search(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a page of jobs whose names hold a text."""
        (wanted,) = body["filters"][0]["value"]
        found = [job for job in self.jobs.values() if wanted in job.body["metadata"]["name"]]
        found.sort(key=lambda job: -job.created)
        start = body["offset"] * body["limit"]
        return {"total": len(found), "items": [job.document() for job in found[start : start + body["limit"]]]}

    def log(self, job: Job, task: str, query: dict[str, str]) -> tuple[int, Any]:
        """Return a page of a task's log."""
        if task not in job.tasks:
            raise RefusedError(404, f"no such task: {task}")
        if self.not_ready:
            self.not_ready -= 1
            return 204, None
        if not 1 <= int(query.get("lines", 50)) <= 500:
            raise RefusedError(400, "lines must be 1 to 500")
        lines = self.collected(job, task).split("\n")
        lines = lines[:-1] if not lines[-1] or job.phase not in _FINAL else lines
        if query.get("order", "desc") == "desc":
            newest = lines[-int(query["lines"]) :][::-1]
            return 200, {"start_line": "", "end_line": "", "lines": len(newest), "content": "\n".join(newest) + "\n"}
        base = int(query.get("base_line") or 0)
        page = lines[base : base + int(query["lines"])]
        if not page:
            return 200, {"start_line": str(base), "end_line": str(base), "lines": 0, "content": ""}
        content = "\n".join(page) + "\n"
        end = base + len(page)
        return 200, {"start_line": str(base + 1), "end_line": str(end), "lines": len(page), "content": content}

    def preview(self, job: Job, task: str) -> tuple[int, Any]:
        """Return the newest part of a task's log."""
        data = self.collected(job, task).encode()
        if not data:
            return 204, None
        part = data[-_PREVIEW:].decode("utf-8", "replace")
        return 200, {"content": part, "current_size": min(len(data), _PREVIEW), "full_size": len(data)}

    def collected(self, job: Job, task: str) -> str:
        """Return what the service has of a task's log so far: some of it comes late."""
        data = job.tasks[task].log.read_bytes()
        if self.late and time.time() < (job.ended or time.time()) + self.late:
            data = data[: data.rfind(b"\n", 0, len(data) // 2) + 1]
        return data.decode("utf-8", "replace")

    # ── running ─────────────────────────────────────────────────────────────────────────────────────────────────

    def terminate(self, job: Job) -> None:
        """End a job, as whoever runs it finds."""
        if job.phase in _FINAL:
            raise RefusedError(400, f"the job is {job.phase}")
        job.is_asked_to_end = True
        job.phase = "Terminating"

    def _run(self, job: Job) -> None:
        notes = job.body["metadata"].get("annotations", {})
        is_any = notes.get("fault-tolerance/job-unconditional-retry") == "true"
        retries = int(notes.get("fault-tolerance/job-retry-num", 0)) if is_any else 0
        try:
            time.sleep(_FIRST_STEP)
            self._bring(job)
            while True:
                if not job.is_asked_to_end:
                    job.phase = "Pending"
                    time.sleep(_FIRST_STEP)
                if not job.is_asked_to_end:
                    self._start(job)
                    job.started, job.phase = job.started or time.time(), "Running"
                    self._watch(job)
                phase = self._end(job)
                if phase != "Failed" or not retries:
                    self._put_outputs(job)
                    job.phase = phase
                    break
                retries -= 1
                job.events.append("the job is started again in its containers")
        except Exception as error:
            job.events.append(f"{type(error).__name__}: {error}")
            job.phase = "Abnormal"
        job.ended = time.time()

    def _bring(self, job: Job) -> None:
        for node in range(job.body["spec"]["resource"]["node_count"]):
            place = self.folder / job.id / str(node)
            place.mkdir(parents=True)
            code = job.body["algorithm"]["code_dir"]
            self._fetch(code, place / Path(code).name)
            for channel in job.body["algorithm"].get("inputs", []):
                self._fetch(channel["remote"]["obs"]["obs_url"], self._channel(job, node, channel))
            for channel in job.body["algorithm"].get("outputs", []):
                self._channel(job, node, channel).mkdir(parents=True)

    def _channel(self, job: Job, node: int, channel: dict[str, Any]) -> Path:
        return self.folder / job.id / str(node) / "channels" / str(channel["name"])

    def _channels(self, job: Job, node: int, method: str) -> dict[str, str]:
        """Return the channels that a program learns of in one way, by name, with their local paths."""
        algorithm = job.body["algorithm"]
        every = [*algorithm.get("inputs", []), *algorithm.get("outputs", [])]
        return {one["name"]: str(self._channel(job, node, one)) for one in every if one["access_method"] == method}

    def _start(self, job: Job) -> None:
        for node in range(job.body["spec"]["resource"]["node_count"]):
            log = self.folder / job.id / f"worker-{node}.log"
            job.tasks[f"worker-{node}"] = task = Task(log)
            with log.open("ab") as output:
                task.process = subprocess.Popen(
                    self._words(job, node),
                    env=self._environment(job, node),
                    cwd=self.folder / job.id / str(node),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def _client(self) -> Any:
        session = boto3.Session(self.store.key, self.store.secret, region_name="us-east-1")
        return session.client("s3", endpoint_url=self.store.endpoint)

    def _put_outputs(self, job: Job) -> None:
        client = self._client()
        for node in range(job.body["spec"]["resource"]["node_count"]):
            for channel in job.body["algorithm"].get("outputs", []):
                bucket, _, prefix = channel["remote"]["obs"]["obs_url"].strip("/").partition("/")
                place = self._channel(job, node, channel)
                for file in (file for file in place.rglob("*") if file.is_file()):
                    client.upload_file(str(file), bucket, f"{prefix}/{file.relative_to(place)}")
        if exported := job.body["spec"].get("log_export_path"):
            bucket, _, prefix = exported["obs_url"].strip("/").partition("/")
            for name, task in job.tasks.items():
                client.upload_file(str(task.log), bucket, f"{prefix}/modelarts-job-{job.id}-{name}.log")
        client.close()

    def _fetch(self, folder: str, target: Path) -> None:
        bucket, _, prefix = folder.strip("/").partition("/")
        client = self._client()
        pages = client.get_paginator("list_objects").paginate(Bucket=bucket, Prefix=prefix + "/")
        for item in (item for page in pages for item in page.get("Contents", [])):
            file = target / item["Key"][len(prefix) + 1 :]
            file.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, item["Key"], str(file))
        client.close()

    def _words(self, job: Job, node: int) -> list[str]:
        algorithm, nodes = job.body["algorithm"], job.body["spec"]["resource"]["node_count"]
        place = str(self.folder / job.id / str(node))
        if "image_url" in algorithm["engine"]:
            return shlex.split(algorithm["command"].replace("${MA_JOB_DIR}", place))
        code = algorithm["code_dir"].rstrip("/")
        boot = f"{place}/{Path(code).name}{algorithm['boot_file'][len(code) :]}"
        words = [f"--{one['name']}={one['value']}" for one in algorithm.get("parameters", [])]
        words += [f"--{name}={path}" for name, path in self._channels(job, node, "parameter").items()]
        words += [f"--init_method=tcp://{ADDRESSES[0]}:6060", "--unknown_of_the_platform=1"]
        if nodes > 1:
            words += [f"--world_size={nodes}", f"--rank={node}"]
        return ["python", boot, *words]

    def _environment(self, job: Job, node: int) -> dict[str, str]:
        resource = job.body["spec"]["resource"]
        hosts = ADDRESSES[: resource["node_count"]]
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **job.body["algorithm"].get("environments", {}),
            **self._channels(job, node, "env"),
            "MA_JOB_DIR": str(self.folder / job.id / str(node)),
            "MA_NUM_HOSTS": str(len(hosts)),
            "MA_NUM_GPUS": str(FLAVORS[resource["flavor_id"]]),
            "MA_TASK_NAME": "worker",
            "MA_CURRENT_IP": ADDRESSES[node],
            "VC_TASK_INDEX": str(node),
            "VC_WORKER_NUM": str(len(hosts)),
            "VC_WORKER_HOSTS": ",".join(hosts),
        }

    def _watch(self, job: Job) -> None:
        """Return once all have ended, or one failed, or somebody wants the end."""
        while not job.is_asked_to_end:
            codes = [task.process.poll() for task in job.tasks.values() if task.process]
            if any(codes) or None not in codes:
                return
            time.sleep(0.05)

    def _end(self, job: Job) -> str:
        failed = False
        for task in job.tasks.values():
            code = task.process.poll() if task.process else None
            if code is None and task.process:
                _end_group(task.process)
                code = task.process.wait()
            code = code or 0
            task.exit_code = code if code >= 0 else 128 - code
            failed |= task.exit_code != 0
        if job.is_asked_to_end:
            return "Terminated"
        return "Failed" if failed else "Completed"

    def close(self) -> None:
        """End what still runs."""
        for task in [task for job in self.jobs.values() for task in job.tasks.values()]:
            if task.process and task.process.poll() is None:
                _end_group(task.process)
                task.process.wait()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return


# ── what the service checks ─────────────────────────────────────────────────────────────────────────────────────────


def check_body(body: dict[str, Any]) -> None:
    """Raise RefusedError for what the documentation does not allow."""
    check_known(body, "Job")
    algorithm, resource = body["algorithm"], body["spec"]["resource"]
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", body["metadata"]["name"]):
        raise RefusedError(400, "invalid name")
    if resource["flavor_id"] not in FLAVORS:
        raise RefusedError(400, f"no such flavor: {resource['flavor_id']}")
    if not re.fullmatch(r"/[^/:]+/(.+/)?", algorithm["code_dir"]):
        raise RefusedError(400, f"invalid code_dir: {algorithm['code_dir']}")
    boot = algorithm.get("boot_file", "")
    if boot and not (boot.endswith(".py") and boot.startswith(algorithm["code_dir"])):
        raise RefusedError(400, "boot_file must be a .py in code_dir")
    is_preset = "image_url" not in algorithm["engine"]
    if is_preset and ({name: algorithm["engine"][name] for name in ENGINE} != ENGINE or not boot):
        raise RefusedError(400, f"no such engine: {algorithm['engine']}")
    if not is_preset and ("\n" in algorithm["command"] or not algorithm["command"]):
        raise RefusedError(400, "invalid command")
    names = [one["name"] for one in algorithm.get("parameters", [])]
    if any(not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names):
        raise RefusedError(400, "invalid hyperparameter")
    if is_preset and (resource["node_count"] > 1) == bool({"world_size", "rank"} & set(names)):
        raise RefusedError(400, "world_size and rank: given on one node, injected on several")
    environments = algorithm.get("environments", {})
    if len(environments) > 100 or any(len(value) > 4096 for value in environments.values()):
        raise RefusedError(400, "too much environment")
    if any(name.startswith("MA_") for name in environments):
        raise RefusedError(400, "MA_ is reserved")
    hours = body["spec"].get("auto_stop", {}).get("duration", 1)
    if not 1 <= hours <= 72:
        raise RefusedError(400, "auto_stop: 1 to 72 hours")


def check_known(value: Any, kind: str) -> None:
    """Raise RefusedError for a field that the SDK's models do not have."""
    if kind.startswith("list["):
        for item in value:
            check_known(item, kind[5:-1])
    elif (model := getattr(sdk, kind, None)) is not None:
        names = {json_name: name for name, json_name in model.attribute_map.items()}
        for name, inner in value.items():
            if name not in names:
                raise RefusedError(400, f"unknown field {kind}.{name}")
            check_known(inner, model.openapi_types[names[name]])


def check_signature(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """Raise RefusedError unless the request was signed with our key (SDK-HMAC-SHA256, platform documentation)."""
    told = handler.headers.get("Authorization", "")
    found = re.fullmatch(r"SDK-HMAC-SHA256 Access=([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]{64})", told)
    if found is None:
        raise RefusedError(401, "the request is not signed")
    access, signed, signature = found.groups()
    path, _, query = handler.path.partition("?")
    segments = [urllib.parse.quote(urllib.parse.unquote(part), safe="-_.~") for part in path.split("/")]
    pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    canonical_query = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in pairs)
    headers = "".join(f"{name}:{(handler.headers.get(name) or '').strip()}\n" for name in signed.split(";"))
    canonical = "\n".join(
        [
            handler.command,
            "/".join(segments).rstrip("/") + "/",
            canonical_query,
            headers,
            signed,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"SDK-HMAC-SHA256\n{handler.headers.get('X-Sdk-Date')}\n{digest}"
    ours = hmac.new(SK.encode(), text.encode(), hashlib.sha256).hexdigest()
    if access != AK or not hmac.compare_digest(ours, signature):
        raise RefusedError(401, "the signature does not match")
    if not {"host", "x-sdk-date"} <= set(signed.split(";")):
        raise RefusedError(401, "host and date must be signed")


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")


# ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def running(folder: Path, store: Server) -> Iterator[Service]:
    """Run the service; end all that it started."""
    service = Service(folder, store)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            service.requests.append(f"{self.command} {path}")
            fault = next(
                (one for one in service.faults if one.count and re.search(one.path, f"{self.command} {path}")), None
            )
            try:
                check_signature(self, body)
                if fault:
                    fault.count -= 1
                if fault and fault.late:
                    threading.Timer(fault.late, service.create, [json.loads(body)]).start()
                if fault and fault.silence:
                    time.sleep(fault.silence)
                if fault and not fault.after and fault.status:
                    raise RefusedError(fault.status, fault.text)
                values = dict(urllib.parse.parse_qsl(query))
                status, document = service.answer(self.command, path, values, json.loads(body) if body else None)
                if fault and fault.after:
                    raise RefusedError(fault.status, fault.text)
            except RefusedError as refused:
                status = refused.status
                document = {"error_code": "ModelArts.0001", "error_msg": str(refused)}
            data = b"" if document is None else json.dumps(document).encode()
            if fault and fault.answer:
                status, data = 200, fault.answer
            with suppress(ConnectionError):  # a client that gave up: its tests read what this process writes to stderr
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _do  # noqa: N815 - http.server's names

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        service.close()
