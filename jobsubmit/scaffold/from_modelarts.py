"""A job as ModelArts' own tools know it → the fields of a job file: a training job's JSON, or a YAML file of ma-cli."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from jobsubmit.agent.node_contract import AGENT_REQUEST
from jobsubmit.errors import UsageError
from jobsubmit.scaffold.draft import JobDraft
from jobsubmit.spec.modes import MODES

_RANKS = ("world_size", "rank")
_OF_SHELL = re.compile(r"[$`|&;<>()*?~#\n]")
_SOME_BOOT_FILE = "train.py"
_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_MANAGED = "fault-tolerance/"
_OURS = re.compile("^JOBSUBMIT_(INPUT|OUTPUT)_")  # before the names that our own requests give channels


def draft_from_modelarts(document: Mapping[str, Any]) -> JobDraft:
    """Return the draft of a job file for a training job of ModelArts; raise UsageError for any other document."""
    if "algorithm" in document:
        return _from_body(document)
    options = {str(name).replace("_", "-").lstrip("-"): value for name, value in document.items()}
    if not {"code-dir", "boot-file", "user-command", "image-url", "framework-type"} & set(options):
        hint = (
            "give the JSON of a training job (from the console or the API), or a YAML file for `ma-cli ma-job submit`"
        )
        raise UsageError("the document does not describe a training job", hint)
    body = _body_of_options(options)
    return _from_body(body, tuple(f"{name}: dropped, it has no equivalent in a job file" for name in sorted(options)))


# ── ma-cli ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _body_of_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the body of the API's request that options of `ma-cli ma-job submit` stand for; those are taken out."""

    def take(name: str) -> Any:
        return options.pop(name, None)

    take("working-dir")  # the platform's own
    image, data = take("image-url"), take("data-url")
    preset = {"engine_name": str(take("framework-type") or ""), "engine_version": str(take("framework-version") or "")}
    inputs = {**_pairs(take("input")), **({"data_url": data} if data else {})}
    return {
        "metadata": {
            "name": take("name") or "imported",
            "description": take("description"),
            "workspace_id": take("workspace-id"),
        },
        "algorithm": {
            "code_dir": take("code-dir"),
            "boot_file": take("boot-file"),
            "engine": {"image_url": image} if image else preset,
            "command": take("user-command"),
            "parameters": [{"name": name, "value": value} for name, value in _pairs(take("parameters")).items()],
            "inputs": [_channel(name, uri) for name, uri in inputs.items()],
            "outputs": [_channel(name, uri) for name, uri in _pairs(take("output")).items()],
            "environments": _pairs(take("env-variables")),
        },
        "spec": {
            "resource": {
                "flavor_id": take("train-instance-type"),
                "node_count": take("train-instance-count") or 1,
                "pool_id": take("pool-id"),
            },
            "log_export_path": {"obs_url": take("log-url")},
        },
    }


def _channel(name: str, uri: object) -> dict[str, Any]:
    return {"name": name, "remote": {"obs": {"obs_url": uri}}}


