"""Limits of a cluster, checked before any request."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from jobsubmit.backends.shared.limits import limit_finding, refused
from jobsubmit.backends.volcano.job_objects import CONFIG_MAP, JOB
from jobsubmit.backends.volcano.names import LONGEST_HOST_LIST, host_list_length, object_name
from jobsubmit.backends.volcano.spec import VolcanoBackendSpec
from jobsubmit.common.finding import Finding
from jobsubmit.common.store_address import REMOTE_SCHEMES

if TYPE_CHECKING:
    from jobsubmit.backends.protocol import Request
    from jobsubmit.plan.launch_plan import LaunchPlan

LARGEST_DATA = 1 << 20  # of a Secret or ConfigMap (Kubernetes' documentation of both)
_LARGEST_OBJECT = 3 << 19  # that etcd takes (its --max-request-bytes, by default)


def cluster_limits(plan: LaunchPlan, request: Request) -> Iterator[Finding]:
    """Yield what a cluster cannot run, or what is too large for it."""
    spec = VolcanoBackendSpec.of(plan.backend)
    if not (plan.image or spec.image):
        field = "backend.image" if plan.mode == "spawn" else "image"
        yield refused(field, "is required: Kubernetes runs jobs in containers", "set it to one with python and torch")
    if not plan.store.is_remote:
        hint = "set store.uri to s3://bucket/prefix or obs://bucket/prefix (--store)"
        yield refused("store", f"the pods cannot see the folder {plan.store.uri}", hint)
    for mount in plan.mounts:
        holders = [volume for volume in spec.volumes if f"{mount.uri}/".startswith(f"{volume.path}/")]
        if not holders and not mount.uri.startswith(REMOTE_SCHEMES):
            hint = f"add to backend.volumes: {{claim: NAME, path: {mount.uri}}}"
            yield refused(mount.field, f"no volume of the pods contains {mount.uri}", hint)
        if mount.kind != "input" and holders and max(holders, key=lambda volume: len(volume.path)).read_only:
            hint = "remove read_only of this volume, or choose a path of another one"
            yield refused(mount.field, f"{mount.uri} is on a volume that the pods may not write to", hint)
    length = host_list_length(object_name(request.job_id, plan.nodes), plan.nodes)
    if length > LONGEST_HOST_LIST:
        what = f"the host names of {plan.nodes:,} nodes in a pod's environment"
        yield limit_finding(
            "resources.nodes", what, length, LONGEST_HOST_LIST, "characters", "use at most about 4,100 nodes"
        )
    hint = "put long values in a file of the code directory"
    for name, most in ((JOB, _LARGEST_OBJECT), (CONFIG_MAP, LARGEST_DATA)):
        size = _size(name, request.documents[name], most)
        if size > most:
            yield limit_finding("env", f"the {name} sent to the cluster", size, most, "bytes", hint)


def _size(name: str, text: str, most: int) -> int:
    """Return how many bytes of an object count; its text may have less, for what is in it twice is written once."""
    if 2 * len(text.encode()) <= most:
        return 0
    found = YAML(typ="safe").load(text)
    if name == JOB:
        return len(json.dumps(found, ensure_ascii=False).encode())
    return sum(len(value.encode()) for value in found["data"].values()) + sum(
        len(base64.b64decode(value)) for value in found["binaryData"].values()
    )
