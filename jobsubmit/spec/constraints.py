"""Which fields may not be said together; the rules see raw values, so they report beside all other problems."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from jobsubmit.common.store_address import REMOTE_SCHEMES
from jobsubmit.spec.fields import env_name_problem
from jobsubmit.spec.yaml_document import FieldPath

Raw: TypeAlias = Mapping[str, Any]
Complaint: TypeAlias = tuple[FieldPath, str]

# Preset mode, one node: the platform wants the user to give these, so jobsubmit does (platform documentation).
SINGLE_NODE_RANKS: Mapping[str, int] = {"world_size": 1, "rank": 0}
# Preset mode: the platform appends this one on every node.
INIT_METHOD = "init_method"
OF_THE_SHELL = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR")


def complaints(mode: str, raw: Raw) -> Iterator[Complaint]:
    """Yield every pair of fields that contradict each other; without a mode, of those that all modes share."""
    yield from _secret_is_also_env(raw)
    yield from _folder_with_server_fields(raw)
    yield from _archive_of_uploaded_code(raw)
    yield from _names_given_twice(raw)
    if mode == "spawn":
        yield from _injected_hyperparameters(raw)
    elif mode:
        yield from _one_thing_to_start(raw)
    yield from _elastic(mode, raw)


def _secret_is_also_env(raw: Raw) -> Iterator[Complaint]:
    for name in sorted(set(_mapping(raw, "env")) & set(_mapping(raw, "secrets")), key=str):
        yield ("secrets", name), "is also in `env`: keep one of them"


def _folder_with_server_fields(raw: Raw) -> Iterator[Complaint]:
    store = _mapping(raw, "store")
    uri = store.get("uri")
    if isinstance(uri, str) and not uri.startswith(REMOTE_SCHEMES):
        for name in ("endpoint_url", "region", "profile", "addressing"):
            if store.get(name) is not None:
                yield ("store", name), f"a folder has none: remove it, or give an s3:// or obs:// uri (uri is `{uri}`)"


def _archive_of_uploaded_code(raw: Raw) -> Iterator[Complaint]:
    code_dir = raw.get("code_dir")
    if raw.get("layout") == "archive" and isinstance(code_dir, str) and code_dir.startswith(REMOTE_SCHEMES):
        yield ("layout",), "code that is uploaded already lies there as a tree: remove `layout`"


def _injected_hyperparameters(raw: Raw) -> Iterator[Complaint]:
    hyperparameters = _mapping(raw, "hyperparameters")
    nodes = _most(_mapping(raw, "resources").get("nodes", 1))
    if INIT_METHOD in hyperparameters:
        yield ("hyperparameters", INIT_METHOD), "the platform appends --init_method on every node: remove it"
    for name, injected in SINGLE_NODE_RANKS.items():
        if name not in hyperparameters:
            continue
        value = hyperparameters[name]
        if nodes > 1:
            yield (
                ("hyperparameters", name),
                f"with {nodes} nodes the platform appends --{name} per node (it counts nodes), "
                "and one value for all of them would give every node the same: remove it",
            )
        elif isinstance(value, bool) or str(value) != str(injected):
            yield (
                ("hyperparameters", name),
                f"on one node it must be {injected} (world_size and rank count nodes here, not processes): "
                "remove it, jobsubmit adds it",
            )


def _one_thing_to_start(raw: Raw) -> Iterator[Complaint]:
    if raw.get("boot_file") is not None and raw.get("command") is not None:
        yield ("command",), "is given beside `boot_file`: keep the one that should be started"
    if raw.get("boot_file") is None and raw.get("command") is None:
        yield (
            ("boot_file",),
            "is required: the file to start, relative to code_dir (or `command`, your own start command)",
        )


def _names_given_twice(raw: Raw) -> Iterator[Complaint]:
    """Yield a complaint for each hyperparameter or variable that two fields would set."""
    taken = {(kind, name) for kind in ("hyperparameters", "env", "secrets") for name in _mapping(raw, kind)}
    for field in ("inputs", "outputs"):
        items = raw.get(field)
        seen: set[str] = set()
        for index, data in enumerate(items if isinstance(items, list) else ()):
            if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
                continue
            name, kind = data["name"], "env" if data.get("as") == "env" else "hyperparameters"
            where = (field, index, "name")
            if kind == "env" and (problem := env_name_problem(name)):
                yield where, problem
            elif kind == "env" and name in OF_THE_SHELL:
                yield where, f"as a variable `{name}` would replace the shell's own: choose another name"
            elif kind != "env" and raw.get("mode") == "spawn" and name in (*SINGLE_NODE_RANKS, INIT_METHOD):
                yield where, f"the platform gives --{name} in this mode: choose another name"
            elif name in seen or (kind, name) in taken or (kind == "env" and ("secrets", name) in taken):
                yield where, f"`{name}` is given twice: choose another name"
            taken.add((kind, name))
            seen.add(name)
    checkpoint = raw.get("checkpoint_dir")
    fields = checkpoint if isinstance(checkpoint, Mapping) else {}
    name = fields.get("name", "checkpoint_dir")
    if checkpoint and fields.get("as") != "env" and isinstance(name, str) and ("hyperparameters", name) in taken:
        yield ("checkpoint_dir",), f"the hyperparameter `{name}` is given twice: remove one, or choose another name"


def _elastic(mode: str, raw: Raw) -> Iterator[Complaint]:
    nodes = _mapping(raw, "resources").get("nodes", 1)
    if not isinstance(nodes, str) or len(set(nodes.split(":"))) == 1:
        return
    place = ("resources", "nodes")
    if mode in ("spawn", "launch"):
        yield place, f"only torchrun can lose and gain nodes: give one number, or use mode: torchrun (mode is {mode})"
        return
    if raw.get("rdzv_backend") == "static":
        yield ("rdzv_backend",), f"with {nodes} nodes it must be c10d: static cannot lose or gain nodes"
    if re.match(r"2\.1(\D|$)", str(raw.get("torch_version", ""))):
        yield place, "PyTorch 2.1 needs the static rendezvous (platform documentation), which cannot be elastic"


def _most(nodes: object) -> int:
    """Return how many nodes are meant; 1 where that is no number."""
    text = str(nodes).rpartition(":")[2]
    return int(text) if text.isdecimal() and not isinstance(nodes, bool) else 1


def _mapping(raw: Raw, name: str) -> Mapping[Any, Any]:
    value = raw.get(name)
    return value if isinstance(value, Mapping) else {}
