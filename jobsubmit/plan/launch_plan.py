"""JobSpec → LaunchPlan: every decision about a job, made before anything is read, sent or started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from jobsubmit.common.store_address import REMOTE_SCHEMES, StoreAddress
from jobsubmit.config import Settings
from jobsubmit.plan.arguments import build_arguments, build_hyperparameter_words
from jobsubmit.plan.fault_injection import Fault, require_fit, require_local
from jobsubmit.plan.mounts import Mount, find_mounts
from jobsubmit.plan.rendezvous import Rendezvous, choose_rendezvous, rendezvous_notes
from jobsubmit.spec.backend import BackendSpec
from jobsubmit.spec.job_spec import (
    FrameworkSpec,
    JobSpec,
    LaunchSpec,
    Layout,
    LocalRank,
    Profile,
    RestartsSpec,
    SpawnSpec,
    Tracker,
)
from jobsubmit.spec.modes import Start

# The name under which an uploaded code directory lies in MA_JOB_DIR: the last part of its address.
BUNDLED_CODE_NAME = "code"
_HANG_SECONDS = 600
_ELASTIC_RESTARTS = 3


@dataclass(frozen=True)
class LaunchPlan:
    """A job with every decision made, except what only a node can know.

    `arguments` are the words of the hyperparameters and, from index `args_from` on, those of `args`.
    """

    name: str
    mode: Start
    nodes: int
    min_nodes: int
    nproc_per_node: int | None
    code_dir: Path | str
    code_name: str
    boot_file: str | None
    command: tuple[str, ...] | None
    arguments: tuple[str, ...]
    args_from: int
    mounts: tuple[Mount, ...]
    requirements: str | None
    setup: str | None
    allow_secrets: tuple[str, ...]
    local_rank: LocalRank
    torch_version: str | None
    rdzv: Rendezvous | None
    env: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...]
    timeout: int | None
    restarts: RestartsSpec | None
    hang_after: int
    is_hang_chosen: bool
    profile: Profile | None
    metrics: tuple[tuple[str, str], ...]
    tracking: tuple[Tracker, ...]
    templates: Path | None
    store: StoreAddress
    layout: Layout | None
    image: str | None
    framework: FrameworkSpec | None
    flavor: str | None
    backend: BackendSpec
    checkpoints_of: str
    faults: tuple[Fault, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def local_rank_option(self) -> str:
        """Return how torch.distributed.launch passes the local rank: with an underscore before torch 2.0."""
        return "--local_rank" if (self.torch_version or "").startswith("1.") else "--local-rank"

    @property
    def has_launcher(self) -> bool:
        """Return whether one of torch's launchers starts the boot file, once per process."""
        return self.mode in ("launch", "torchrun") and self.command is None

    @property
    def start(self) -> Start:
        """Return how the job is started: by its mode, or in any mode by a command of its own."""
        return self.mode if self.command is None else "command"


def build_plan(
    spec: JobSpec, settings: Settings, faults: tuple[Fault, ...] = (), checkpoints_of: str = ""
) -> LaunchPlan:
    """Make every decision about a job; change nothing. Raises UsageError for a fault that fits none of its nodes,
    or its backend.

    `checkpoints_of` names the earlier job from whose checkpoints it continues; without one it has its own.
    """
    require_local(faults, is_local=spec.backend.is_this_machine)
    require_fit(faults, spec.resources.most, spec.resources.nproc_per_node)
    remote = spec.code_dir.startswith(REMOTE_SCHEMES)
    return LaunchPlan(
        name=spec.name,
        mode=spec.mode,
        nodes=spec.resources.most,
        min_nodes=spec.resources.fewest,
        nproc_per_node=spec.resources.nproc_per_node,
        code_dir=spec.code_dir.rstrip("/") if remote else Path(spec.code_dir),
        code_name=PurePosixPath(spec.code_dir).name if remote else BUNDLED_CODE_NAME,
        boot_file=spec.boot_file,
        command=None if isinstance(spec, SpawnSpec) else spec.command,
        arguments=build_arguments(spec),
        args_from=len(build_hyperparameter_words(spec)),
        mounts=find_mounts(spec),
        requirements=spec.requirements,
        setup=spec.setup,
        allow_secrets=spec.allow_secrets,
        local_rank=spec.local_rank if isinstance(spec, LaunchSpec) else "env",
        torch_version=spec.torch_version,
        rdzv=choose_rendezvous(spec),
        env=tuple(spec.env.items()),
        secrets=tuple((name, ref.removeprefix("env:")) for name, ref in spec.secrets.items()),
        timeout=spec.timeout,
        restarts=_restarts(spec),
        hang_after=_HANG_SECONDS if spec.hang_after is None else spec.hang_after,
        is_hang_chosen=spec.hang_after is not None,
        profile=spec.profile,
        metrics=tuple(spec.metrics.items()),
        tracking=spec.tracking,
        templates=Path(spec.templates) if spec.templates else None,
        store=settings.store(spec),
        layout="tree" if remote else spec.layout,
        image=None if isinstance(spec, SpawnSpec) else spec.image,
        framework=spec.framework if isinstance(spec, SpawnSpec) else None,
        flavor=spec.resources.flavor,
        backend=settings.backend(spec),
        checkpoints_of=checkpoints_of,
        faults=faults,
        ignored=_platform_fields(spec),
        notes=rendezvous_notes(spec),
    )


def _restarts(spec: JobSpec) -> RestartsSpec | None:
    """Return when a job is started again; an elastic one that could not be would end with its first lost node."""
    if spec.restarts is None and spec.resources.fewest < spec.resources.most:
        return RestartsSpec(max=_ELASTIC_RESTARTS)
    return spec.restarts


def _platform_fields(spec: JobSpec) -> tuple[str, ...]:
    """Return the given fields that only a platform with machine types and images reads."""
    runs_in = ("framework", spec.framework) if isinstance(spec, SpawnSpec) else ("image", spec.image)
    given = (runs_in, ("resources.flavor", spec.resources.flavor))
    return tuple(name for name, value in given if value is not None)
