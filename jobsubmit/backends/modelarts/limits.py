"""What ModelArts refuses or cannot do, with its documented numbers, checked before any request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from jobsubmit.backends.modelarts.request import NAME, auto_stop_hours, flavor
from jobsubmit.backends.shared.limits import limit_finding, refused
from jobsubmit.common.finding import BUNDLE_LIMIT, Finding, Level
from jobsubmit.common.store_address import REMOTE_SCHEMES

if TYPE_CHECKING:
    from jobsubmit.backends.protocol import Request
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.transfer.code_ref import CodeRef

# Two pages of the documentation differ: above the lower number we warn, above the higher we refuse.
_USUAL_FILES, _MOST_FILES = 1000, 4096
_TRAVELLERS = 3  # files of ours: start script, agent, and what starts that
_USUAL_BYTES, _MOST_BYTES = 128_000_000, 5_000_000_000
_MOST_VARIABLES, _LONGEST_KEY, LONGEST_VALUE = 100, 8192, 4096
_MOST_HOURS = 72
_MOST_RESTARTS = 3
_RESTARTS_AFTER = ("failure", "node_failure", "hang")
_PARAMETER = re.compile(r"[A-Za-z0-9_-]{1,64}")


def platform_limits(plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
    """Yield what the platform does not accept in a job."""
    yield from _request_limits(plan)
    yield from _place_limits(plan, code)
    yield from _variable_limits(json.loads(request.documents[NAME])["algorithm"].get("environments", {}))
    if bundle is not None:
        yield from _bundle_limits(bundle)
    yield from _unlike_ours(plan)


def _request_limits(plan: LaunchPlan) -> Iterator[Finding]:
    if plan.mode == "spawn" and plan.framework is None:
        hint = "set it, e.g. {name: PyTorch, version: pytorch_2.1.0-…}; `jobsubmit engines` lists them"
        yield refused("framework", "a job of mode spawn runs in a preset framework, and none is set", hint)
    if plan.mode != "spawn" and plan.image is None:
        yield refused(
            "image",
            f"a job of mode {plan.mode} runs in an image, and none is set",
            "set it to an image in SWR, the image registry of Huawei Cloud",
        )
    if flavor(plan) is None:
        yield refused("resources.flavor", "no machine type is set", "run `jobsubmit flavors` to list them")
    hours = auto_stop_hours(plan)
    if hours is not None and hours > _MOST_HOURS:
        yield limit_finding("timeout", "the timeout on the platform", hours, _MOST_HOURS, "hours", "leave it out")
    for word in plan.arguments if plan.mode == "spawn" else ():
        name, separator, _ = word.removeprefix("--").partition("=")
        field = f"hyperparameters.{name}"
        if not separator:
            text = "the platform passes only --name=value, not a switch without a value"
            yield refused(field, text, "make the script accept a value")
        elif not _PARAMETER.fullmatch(name):
            yield refused(field, "must be 1 to 64 letters, digits, `_` or `-`", "rename it")


def _place_limits(plan: LaunchPlan, code: CodeRef) -> Iterator[Finding]:
    if not code.uri.startswith(REMOTE_SCHEMES):
        hint = "set store.uri to a bucket: obs://bucket/jobs"
        yield refused("store.uri", f"the platform cannot see {code.uri}", hint)
    if code.layout != "tree":
        yield refused("layout", "the platform needs a directory, not an archive", "leave it out, or set layout: tree")
    for mount in plan.mounts:
        if not mount.uri.startswith(REMOTE_SCHEMES):
            text = f"{mount.name}: the platform cannot see {mount.uri}"
            hint = "set its uri to a folder in a bucket: obs://bucket/folder"
            if mount.kind == "input":
                hint = "upload it (jobsubmit upload DIR obs://bucket/folder), and set its uri to that address"
            yield refused(mount.field, text, hint)


def _variable_limits(variables: Mapping[str, str]) -> Iterator[Finding]:
    hint = "put them into a file of the code directory"
    if len(variables) > _MOST_VARIABLES:
        yield limit_finding(
            "env", "environment, jobsubmit's included", len(variables), _MOST_VARIABLES, "variables", hint
        )
    for name, value in variables.items():
        if len(name) > _LONGEST_KEY:
            shorter = "give it a shorter name"
            yield limit_finding("env", "the name of a variable", len(name), _LONGEST_KEY, "characters", shorter)
        if len(value) > LONGEST_VALUE:
            yield limit_finding(f"env.{name}", "the value of a variable", len(value), LONGEST_VALUE, "characters", hint)


def _bundle_limits(bundle: Bundle) -> Iterator[Finding]:
    numbers = (
        ("files", len(bundle.files) + _TRAVELLERS, _USUAL_FILES, _MOST_FILES),
        ("bytes", bundle.size, _USUAL_BYTES, _MOST_BYTES),
    )
    for unit, number, usual, most in numbers:
        if number <= usual:
            continue
        level: Level = "error" if number > most else "warning"
        text = f"the code has {number:,} {unit}, but the limit of ModelArts is {most:,}"
        if level == "warning":
            text = (
                f"the code has {number:,} {unit}; ModelArts may refuse it: its documentation gives both {usual:,} and "
                f"{most:,} as the limit"
            )
        yield Finding(
            level, BUNDLE_LIMIT, "code_dir", text, "exclude files other than code with .jobignore; use inputs for data"
        )


def _unlike_ours(plan: LaunchPlan) -> Iterator[Finding]:
    """Yield what other backends do and the platform does in its own way, or not at all."""
    if plan.min_nodes < plan.nodes:
        yield refused("resources.nodes", "the platform does not support elastic jobs", "set one number of nodes")
    if plan.restarts and plan.restarts.max > _MOST_RESTARTS:
        text = f"{plan.restarts.max} restarts, but the limit is {_MOST_RESTARTS}"
        yield refused("restarts.max", text, "set it to the limit or less")
    if plan.restarts and (unlike := [after for after in plan.restarts.on if after not in _RESTARTS_AFTER]):
        text = f"the platform does not distinguish {unlike[0]} from other failures"
        yield refused("restarts.on", text, f"use only: {', '.join(_RESTARTS_AFTER)}")
    if plan.mode == "spawn" and plan.requirements:
        hint = "use an image that has the packages, or install them in the boot file"
        yield refused("requirements", "a preset framework does not run the start script of jobsubmit", hint)
    if plan.mode == "spawn" and plan.setup:
        hint = "use an image that is set up already, or do the setup in the boot file"
        yield refused("setup", "a preset framework does not run the start script of jobsubmit", hint)
    if plan.is_hang_chosen and plan.mode == "spawn":
        text = "has no effect in mode spawn: only the platform detects hangs"
        hint = (
            "remove it; to have the platform restart a job that hangs, set backend.fault_tolerance: {hang_retry: true}"
        )
        yield Finding("warning", "limit", "hang_after", text, hint)
    if plan.profile:
        text = "the platform returns no measurements of ranks, so steps are not timed"
        yield Finding("warning", "limit", "profile", text, "profile it on another backend")
