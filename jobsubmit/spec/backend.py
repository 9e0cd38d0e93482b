"""The field `backend` of a job file: the base class of each backend's fields, and how they are parsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, GetJsonSchemaHandler, PlainValidator, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from jobsubmit.spec.backend_registry import PluginError, backend_kinds, find_spec
from jobsubmit.spec.field_types import FrozenModel, built, wrong

if TYPE_CHECKING:
    from typing_extensions import Self

UNKNOWN_KIND = "unknown_backend"


class BackendSpec(FrozenModel):
    """The fields of one kind of backend, and what the rest of jobsubmit needs to know about it.

    A backend subclasses it with `kind: Literal["name"]` and its fields. Loading the subclass MUST NOT load a client
    library: it is read whenever a job file names the kind.
    """

    runs_by: ClassVar[str]
    """The Backend, as `module:Class`; it is called with the Settings."""

    connects_by: ClassVar[str] = ""
    """A function, as `module:function`, that begins to connect to the machines of a job; empty if there is none.

    `create` and `run` call it before the job is checked, with the fields of `backend` as they stand in the job file:
    what is wrong there MUST be ignored. It MUST return at once, start no job, and MUST NOT raise. It may be called for
    a job that is never submitted; twice for one job means once.
    """

    handle_path: ClassVar[str] = ""
    """Pattern of the part of a handle after `kind://`, if handles mean the same on every machine; else empty."""

    path_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that hold a path, which may be relative to the job file."""

    is_this_machine: ClassVar[bool] = False
    """Whether the nodes of its jobs are processes of this machine, with its folders, programs and packages."""

    starts_boot_file: ClassVar[bool] = False
    """Whether the platform itself starts the boot file of mode spawn, without jobsubmit's start script."""

    uses_containers: ClassVar[bool] = False
    """Whether each node of its jobs is a container of its own, whose files are gone when the job has ended."""

    kind: str

    @classmethod
    def of(cls, backend: BackendSpec) -> Self:
        """Return the fields of a backend of this kind, for the code that runs it."""
        assert isinstance(backend, cls)
        return backend

    def gpus_of_node(self, nodes: int, nproc_per_node: int | None) -> int | None:
        """Return how many GPUs each node of a job has, or None where only the platform knows."""
        return None

    def why_no_gpus(self, nodes: int, nproc_per_node: int | None) -> str:
        """Return why the nodes get no GPUs although there are some; empty if there are none, or if they get some."""
        return ""

    def shared_folders(self) -> tuple[str, ...] | None:
        """Return the only folders that all nodes see with the same files in them, or None where others may be so."""
        return None

    def missing_gpu_request(self) -> str:
        """Return the field that would request GPUs, where a job gets none without it; empty if nothing is missing."""
        return ""


def parse_backend(value: object) -> BackendSpec:
    """Return the fields of a backend; without a kind they are those of `local`. Raises ValidationError."""
    if isinstance(value, BackendSpec):
        return value
    if not isinstance(value, dict):
        raise PydanticCustomError("model_type", "must be a mapping of fields")
    kind = value.get("kind", "local")
    spec = find_spec(kind) if isinstance(kind, str) else None
    if spec is None:
        raise PydanticCustomError(UNKNOWN_KIND, "must be one of {kinds}", {"kinds": ", ".join(backend_kinds())})
    if isinstance(spec, PluginError):
        raise wrong(str(spec))
    parsed: BackendSpec = built(spec).model_validate({**value, "kind": kind})
    return parsed


class _AllKinds:
    """The JSON Schema of the backends that there are, those of other packages among them."""

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        specs = [spec for kind in backend_kinds() if isinstance(spec := find_spec(kind), type)]
        union: Any = specs[0]
        for spec in specs[1:]:
            union |= spec
        return handler(TypeAdapter(Annotated[union, Field(discriminator="kind")]).core_schema)


BackendField = Annotated[BackendSpec, PlainValidator(parse_backend), _AllKinds]