def _pairs(value: Any) -> dict[str, Any]:
    """Return NAME=VALUE texts, one or several, or a mapping, as a mapping."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(name): inner for name, inner in value.items()}
    texts = value if isinstance(value, list) else [value]
    pairs = [str(text).partition("=") for text in texts]
    return {name.strip().lstrip("-"): text for name, separator, text in pairs if separator}


# ── the API ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_body(body: Mapping[str, Any], notes: tuple[str, ...] = ()) -> JobDraft:
    metadata, algorithm, spec = (body.get(part) or {} for part in ("metadata", "algorithm", "spec"))
    code_dir = _uri(str(algorithm.get("code_dir") or "")).rstrip("/")
    fields: dict[str, Any] = {"name": _NAME.sub("-", str(metadata.get("name") or "imported")).strip("-")}
    fields.update(_start(algorithm, code_dir))
    fields["code_dir"] = code_dir or "."
    if environments := algorithm.get("environments"):
        fields["env"] = {name: str(value) for name, value in environments.items() if not name.startswith("JOBSUBMIT_")}
    for kind in ("inputs", "outputs"):
        if channels := [_data(channel) for channel in algorithm.get(kind) or [] if _place(channel)]:
            fields[kind] = channels
    resource = spec.get("resource") or {}
    fields["resources"] = _filled({"nodes": int(resource.get("node_count") or 1), "flavor": resource.get("flavor_id")})
    fields["backend"] = _backend(metadata, resource, spec)
    more = [] if code_dir else ["code_dir: not set in the original; `.` is this folder"]
    return JobDraft(_filled(fields), (*notes, *more, *_notes(body)))


def _start(algorithm: Mapping[str, Any], code_dir: str) -> dict[str, Any]:
    """Return the fields that say what is started: the mode follows from what runs it."""
    engine = algorithm.get("engine") or {}
    boot = _uri(str(algorithm.get("boot_file") or "")).removeprefix(code_dir).strip("/")
    parameters = {
        one["name"]: one.get("value") for one in algorithm.get("parameters") or [] if one["name"] not in _RANKS
    }
    if not engine.get("image_url"):
        version = {"name": engine.get("engine_name"), "version": engine.get("engine_version")}
        return {"mode": "spawn", "boot_file": boot, "framework": version, "hyperparameters": parameters}
    command = _words(str(algorithm.get("command") or ""), has_more=bool(parameters))
    if _is_ours(algorithm):
        command, boot = [], boot or _SOME_BOOT_FILE
    started = {"command": command} if command else {"boot_file": boot}
    return {"mode": _mode(algorithm), "image": engine["image_url"], **started, "hyperparameters": parameters}


def _words(command: str, *, has_more: bool) -> list[str]:
    """Return the words of a command line: a shell reads it there, and must here where that makes a difference."""
    if not _OF_SHELL.search(command):
        return shlex.split(command)
    return ["bash", "-c", f'{command} "$@"', "bash"] if has_more else ["bash", "-c", command]


def _mode(algorithm: Mapping[str, Any]) -> str:
    """Return the mode of a job in an image; only one of ours says it."""
    with suppress(ValueError, AttributeError):
        request = json.loads((algorithm.get("environments") or {}).get(AGENT_REQUEST) or "{}")
        return str(request["mode"]) if request.get("mode") in MODES else "torchrun"
    return "torchrun"


def _is_ours(algorithm: Mapping[str, Any]) -> bool:
    """Return whether jobsubmit itself has made the start script of a job, and will make it anew."""
    return "/.jobsubmit/" in str(algorithm.get("command") or "")


def _data(channel: Mapping[str, Any]) -> dict[str, Any]:
    name = _OURS.sub("", channel["name"])
    way = {"as": "env"} if channel.get("access_method") == "env" and name == channel["name"] else {}
    return {"name": name, "uri": _uri(_place(channel)), **way}


def _place(channel: Mapping[str, Any]) -> str:
    obs = (channel.get("remote") or {}).get("obs") or {}
    return str(obs.get("obs_url") or "")


def _backend(metadata: Mapping[str, Any], resource: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    notes = metadata.get("annotations") or {}
    retry = notes.get(f"{_MANAGED}job-retry-num")
    stop = spec.get("auto_stop") or {}
    log = (spec.get("log_export_path") or {}).get("obs_url")
    tolerance = {
        "retry": int(retry) if retry else None,
        "unconditional_retry": True if notes.get(f"{_MANAGED}job-unconditional-retry") == "true" else None,
        "hang_retry": True if notes.get(f"{_MANAGED}hang-retry") == "true" else None,
    }
    return _filled(
        {
            "kind": "modelarts",
            "workspace_id": metadata.get("workspace_id"),
            "description": metadata.get("description"),
            "pool_id": resource.get("pool_id"),
            "log_url": _uri(str(log)) if log else None,
            "auto_stop_hours": stop.get("duration"),
            "priority": (spec.get("schedule_policy") or {}).get("priority"),
            "fault_tolerance": _filled(tolerance),
            "annotations": {name: text for name, text in notes.items() if not name.startswith(_MANAGED)},
        }
    )


def _uri(path: str) -> str:
    """Return a place in a bucket as job files spell it: obs://bucket/folder."""
    return path if "://" in path or not path else "obs://" + path.lstrip("/")


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


def _notes(body: Mapping[str, Any]) -> Iterator[str]:
    algorithm = body.get("algorithm") or {}
    if _is_ours(algorithm) and not algorithm.get("boot_file"):
        yield f"boot_file: jobsubmit writes a new start script; set the file that it starts (now: {_SOME_BOOT_FILE})"
    elif not _is_ours(algorithm) and (algorithm.get("engine") or {}).get("image_url") and algorithm.get("command"):
        yield "command: kept unchanged; set boot_file instead to let jobsubmit write the launcher command"
    if algorithm.get("id") or algorithm.get("subscription_id"):
        yield "algorithm.id: dropped, an algorithm of the platform has no equivalent in a job file"
    for kind in ("inputs", "outputs"):
        for channel in algorithm.get(kind) or []:
            if not _place(channel):
                yield f"{kind}: {channel.get('name')}: dropped, it is not in OBS"
    for part in ("tasks", "endpoints", "ftjob_config"):
        if body.get(part):
            yield f"{part}: dropped, it has no equivalent in a job file"


def read_document(text: str, source: str) -> Any:
    """Return the content of a JSON or YAML text; raise UsageError if it is neither. `source` names it in messages."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    with suppress(ValueError):
        return json.loads(text)
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        text = f"{source} is neither JSON nor YAML: {error}"
        raise UsageError(text, "pass the file as the platform's tool wrote it") from error
