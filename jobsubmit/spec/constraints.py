"""Which fields contradict each other: each rule once, as a check of raw values and as a part of the JSON Schema.

The checks read raw values, so that their problems appear together with all others. A schema cannot express every rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from jobsubmit.common.store_address import REMOTE_SCHEMES
from jobsubmit.spec.field_types import FREE_ENV_NAME, env_name_problem
from jobsubmit.spec.yaml_document import FieldPath

Raw: TypeAlias = Mapping[str, Any]
Complaint: TypeAlias = tuple[FieldPath, str]
Schema: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[str, Raw], Iterator[Complaint]]

# Preset mode, one node: the platform wants the user to give these, so jobsubmit does (platform documentation).
SINGLE_NODE_RANKS: Mapping[str, int] = {"world_size": 1, "rank": 0}
# Preset mode: the platform appends this one on every node.
INIT_METHOD = "init_method"
OF_THE_SHELL = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR")


_IS_REMOTE = {"type": "string", "pattern": "^(s3|obs)://"}


class _Rule(NamedTuple):
    """A rule: what it finds wrong in raw values of a mode, and by the name of a definition what the schema says."""

    check: Callable[[str, Raw], Iterator[Complaint]]
    schemas: Mapping[str, Schema]


_RULES: list[_Rule] = []


def _rule(**schemas: Schema) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        _RULES.append(_Rule(check, schemas))
        return check

    return register


def find_complaints(mode: str, raw: Raw) -> Iterator[Complaint]:
    """Yield the contradictions between fields; without a mode, only between fields that all modes share."""
    for rule in _RULES:
        yield from rule.check(mode, raw)


def schemas_of(definition: str) -> list[Schema]:
    """Return the schemas that the rules add to a definition of the JSON Schema."""
    return [rule.schemas[definition] for rule in _RULES if definition in rule.schemas]


def _given(field: str, value: Schema) -> Schema:
    """Return the schema of a mapping that has a field with such a value."""
    return {"properties": {field: value}, "required": [field]}


def _if(condition: Schema, then: Schema) -> Schema:
    return {"if": condition, "then": then}


def _without(field: str, names: tuple[str, ...]) -> Schema:
    """Return the schema of a mapping whose `field` has none of these names."""
    return {"properties": {field: {"properties": dict.fromkeys(names, False)}}}


@_rule()
def _secret_is_also_env(mode: str, raw: Raw) -> Iterator[Complaint]:
    for name in sorted(set(_mapping(raw, "env")) & set(_mapping(raw, "secrets")), key=str):
        yield ("secrets", name), "is also in `env`: keep one of them"


_OF_A_SERVER = ("endpoint_url", "region", "profile", "addressing", "ca_bundle")


@_rule(
    StoreSpec=_if(
        _given("uri", {"type": "string", "not": _IS_REMOTE}),
        {"properties": {name: {"type": "null"} for name in _OF_A_SERVER}},
    )
)
def _folder_with_server_fields(mode: str, raw: Raw) -> Iterator[Complaint]:
    store = _mapping(raw, "store")
    uri = store.get("uri")
    if isinstance(uri, str) and not uri.startswith(REMOTE_SCHEMES):
        for name in _OF_A_SERVER:
            if store.get(name) is not None:
                yield (
                    ("store", name),
                    f"does not apply to a folder: remove it, or set an s3:// or obs:// uri (uri is `{uri}`)",
                )


_ARCHIVE = _if(_given("code_dir", _IS_REMOTE), {"properties": {"layout": {"not": {"const": "archive"}}}})


@_rule(SpawnSpec=_ARCHIVE, LaunchSpec=_ARCHIVE, TorchrunSpec=_ARCHIVE, CommandSpec=_ARCHIVE)
def _archive_of_uploaded_code(mode: str, raw: Raw) -> Iterator[Complaint]:
    code_dir = raw.get("code_dir")
    if raw.get("layout") == "archive" and isinstance(code_dir, str) and code_dir.startswith(REMOTE_SCHEMES):
        yield ("layout",), "code that is already uploaded is always a tree: remove `layout`"


_SEVERAL_NODES = {"anyOf": [{"type": "integer", "minimum": 2}, {"type": "string", "not": {"pattern": "^0*1:"}}]}
_RANKS = {name: {"enum": [value, str(value)]} for name, value in SINGLE_NODE_RANKS.items()}
_INJECTED = {
    **_if(_given("resources", _given("nodes", _SEVERAL_NODES)), _without("hyperparameters", tuple(SINGLE_NODE_RANKS))),
    "else": {"properties": {"hyperparameters": {"properties": _RANKS}}},
    **_without("hyperparameters", (INIT_METHOD,)),
}


@_rule(SpawnSpec=_INJECTED)
def _injected_hyperparameters(mode: str, raw: Raw) -> Iterator[Complaint]:
    """Yield what the platform appends itself, in preset mode."""
    if mode != "spawn":
        return
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
                "but a value in the job file is the same for every node: remove it",
            )
        elif isinstance(value, bool) or str(value) != str(injected):
            yield (
                ("hyperparameters", name),
                f"on one node it must be {injected} (world_size and rank count nodes here, not processes): "
                "remove it, jobsubmit adds it",
            )


_ONE_START = {
    "oneOf": [_given("boot_file", {"type": "string"}), _given("command", {"type": ["string", "array"]})],
}


@_rule(LaunchSpec=_ONE_START, TorchrunSpec=_ONE_START)
def _one_thing_to_start(mode: str, raw: Raw) -> Iterator[Complaint]:
    if mode in ("", "spawn", "command"):
        return
    if raw.get("boot_file") is not None and raw.get("command") is not None:
        yield ("command",), "cannot be combined with `boot_file`: keep one of the two"
    if raw.get("boot_file") is None and raw.get("command") is None:
        yield (
            ("boot_file",),
            "is required: the file to start, relative to code_dir (or `command`, your own start command)",
        )


_DATA = _if(
    _given("as", {"const": "env"}),
    {"properties": {"name": {"pattern": f"^(?!({'|'.join(OF_THE_SHELL)})$){FREE_ENV_NAME}$"}}},
)
_NO_ARGUMENT = {
    "not": {
        "properties": {"name": {"enum": [*SINGLE_NODE_RANKS, INIT_METHOD]}, "as": {"not": {"const": "env"}}},
    }
}
_NO_INJECTED_DATA = {"properties": {field: {"items": _NO_ARGUMENT} for field in ("inputs", "outputs")}}


@_rule(SpawnSpec=_NO_INJECTED_DATA, InputSpec=_DATA, OutputSpec=_DATA)
def _names_given_twice(mode: str, raw: Raw) -> Iterator[Complaint]:
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
            variable = name.replace("-", "_")
            if kind == "env" and "-" in name:
                yield where, f"a variable cannot be called `{name}`: write `{variable}`"
            elif kind == "env" and (problem := env_name_problem(name)):
                yield where, problem
            elif kind == "env" and name in OF_THE_SHELL:
                yield where, f"a variable `{name}` would replace the shell's own: choose another name"
            elif kind != "env" and raw.get("mode") == "spawn" and name in (*SINGLE_NODE_RANKS, INIT_METHOD):
                yield where, f"the platform passes --{name} in this mode: choose another name"
            elif variable in seen or (kind, name) in taken or (kind == "env" and ("secrets", name) in taken):
                yield where, f"`{name}` is given twice: choose another name"
            taken.add((kind, name))
            seen.add(variable)
    checkpoint = raw.get("checkpoint_dir")
    fields = checkpoint if isinstance(checkpoint, Mapping) else {}
    name = fields.get("name", "checkpoint_dir")
    if checkpoint and fields.get("as") != "env" and isinstance(name, str) and ("hyperparameters", name) in taken:
        yield ("checkpoint_dir",), f"the hyperparameter `{name}` is given twice: remove one, or choose another name"


_ONE_NUMBER = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^(\d+):\1$"}]}
_NOT_ELASTIC = {"properties": {"resources": {"properties": {"nodes": _ONE_NUMBER}}}}
_FIXED_RENDEZVOUS = {
    "anyOf": [_given("rdzv_backend", {"const": "static"}), _given("torch_version", {"pattern": r"^2\.1(\D|$)"})]
}


@_rule(
    SpawnSpec=_NOT_ELASTIC,
    LaunchSpec=_NOT_ELASTIC,
    CommandSpec=_NOT_ELASTIC,
    TorchrunSpec=_if(_FIXED_RENDEZVOUS, _NOT_ELASTIC),
)
def _elastic(mode: str, raw: Raw) -> Iterator[Complaint]:
    nodes = _mapping(raw, "resources").get("nodes", 1)
    if not isinstance(nodes, str) or len(set(nodes.split(":"))) == 1:
        return
    place = ("resources", "nodes")
    if mode in ("spawn", "launch", "command"):
        yield place, f"only torchrun can lose and gain nodes: set one number, or use mode: torchrun (mode is {mode})"
        return
    if raw.get("rdzv_backend") == "static":
        yield ("rdzv_backend",), f"must be c10d with {nodes} nodes: static cannot lose or gain nodes"
    if re.match(r"2\.1(\D|$)", str(raw.get("torch_version", ""))):
        yield (
            place,
            "the documentation of ModelArts requires the static rendezvous for torch 2.1, which cannot be elastic",
        )


def _most(nodes: object) -> int:
    """Return how many nodes are meant; 1 where that is no number."""
    text = str(nodes).rpartition(":")[2]
    return int(text) if text.isdecimal() and not isinstance(nodes, bool) else 1


def _mapping(raw: Raw, name: str) -> Mapping[Any, Any]:
    value = raw.get(name)
    return value if isinstance(value, Mapping) else {}
