"""job.yaml and the flags beside it → JobSpec, or one error that lists every problem with its line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jobsubmit.common.store_address import REMOTE_SCHEMES
from jobsubmit.errors import Problem, SpecError
from jobsubmit.spec.backend import UNKNOWN_KIND, BackendSpec
from jobsubmit.spec.backend_registry import backend_kinds, find_spec
from jobsubmit.spec.constraints import find_complaints
from jobsubmit.spec.field_types import ModelT, built
from jobsubmit.spec.job_spec import (
    SPECS,
    CheckpointSpec,
    DataSpec,
    Defaults,
    JobSpec,
    ResourcesSpec,
    StoreSpec,
)
from jobsubmit.spec.modes import MODES, Mode, Start
from jobsubmit.spec.yaml_document import Document, FieldPath, dotted, parse_value, read_document, to_yaml

PlacedT = TypeVar("PlacedT", DataSpec, CheckpointSpec)
_NO_FILE = "check the path of the job file, or run `jobsubmit init` to write one"


@dataclass(frozen=True)
class Override:
    """A value for one field, from an option of the command line; `source` is the option as it was typed."""

    source: str
    path: tuple[str, ...]
    value: Any

    @classmethod
    def from_assignment(cls, text: str) -> Override:
        """Parse `a.b=value`, the value by the rules of the job file; raise SpecError if it is invalid."""
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise SpecError([Problem(f"--set {text}", "", "must look like field=value, e.g. resources.nodes=2")])
        top, *rest = key.split(".")
        # The names below these three are the user's own and may hold dots themselves.
        names = [".".join(rest)] if rest and top in ("hyperparameters", "env", "secrets") else rest
        source = f"--set {key}"
        return cls(source, (top, *names), parse_value(value, source))


@dataclass(frozen=True)
class LoadedSpec:
    """A valid spec, its document, and notes for the user; `file` is None if it was not read from a file."""

    spec: JobSpec
    document: Document
    notes: tuple[str, ...] = ()
    file: Path | None = None

    def resolved_text(self) -> str:
        """Return a job file that means the same in any folder: options applied, paths absolute."""
        values, spec = dict(self.document.values), self.spec
        values["code_dir"] = spec.code_dir
        if spec.templates is not None:
            values["templates"] = spec.templates
        if paths := _paths_of_store(spec.store):
            values["store"] = {**values["store"], **paths}
        if paths := _paths_of(spec.backend):
            values["backend"] = {**values["backend"], **paths}
        if spec.checkpoint_dir is not None:
            given = values["checkpoint_dir"]
            uri = spec.checkpoint_dir.uri
            values["checkpoint_dir"] = {**given, "uri": uri} if isinstance(given, dict) else uri
        for field, found in (("inputs", spec.inputs), ("outputs", spec.outputs)):
            if found:
                values[field] = [{**raw, "uri": data.uri} for raw, data in zip(values[field], found, strict=True)]
        return to_yaml(values)


def load(
    file: Path | str, overrides: Sequence[Override] = (), mode: Mode | None = None, directory: Path | None = None
) -> LoadedSpec:
    """Read a job file; raise SpecError with every problem in it.

    Relative paths resolve against `directory`, by default that of the file.
    """
    file = Path(file)
    inside = file / "job.yaml"
    hint = f"name the file: {inside}" if inside.is_file() else _NO_FILE
    document = read_document(file, str(file), hint)
    notes = _apply_mode(document, mode)
    for override in overrides:
        notes += _leave_other_backend(document, override)
        _apply(document, override)
    return LoadedSpec(_validated(document, directory or file.absolute().parent), document, notes, file)


def load_mapping(
    values: Mapping[str, Any], overrides: Sequence[Override] = (), directory: Path | str = ".", source: str = "job"
) -> LoadedSpec:
    """Validate a job written as a Python mapping; raise SpecError with every problem in it, found in `source`."""
    document = Document(source, values=dict(values))
    for override in overrides:
        _apply(document, override)
    spec = _validated(document, Path(directory).absolute())
    return LoadedSpec(spec, replace(document, text=to_yaml(document.values)))


def load_defaults(file: Path) -> Defaults:
    """Read the user's configuration file; raise SpecError with every problem in it."""
    document = read_document(file, str(file), "check your configuration file; JOBSUBMIT_CONFIG sets its path")
    defaults, problems = _parse(Defaults, document)
    if defaults is None or problems:
        raise SpecError(_in_file_order(problems))
    return defaults.model_copy(update={"store": _with_paths(defaults.store, file.absolute().parent)})


