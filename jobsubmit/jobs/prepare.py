"""Decide everything about a job. All phases of this only read."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from jobsubmit.backends.models import JobPhase
from jobsubmit.backends.protocol import Backend, KnowsPython, Request
from jobsubmit.backends.registry import open_backend
from jobsubmit.bundle.git import Revision, UnknownRevisionError, read_revision
from jobsubmit.bundle.left_out import left_out_notes
from jobsubmit.bundle.model import Bundle, directory_problem
from jobsubmit.bundle.scan_cache import load_clean, load_known, save_clean, save_known
from jobsubmit.bundle.scanner import is_code, scan
from jobsubmit.check.data import check_data
from jobsubmit.check.findings_cache import cache_key, load_findings, save_findings
from jobsubmit.check.secrets import RULES_DIGEST, check_secrets, clean_digests, strike_secrets
from jobsubmit.common.finding import BUNDLE_LIMIT, IGNORED, Finding
from jobsubmit.config import Settings
from jobsubmit.errors import CheckError, Problem, SpecError, UsageError, list_problems
from jobsubmit.jobs.records import job_id_for
from jobsubmit.plan import launch_plan as planning
from jobsubmit.plan.fault_injection import Fault
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.plan_file import plan_text
from jobsubmit.plan.script import Script, render
from jobsubmit.spec.json_schema import SCHEMA_NAME
from jobsubmit.spec.loader import LoadedSpec
from jobsubmit.transfer.code_ref import CodeRef, code_ref, place_ref

_SHOWN = 5
_SHORTEST_DIGEST = 12
Known: TypeAlias = dict[str, list[Finding]]
_CERTAIN = ("secret", "uncommitted", "limit", BUNDLE_LIMIT, "data")


class PhaseClock:
    """Records when each phase of the preparation ran, before a job exists that can store it."""

    def __init__(self) -> None:
        self.steps: list[JobPhase] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one phase."""
        start = time.time()
        yield
        self.steps.append(JobPhase(name, start, time.time()))


@dataclass(frozen=True)
class Prepared:
    """Everything that was decided about a job, exactly as it would be sent."""

    loaded: LoadedSpec
    plan: LaunchPlan
    bundle: Bundle | None
    findings: tuple[Finding, ...]
    script: Script
    code: CodeRef
    request: Request
    steps: tuple[JobPhase, ...]
    notes: tuple[str, ...]
    revision: Mapping[str, object] | None
    rerun_of: str = ""
    python: str = ""
    judged: Sequence[Finding] | None = None
    rechecks: bool = False

    @property
    def digest(self) -> str:
        """Return the sha256 of everything that is submitted, except the job id: code, start script and plan."""
        parts = (self.code.digest or self.code.uri, self.script.sha256, plan_text(self.plan))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


@dataclass(frozen=True)
class Demands:
    """Options of a submission that are not in its job file.

    Without `checks` the code is not checked, because a check may be wrong about it. With `is_clean` all code must be
    committed. With `rechecks` every object of the code in the store is examined, not only the manifest. `expected` is
    the digest that the submission must have, or its beginning.
    """

    job_id: str | None = None
    checks: bool = True
    is_clean: bool = False
    faults: tuple[Fault, ...] = ()
    rechecks: bool = False
    expected: str = ""


def prepare(loaded: LoadedSpec, settings: Settings, demands: Demands = Demands()) -> Prepared:
    """Decide everything about a job: read the code directory, change nothing. Raises CheckError if a check fails."""
    return accept(examine(loaded, settings, demands), demands)


def accept(prepared: Prepared, demands: Demands) -> Prepared:
    """Return a job that was examined; raise CheckError if a check failed, or if it is not the one that is expected."""
    stop_at_errors(prepared.findings)
    _require_expected(prepared, demands.expected)
    return prepared


def _require_expected(prepared: Prepared, expected: str) -> None:
    if expected and len(expected) < _SHORTEST_DIGEST:
        raise UsageError(
            f"--expect {expected}: must be a digest, or its first {_SHORTEST_DIGEST} characters or more",
            "run the same command with --dry-run instead of --expect: its last line is the digest",
        )
    if expected and not prepared.digest.startswith(expected):
        text = f"--expect {expected}: this submission has the digest {prepared.digest}"
        raise CheckError(
            text,
            "run the same command with --dry-run instead of --expect: it shows what would be submitted, and the digest",
        )


