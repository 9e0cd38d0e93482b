"""The fields of the SSH backend in a job file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator
from typing_extensions import Self

from jobsubmit.backends.ssh.host_name import HOST, MOST_HOSTS
from jobsubmit.spec.backend import BackendSpec
from jobsubmit.spec.backend_registry import KINDS
from jobsubmit.spec.field_types import matching, wrong

HostName = Annotated[str, matching(HOST, "must be a host as the ssh command takes it: `gpu1`, or `me@10.0.0.11`")]
Interface = Annotated[str, matching(r"[A-Za-z0-9_.-]{1,15}", "must be the name of a network interface: `eth0`")]
HostPath = Annotated[str, matching(r"(/|~/)[^\x00-\x1f]+", "must be a path on the hosts that begins with / or ~/")]


class SshBackendSpec(BackendSpec):
    """Run the job on machines that you reach with SSH: one node per host, nothing to install on them."""

    runs_by: ClassVar[str] = KINDS["ssh"].runs_by
    connects_by: ClassVar[str] = KINDS["ssh"].connects_by
    handle_path: ClassVar[str] = ".+/.+"

    kind: Literal["ssh"] = Field(
        description="Run on machines that you reach with SSH; they need sshd, bash and Python 3.8 or later.",
        examples=["ssh"],
    )
    hosts: tuple[HostName, ...] = Field(
        min_length=1,
        max_length=MOST_HOSTS,
        description="The machines, as the ssh command takes them; the first runs node 0, and decides how the job ends.",
        examples=[["gpu1", "gpu2"]],
    )
    spares: StrictInt = Field(
        0,
        ge=0,
        description="Number of spare hosts, taken from the end of `hosts`. At a restart, they replace lost ones.",
        examples=[1],
    )
    python: HostPath | None = Field(
        None,
        description="Python that runs the training: the path of the program, or of a virtual environment's folder, on "
        "the hosts. Left out: the first `python` on their PATH.",
        examples=["/opt/envs/train/bin/python", "~/envs/train"],
    )
    workdir: HostPath = Field(
        "~/.jobsubmit",
        description="Folder on each host for the files of jobs, and for code and inputs that several jobs share.",
        examples=["/data/me/jobsubmit"],
    )
    interface: Interface | None = Field(
        None,
        description="Network interface between the hosts. Left out: the one of your SSH connection.",
        examples=["eth0"],
    )
    share_gpus: StrictBool = Field(
        False,
        description="Start the job even if other processes use the GPUs of a host.",
        examples=[True],
    )

    @model_validator(mode="after")
    def _hosts_differ(self) -> Self:
        for host in self.hosts:
            if self.hosts.count(host) > 1:
                raise wrong(f"lists the host {host} twice in `hosts`")
        if self.spares >= len(self.hosts):
            raise wrong("must have more hosts than spares")
        return self

    @property
    def nodes(self) -> int:
        """Return how many nodes a job has: one for each host that is no spare."""
        return len(self.hosts) - self.spares