def _apply_mode(document: Document, mode: Mode | None) -> tuple[str, ...]:
    """Switch the document to another mode: fields only the old mode knows are dropped, and named."""
    old = find_start(document.values)
    if mode is None or old == mode:
        return ()
    document.values["mode"] = mode
    document.places[("mode",)] = "--mode"
    if old not in SPECS:
        return ()
    known_before = SPECS[old].model_fields
    dropped = [name for name in document.values if name in known_before and name not in SPECS[mode].model_fields]
    for name in dropped:
        del document.values[name]
    return tuple(f"{document.where((name,))}  {name}: dropped, mode {mode} does not use it" for name in dropped)


def _leave_other_backend(document: Document, override: Override) -> tuple[str, ...]:
    """Drop what the document says of another kind of backend than the one an override wants, and name it.

    All of it: a `python` or a `shared_dir` of a cluster is nothing on this machine. Where it names no kind, the fields
    that the wanted one has are kept.
    """
    backend = document.values.get("backend")
    if override.path != ("backend", "kind") or not isinstance(backend, dict):
        return ()
    wanted = find_spec(str(override.value))
    if backend.get("kind", "local") == override.value or not isinstance(wanted, type):
        return ()
    is_open = "kind" not in backend  # then its fields may be those of the backend that is wanted
    kept = {"kind", *(getattr(wanted, "model_fields", {}) if is_open else ())}
    dropped = [name for name in backend if name not in kept]
    document.values["backend"] = {name: value for name, value in backend.items() if name in kept}
    places = ((document.where(("backend", name)), name) for name in dropped)
    if is_open:
        return tuple(f"{place}  backend.{name}: dropped, {override.value} has no such field" for place, name in places)
    return tuple(f"{place}  backend.{name}: dropped, it belongs to {backend['kind']}" for place, name in places)


def _apply(document: Document, override: Override) -> None:
    target: dict[str, Any] = document.values
    for depth, name in enumerate(override.path[:-1], start=1):
        inner = target.get(name)
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            path = override.path[:depth]
            raise SpecError([Problem(override.source, dotted(path), f"is {inner!r}, which has no fields to set")])
        target[name] = dict(inner)
        target = target[name]
    target[override.path[-1]] = override.value
    replaced = dotted(override.path)
    document.problems[:] = [
        p for p in document.problems if p.field != replaced and not p.field.startswith(replaced + ".")
    ]
    document.places[override.path] = override.source
    if len(override.path) > 1:
        document.places.setdefault(override.path[:1], override.source)


def _validated(document: Document, directory: Path) -> JobSpec:
    mode = find_start(document.values)
    known = mode is not None
    # Without a usable mode the fields that all modes share are still checked, so that one run shows everything.
    model = SPECS[mode or "torchrun"]
    spec, problems = _parse(model, document)
    if not known:
        problems = [problem for problem in problems if problem.field not in _ONE_MODE_FIELDS]
        problems.append(_mode_problem(document))
    for path, text in find_complaints(mode or "", document.values):
        if not any(problem.field == dotted(path) for problem in problems):
            problems.append(Problem(document.where(path), dotted(path), text))
    if spec is None or problems:
        raise SpecError(_in_file_order(problems))
    return _resolve_paths(spec, directory)


def find_start(values: Mapping[str, Any]) -> Start | None:
    """Return how a job is started: by its mode, or by a command of its own; None where neither is given."""
    mode = values.get("mode", "command" if "command" in values else None)
    return next((start for start in SPECS if start == mode), None)


_FIELDS = [set(spec.model_fields) for spec in SPECS.values()]
_ONE_MODE_FIELDS = (set[str].union(*_FIELDS) - set[str].intersection(*_FIELDS)) | {"boot_file", "mode"}