def examine(
    loaded: LoadedSpec, settings: Settings, demands: Demands = Demands(), known: Known | None = None
) -> Prepared:
    """Prepare a job even if checks fail: its findings list the problems. Raises SpecError if it cannot be prepared.

    `known` gets what is found in the code of each job, and is asked for it before the code is checked.
    """
    clock = PhaseClock()
    plan = planning.build_plan(loaded.spec, settings, demands.faults)
    backend = open_backend(plan.backend.kind, settings)
    layout = plan.layout or backend.layout
    with clock.step("bundle"):
        bundle = _scanned(plan, loaded, settings)
        origin = _origin(bundle, plan)
        bundle = bundle._replace(revision=origin.revision) if bundle else None
    script = render(plan)
    with clock.step("check"):
        findings = list(_uncommitted(origin)) if demands.is_clean else []
        python = backend.python(plan) if isinstance(backend, KnowsPython) else ""
        judged = (
            _judged(plan, bundle, settings, backend, python, {} if known is None else known)
            if demands.checks and bundle
            else []
        )
        findings += [*_certain(plan, bundle, settings), *judged]
    if bundle is not None:
        code = code_ref(plan.store.uri, plan.name, plan.code_name, bundle, layout)
    else:
        code = place_ref(str(plan.code_dir), plan.code_name)
    request = backend.request(plan, script, code, job_id_for(plan.name, demands.job_id))
    findings += list(backend.limits(plan, request, code, bundle))
    placed = tuple(_placed(finding, loaded) for finding in findings)
    notes = (*loaded.notes, *plan.notes, *_ignored(plan, backend, findings), *map(str, missing_secrets(loaded, plan)))
    notes += tuple(left_out_notes(bundle)) if bundle else ()
    revision = origin.revision.document() if origin.revision else None
    steps = tuple(clock.steps)
    prepared = Prepared(loaded, plan, bundle, placed, script, code, request, steps, notes, revision, python=python)
    return replace(prepared, judged=judged if demands.checks else None, rechecks=demands.rechecks)


def examine_bundle(loaded: LoadedSpec, settings: Settings) -> tuple[Bundle | None, tuple[Finding, ...]]:
    """Return what would be uploaded, with findings about secrets and limits; None if the code is in a bucket."""
    prepared = examine(loaded, settings, Demands(checks=False))
    return prepared.bundle, tuple(f for f in prepared.findings if f.check in ("secret", BUNDLE_LIMIT))


def _certain(plan: LaunchPlan, bundle: Bundle | None, settings: Settings) -> Iterator[Finding]:
    """Yield what counts also where the code is not judged."""
    if bundle is not None:
        clean = load_clean(settings.transfer_dir, bundle, RULES_DIGEST)
        yield from check_secrets(bundle, plan.allow_secrets, clean)
    yield from check_data(plan)


def _judged(
    plan: LaunchPlan, bundle: Bundle, settings: Settings, backend: Backend, python: str, known: Known
) -> list[Finding]:
    """Return what is found in the code, now or when it was judged before."""
    key = cache_key(plan, bundle, python)
    if key not in known:
        cached = load_findings(settings.transfer_dir, key)
        known[key] = _check(plan, bundle, backend) if cached is None else cached
    return known[key]


def _check(plan: LaunchPlan, bundle: Bundle, backend: Backend) -> list[Finding]:
    from jobsubmit.check.run import check_code  # half of all modules, which known findings do without

    if not isinstance(backend, KnowsPython):
        return list(check_code(plan, bundle))
    find_missing, find_package = partial(backend.missing_modules, plan), partial(backend.package_folder, plan)
    return list(check_code(plan, bundle, find_missing, find_package))


def remember(prepared: Prepared, settings: Settings) -> None:
    """Cache what was found in the code, so that the next time nothing of it is read that did not change."""
    folder, bundle = settings.transfer_dir, prepared.bundle
    if bundle is None:
        return
    save_known(folder, bundle, len(load_known(folder, bundle.root)))
    if not any(finding.check == "secret" for finding in prepared.findings):
        save_clean(folder, bundle, RULES_DIGEST, clean_digests(bundle, prepared.plan.allow_secrets))
    if prepared.judged is not None:
        save_findings(folder, cache_key(prepared.plan, bundle, prepared.python), prepared.judged)


def _scanned(plan: LaunchPlan, loaded: LoadedSpec, settings: Settings) -> Bundle | None:
    code_dir = plan.code_dir
    if isinstance(code_dir, str):
        return None
    if problem := directory_problem(code_dir):
        where = loaded.document.where(("code_dir",))
        hint = "check the path: a relative path starts at the folder of the job file"
        raise SpecError([Problem(where, "code_dir", f"{code_dir} {problem}")], hint)
    files = (loaded.file, loaded.file.with_name(SCHEMA_NAME)) if loaded.file else ()
    own = (*_own_folders(plan, settings), *files)
    return scan(code_dir, own, load_known(settings.transfer_dir, code_dir))


class _Origin(NamedTuple):
    """What git knows of a bundle, or why it knows nothing."""

    revision: Revision | None
    why: str = ""


def _origin(bundle: Bundle | None, plan: LaunchPlan) -> _Origin:
    """Ask git, and leave out of the diff what nobody may see: a secret that was taken out of the code, for example."""
    if bundle is None:
        return _Origin(None, f"{plan.code_dir} is in a bucket, not in a git repository")
    sources = {file.path: file.source for file in bundle.files}
    try:
        revision = read_revision(bundle.root, sources, partial(is_code, bundle.root))
    except UnknownRevisionError as error:
        return _Origin(None, str(error))
    return _Origin(revision._replace(changes=strike_secrets(revision.changes, plan.allow_secrets)))


def _uncommitted(origin: _Origin) -> Iterator[Finding]:
    if origin.revision is None:
        hint = "commit the code, or submit it without --require-clean"
        yield Finding("error", "uncommitted", "code_dir", f"its commit cannot be determined: {origin.why}", hint)
    elif uncommitted := origin.revision.uncommitted:
        more = f", and {len(uncommitted) - _SHOWN:,} more" if len(uncommitted) > _SHOWN else ""
        text = f"not in commit {origin.revision.commit[:12]}: {', '.join(uncommitted[:_SHOWN])}{more}"
        yield Finding("error", "uncommitted", "code_dir", text, "commit them, or leave them out with .jobignore")


def _placed(finding: Finding, loaded: LoadedSpec) -> Finding:
    """Return a finding about a field with the line where that field is written."""
    path = tuple(finding.where.split(".", 1))
    if path[0] not in loaded.document.values or ":" in finding.where:
        return finding
    where = loaded.document.where(path)
    text = finding.text if where == f"the {finding.where}" else f"{finding.where}: {finding.text}"
    return replace(finding, where=where, text=text)


def _own_folders(plan: LaunchPlan, settings: Settings) -> tuple[Path, ...]:
    """Return the folders we write to ourselves: a bundle that held them would differ at every submission."""
    written = [mount.uri for mount in plan.mounts if mount.kind != "input" and "://" not in mount.uri]
    return (settings.state_dir, *map(Path, written), *(() if plan.store.is_remote else (Path(plan.store.uri),)))


def stop_at_errors(findings: Iterable[Finding]) -> None:
    """Raise CheckError if there is an error among findings."""
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return
    error = check_error(errors)
    if not any(finding.check in _CERTAIN for finding in errors):
        error.hint = "; ".join(filter(None, [error.hint, "if the check is wrong about your code, use --no-check"]))
    raise error


def check_error(errors: Sequence[Finding]) -> CheckError:
    """Return one error that lists all problems, each with its hint."""
    return CheckError(*list_problems((str(error), error.hint) for error in errors), errors[0].where)


def _ignored(plan: LaunchPlan, backend: Backend, findings: Sequence[Finding]) -> tuple[str, ...]:
    warned = {finding.where for finding in findings if finding.check == IGNORED}
    names = [name for name in plan.ignored if name not in warned]
    if not backend.ignored_because or not names:
        return ()
    return (f"{', '.join(names)}: ignored by the {plan.backend.kind} backend, {backend.ignored_because}",)


def missing_secrets(loaded: LoadedSpec, plan: LaunchPlan) -> list[Problem]:
    """Return a problem for each secret whose value is not in the environment."""
    return [
        Problem(
            loaded.document.where(("secrets", name)),
            f"secrets.{name}",
            f"the environment variable {source} is not set",
        )
        for name, source in plan.secrets
        if source not in os.environ
    ]