def _mode_problem(document: Document) -> Problem:
    wanted = f"must be one of {', '.join(MODES)}"
    if "mode" not in document.values:
        return Problem(document.where(()), "mode", f"is required: {wanted} (or give `command`, your own start command)")
    close = difflib.get_close_matches(str(document.values["mode"]), MODES, 1)
    return Problem(document.where(("mode",)), "mode", wanted + (f"; did you mean `{close[0]}`?" if close else ""))


def _parse(model: type[ModelT], document: Document) -> tuple[ModelT | None, list[Problem]]:
    problems = list(document.problems)
    said = {problem.field for problem in problems}
    try:
        return built(model).model_validate(document.values), problems
    except ValidationError as error:
        all_details = error.errors(include_url=False)
        for details in all_details:
            inner = (other["loc"] for other in all_details if len(other["loc"]) > len(details["loc"]))
            if details["type"] == "too_short" and any(loc[: len(details["loc"])] == details["loc"] for loc in inner):
                continue  # its entries are wrong, and were left out
            problem = _problem(model, details, document)
            if problem.field not in said:
                problems.append(problem)
        return None, problems


def _problem(model: type[BaseModel], details: ErrorDetails, document: Document) -> Problem:
    path: FieldPath = tuple(part for part in details["loc"] if part != "[key]")
    if details["type"] == UNKNOWN_KIND:
        path = (*path, "kind")
    if details["type"] != "extra_forbidden":
        text = _sentence(details)
    elif path[0] == "backend":  # its kind is known
        text = _unknown_field_of_backend(document.values["backend"].get("kind", "local"), path[1:])
    else:
        text = _unknown_field(model, path)
    return Problem(document.where(path), dotted(path), text)


_ALIKE, _ALIKE_IN_PART = 0.75, 0.6  # how alike two names are of which one may be meant
_GPU_NAMES = ("gpus", "gpu", "num_gpus", "ngpus", "gpus_per_node", "accelerators")
_EXAMPLES = {
    "backend": "{kind: slurm, partition: gpu}",
    "store": "{uri: s3://bucket/jobs}",
    "resources": "{nodes: 2, nproc_per_node: 8}",
    "restarts": "{max: 3}",
    "hosts": "[gpu1, gpu2]",
    "secrets": "{WANDB_API_KEY: 'env:WANDB_API_KEY'}",
    "inputs": "[{name: data, uri: s3://bucket/data}]",
    "outputs": "[{name: out, uri: s3://bucket/out}]",
}


def _sentence(details: ErrorDetails) -> str:
    example = _EXAMPLES.get(str(details["loc"][-1]), "")
    mapping = f"must be a mapping, like `{example}`" if example else "must be a mapping of fields"
    context = details.get("ctx", {})
    sentences = {
        "missing": f"is required, like `{example}`" if example else "is required",
        "jobsubmit": str(context.get("text")),
        "int_type": "must be a whole number",
        "bool_type": "must be true or false",
        "string_type": "must be text: quote it",
        "string_unicode": "must not contain a lone surrogate (half of a character)",
        "string_too_short": "must not be empty",
        "too_short": "must not be empty",
        "too_long": f"must have at most {context.get('max_length')} entries, and has {context.get('actual_length')}",
        "string_too_long": f"must have at most {context.get('max_length')} characters",
        "greater_than_equal": f"must be ≥ {context.get('ge')}",
        "less_than_equal": f"must be ≤ {context.get('le')}",
        "literal_error": f"must be {context.get('expected')}".replace("'", "`"),
        "dict_type": f"must be a mapping, like `{example}`" if example else "must be a mapping of `name: value` lines",
        "model_type": mapping,
        "model_attributes_type": mapping,
        "tuple_type": f"must be a list, like `{example or '[a, b]'}`",
    }
    return sentences.get(details["type"], details["msg"][:1].lower() + details["msg"][1:])


def _unknown_field(model: type[BaseModel], path: FieldPath) -> str:
    *parents, name = path
    fields = list(_fields_at(model, tuple(parents)))
    if not parents:
        owners = [mode for mode, spec in SPECS.items() if name in spec.model_fields]
        if owners and model in SPECS.values():
            modes = [mode for mode in owners if mode != "command"] or owners
            *others, last = modes
            named = f"the modes {', '.join(others)} and {last}" if others else f"mode {last}"
            instead = ", or use `command` instead of `boot_file`" if "command" in owners else ""
            if name == "command":
                instead = ", or remove `mode` and `boot_file`"
            return f"is a field of {named} only: remove it, or change `mode`{instead}"
        if name in ResourcesSpec.model_fields and model in SPECS.values():
            return f"is not a field here; did you mean `resources.{name}`?"
    if name in _GPU_NAMES and model in SPECS.values() and parents in ([], ["resources"]):
        return (
            "is not a field; set the processes per node with `resources.nproc_per_node`, and request GPUs with the "
            "backend's own field (see `jobsubmit help backends`)"
        )
    close = difflib.get_close_matches(str(name), fields, 1, cutoff=_ALIKE_IN_PART if parents else _ALIKE)
    if close:
        return f"is not a field; did you mean `{close[0]}`?"
    script = f" (for an argument of your script use `hyperparameters.{name}`)" if "hyperparameters" in fields else ""
    return f"is not a field; known fields: {', '.join(fields)}{script}"


def _unknown_field_of_backend(kind: str, path: FieldPath) -> str:
    """Say what a field is that this kind of backend lacks: often one of another kind, where `kind` was forgotten."""
    owners = [one for one in backend_kinds() if path[0] in getattr(find_spec(one), "model_fields", {})]
    if not owners or len(path) > 1:
        return _unknown_field(find_spec(kind), path)
    if others := owners[1:]:
        named = ", ".join(others)
        return f"is no field of kind {kind}, but of {owners[0]} and {named}: set `kind`, or remove it"
    return f"is a field of kind {owners[0]} only (this is {kind}): set `kind: {owners[0]}`, or remove it"


def _fields_at(model: type[BaseModel], parents: FieldPath) -> Iterator[str]:
    inner: type[BaseModel] = model
    for name in parents:
        if isinstance(name, int):  # a place in a list, whose kind is known already
            continue
        field = next((f for key, f in inner.model_fields.items() if name in (key, f.alias)), None)
        inner = next(_models_in(field.annotation if field else None), inner)
    yield from (field.alias or name for name, field in inner.model_fields.items())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type, however it is wrapped: optional, annotated, in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)


def _in_file_order(problems: Sequence[Problem]) -> list[Problem]:
    def line(problem: Problem) -> int:
        number = problem.where.rpartition(":")[2]
        return int(number) if number.isdigit() else 0

    return sorted(problems, key=line)


def _resolve_paths(spec: JobSpec, directory: Path) -> JobSpec:
    changes: dict[str, Any] = {"code_dir": _resolved(spec.code_dir, directory)}
    if spec.templates is not None:
        changes["templates"] = _resolved(spec.templates, directory)
    changes["store"] = _with_paths(spec.store, directory)
    if spec.checkpoint_dir is not None:
        changes["checkpoint_dir"] = _at(spec.checkpoint_dir, directory)
    if paths := _paths_of(spec.backend):
        absolute = {
            name: os.path.normpath(directory.absolute() / Path(path).expanduser()) for name, path in paths.items()
        }
        changes["backend"] = spec.backend.model_copy(update=absolute)
    changes["inputs"] = tuple(_at(data, directory) for data in spec.inputs)
    changes["outputs"] = tuple(_at(data, directory) for data in spec.outputs)
    return spec.model_copy(update=changes)


def _paths_of(backend: BackendSpec) -> dict[str, str]:
    """Return the paths that are given among the fields of a backend."""
    return {name: path for name in backend.path_fields if (path := getattr(backend, name)) is not None}


def _paths_of_store(store: StoreSpec) -> dict[str, str]:
    """Return the paths and addresses that are given for a store."""
    given = {"uri": store.uri, "ca_bundle": store.ca_bundle}
    return {name: path for name, path in given.items() if path is not None}


def _with_paths(store: StoreSpec, directory: Path) -> StoreSpec:
    return store.model_copy(update={name: _resolved(path, directory) for name, path in _paths_of_store(store).items()})


def _at(place: PlacedT, directory: Path) -> PlacedT:
    return place.model_copy(update={"uri": _resolved(place.uri or "", directory)})


def _resolved(location: str, directory: Path) -> str:
    """Return a folder as an absolute path; leave bucket addresses as they are."""
    if location.startswith(REMOTE_SCHEMES):
        return location
    return str((directory / Path(location.removeprefix("file://")).expanduser()).resolve())
