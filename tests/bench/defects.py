"""Put fixed defects back, one by one, and see which tests notice: proof that the short runs still guard.

    python tests/bench/defects.py            all of them; half an hour
    python tests/bench/defects.py claims s3  those whose names hold one of these words

Each is tried on a copy of the tracked files: first against the tests of `make check`, and what these miss against the
tests of `make test` that touch the changed code. A test must fail for it: a run that breaks or hangs does not count.
A defect is (qualified name, old text, new text). One whose old text does not occur exactly once is an error.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
IN_CHECK, IN_BOTH = 10, 18  # must be caught, at least
_LONGEST_SECONDS = 900.0


class Defect(NamedTuple):
    """Hold one change for the worse; `tests` are those of `make test` that touch what it changes."""

    name: str
    old: str
    new: str
    meaning: str
    tests: tuple[str, ...]


ENGINES, UPLOAD, STORES = "contract/test_engines.py", "contract/test_upload.py", "contract/test_stores.py"
FAILURES, PROCESSES = "integration/test_failures.py", "integration/test_processes.py"
TRANSFER, FAULTS = "integration/test_transfer.py", "integration/test_transfer_faults.py"
DATA, RESTARTS = "integration/test_data.py", "integration/test_restarts.py"

DEFECTS = (
    # ── how a job ends
    Defect(
        "jobsubmit.agent.recovery.first_failure.ProcessFailure.order",
        "return self.was_told, self.is_victim, self.is_leader and self.code > 0, self.t",
        "return False, False, False, self.t",
        "a victim that raised before its cause was collected is named as the first failure",
        (FAILURES,),
    ),
    Defect(
        "jobsubmit.agent.supervisor.attempt.Attempt._settle_seconds",
        "return SETTLE_UNCLEAR_SECONDS + elsewhere if elsewhere or self.table.running() else SETTLE_SECONDS",
        "return SETTLE_SECONDS",
        "where only victims are seen nobody waits for the cause",
        (FAILURES,),
    ),
    Defect(
        "jobsubmit.agent.supervisor.attempt.Attempt.judge",
        "for event in self.job.events.new():\n            self.table.take(event)\n        failures",
        "failures",
        "what comes in while the others are stopped does not count",
        (FAILURES,),
    ),
    Defect(
        "jobsubmit.agent.recovery.restart_policy.wants_restart",
        'restarts >= policy["max"]',
        'restarts > policy["max"]',
        "a job is started once more than it may be",
        (RESTARTS, ENGINES),
    ),
    Defect(
        "jobsubmit.agent.supervisor.job.Job.without_secrets",
        "sorted(parts, key=len, reverse=True)",
        "sorted(parts)",
        "a secret that begins with another one is struck out in part",
        (FAILURES,),
    ),
    Defect(
        "jobsubmit.agent.supervisor.guardian.main",
        "    processes.kill_all()\n",
        "",
        "a killed supervisor leaves the job's processes behind",
        (FAILURES, PROCESSES),
    ),
    Defect(
        "jobsubmit.agent.processes.adopt_orphans",
        "    if _prctl:\n",
        "    if not _prctl:\n",
        "a daemon that a job started outlives it",
        (PROCESSES, FAILURES),
    ),
    Defect(
        "jobsubmit.agent.supervisor.data_staging.Outputs.flush",
        'return self._wait(start_carrier(self.job, "outputs"), asked)',
        "return True",
        "what a job wrote last is not uploaded at its end",
        (DATA,),
    ),
    Defect(
        "jobsubmit.agent.rank_reporter._become_rank",
        "if os.path.samestat(os.fstat(descriptor), ours):",
        "if ours:",
        "what a user's script redirects to a file of its own goes into the job's log",
        (PROCESSES,),
    ),
    # ── what a node is told
    Defect(
        "jobsubmit.agent.node_contract.LAUNCHER_PREFIXES",
        '("PET_", "TORCHELASTIC_")',
        '("TORCHELASTIC_",)',
        "PET_NNODES of the user's shell steers the job's torchrun",
        (PROCESSES,),
    ),
    Defect(
        "jobsubmit.plan.arguments.hyperparameters",
        "spec.resources.most == 1",
        "spec.resources.most >= 1",
        "with several nodes each is told that it is rank 0 of 1",
        ("contract/test_training.py",),
    ),
    Defect(
        "jobsubmit.plan.rendezvous.choose_rendezvous",
        'return Rendezvous("static", "PyTorch 2.1 needs static (platform documentation)")',
        'return Rendezvous("c10d", "documented by the platform")',
        "torch 2.1 meets by c10d, which fails where the first pod's name cannot be resolved",
        ("integration/test_expansion.py",),
    ),
    # ── code and stores
    Defect(
        "jobsubmit.transfer.lease.wait_for_expiry",
        "found, seen = new, _now()",
        "found = new",
        "an upload that takes longer than 90 s is overtaken while it is alive",
        (FAULTS, TRANSFER),
    ),
    Defect(
        "jobsubmit.transfer.lease.HeldLease.end_with",
        "manifest, digest, expected=self.tag)",
        "manifest, digest)",
        "an upload that was overtaken replaces the manifest of the other",
        (FAULTS, UPLOAD),
    ),
    Defect(
        "jobsubmit.bundle.scan_cache._entries",
        "if _newest(file.stamp) < bundle.scanned - _RACY_NS:",
        "if file.stamp:",
        "a file that changes twice within a tick of the clock is uploaded as it was",
        (TRANSFER,),
    ),
    Defect(
        "jobsubmit.bundle.scanner._file",
        'mode = "755" if status.st_mode & stat.S_IXUSR else "644"',
        'mode = "644"',
        "a program arrives on the nodes as a file that cannot be run",
        (TRANSFER, UPLOAD),
    ),
    Defect(
        "jobsubmit.stores.folder.FolderStore.put",
        "if expected is not None and self._tag(key) != expected:",
        "if expected and self._tag(key) != expected:",
        "of two that want to be the first in a folder both are",
        (STORES,),
    ),
    Defect(
        "jobsubmit.stores.s3.S3Store.get_to",
        'options: Any = {"range": {"offset": done}, "if_match": f\'"{tag}"\'} if done else {}',
        "options: Any = {}",
        "a download that breaks off holds its beginning twice",
        (FAULTS,),
    ),
    Defect(
        "jobsubmit.transfer.download._Download._destination",
        "if os.path.commonpath([real, self.real_root]) != self.real_root:",
        "if not real:",
        "a download follows a link out of its directory",
        (TRANSFER,),
    ),
    Defect(
        "jobsubmit.agent.fetch.safe_path",
        'part in ("", ".", "..")',
        'part in ("", ".")',
        "a path of a manifest leaves the code folder of a node",
        (UPLOAD,),
    ),
    # ── backends
    Defect(
        "jobsubmit.backends.slurm.clients._from_controller",
        "is_ours = folder is not None and comment is not None and comment[1] == MARK + folder.name",
        "is_ours = folder is not None",
        "a Slurm job of somebody else's is cancelled, its folder removed",
        ("integration/test_slurm.py",),
    ),
    Defect(
        "jobsubmit.backends.shared.node_results.complete_status",
        "if outcome is not None and reported.reason not in _BY_THE_ENGINE:",
        "if outcome is not None:",
        "a job that Slurm ended at its time limit failed with an exit code",
        ("integration/test_slurm.py",),
    ),
    Defect(
        "jobsubmit.backends.volcano.result._ended",
        'statuses.update(stored(base.details["attempt"], silent))',
        "",
        "a pod that is gone takes the reason of the failure with it",
        ("integration/test_volcano.py", ENGINES),
    ),
    Defect(
        "jobsubmit.backends.modelarts.client.ModelArts.create",
        "is_unsure = is_unsure or error.is_unsure",
        "is_unsure = False",
        "an answer of ModelArts that is lost makes a second job",
        ("contract/test_modelarts.py",),
    ),
    Defect(
        "jobsubmit.backends.modelarts.states.apply_ends",
        'if end is not None and reported.details["exit_codes"].get(task) in (None, _agents_code(end))',
        "if end is not None",
        "the end of an earlier attempt explains why the last one failed",
        ("contract/test_modelarts.py",),
    ),
    # ── before and after
    Defect(
        "jobsubmit.jobs.records.JobRecords.find",
        "for record in [record for record in named if not record.problem] or named:",
        "for record in named:",
        "a name means a submission that was refused, not the job before it",
        (FAILURES,),
    ),
    Defect(
        "jobsubmit.report.straggler.last_rank",
        "return min(",
        "return max(",
        "the report names the rank that waits, not the one that all wait for",
        ("integration/test_page.py",),
    ),
    Defect(
        "jobsubmit.check.secrets.check_secrets",
        "if (file.sha256 not in clean or _is_dotenv(file.path)) and not covers(exempt, file.path):",
        "if file.sha256 not in clean and not covers(exempt, file.path):",
        "an .env file with the text of another one is not looked at",
        ("integration/test_validate.py",),
    ),
    Defect(
        "jobsubmit.bundle.git.read_revision",
        "suspects = {*changed, *unwatched, *_changed_submodules(root, entries)}",
        "suspects = {*changed, *_changed_submodules(root, entries)}",
        "a file that git is told to overlook counts as committed",
        ("integration/test_revision.py",),
    ),
)


def main() -> int:
    """Try the defects; return the exit code."""
    words = sys.argv[1:]
    chosen = [defect for defect in DEFECTS if not words or any(word in defect.name for word in words)]
    began = time.monotonic()
    caught = {"check": 0, "test": 0, "nothing": 0}
    with tempfile.TemporaryDirectory(prefix="defects-") as folder:
        tree = Path(folder) / "tree"
        copy_tracked(tree)
        for defect in chosen:
            found(tree, defect)  # all of them apply, or nothing is tried
        require_green(tree, ())
        for number, defect in enumerate(chosen, start=1):
            by, seconds = try_out(tree, defect)
            caught[by] += 1
            print(f"{number:>2}/{len(chosen)}  {by:<8} {seconds:>4.0f} s  {defect.name}: {defect.meaning}", flush=True)
    both = caught["check"] + caught["test"]
    print(f"make check notices {caught['check']} of {len(chosen)}, together with make test {both}")
    print(f"in {(time.monotonic() - began) / 60:.1f} minutes")
    return int(not words and (caught["check"] < IN_CHECK or both < IN_BOTH))


def copy_tracked(tree: Path) -> None:
    """Copy what git tracks, as it is now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)


@cache
def require_green(tree: Path, tests: tuple[str, ...]) -> None:
    """Fail where tests do not pass without any defect."""
    if (result := run_tests(tree, tests)) != "passed":
        sys.exit(f"without a defect, {tests or 'the tests of make check'} {result}: fix that first")


def try_out(tree: Path, defect: Defect) -> tuple[str, float]:
    """Return what noticed a defect (check, test or nothing), and after how many seconds."""
    began = time.monotonic()
    by = "check" if is_noticed(tree, defect, ()) else "nothing"
    if by == "nothing":
        require_green(tree, defect.tests)
        by = "test" if is_noticed(tree, defect, defect.tests) else "nothing"
    return by, time.monotonic() - began


def is_noticed(tree: Path, defect: Defect, tests: tuple[str, ...]) -> bool:
    """Tell whether one of the tests fails with a defect."""
    file, text = found(tree, defect)
    file.write_text(text, encoding="utf-8")
    try:
        return run_tests(tree, tests) == "failed"
    finally:
        shutil.copy2(ROOT / file.relative_to(tree), file)


def found(tree: Path, defect: Defect) -> tuple[Path, str]:
    """Return the file that a defect is in, and its text with it. Fails where the defect does not apply any more."""
    parts = defect.name.split(".")
    for length in range(len(parts), 0, -1):
        file = tree.joinpath(*parts[:length]).with_suffix(".py")
        if file.exists():
            break
    else:
        raise SystemExit(f"{defect.name}: there is no such module")
    text = file.read_text(encoding="utf-8")
    start, end = span(text, parts[length:], defect.name)
    inside = text[start:end]
    if inside.count(defect.old) != 1:
        raise SystemExit(f"{defect.name}: holds this {inside.count(defect.old)} times, not once:\n{defect.old}")
    return file, text[:start] + inside.replace(defect.old, defect.new) + text[end:]


def span(text: str, path: list[str], name: str) -> tuple[int, int]:
    """Return where a class, function or constant begins and ends in a module's text."""
    node: ast.AST = ast.parse(text)
    for part in path:
        inner = [child for child in ast.iter_child_nodes(node) if part in _names(child)]
        if len(inner) != 1:
            raise SystemExit(f"{name}: there is no {part} (any more)")
        node = inner[0]
    assert isinstance(node, ast.stmt)
    assert node.end_lineno
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: node.lineno - 1])), sum(map(len, lines[: node.end_lineno]))


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    return [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]


def run_tests(tree: Path, tests: tuple[str, ...]) -> str:
    """Run the tests of `make check`, or these of `make test`, up to the first that fails: passed, failed or broken."""
    chosen = ["-m", "not slow", *(f"tests/{test}" for test in tests)] if tests else []
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *chosen]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "broken"
    summary = done.stdout.rstrip().rpartition("\n")[2]
    if done.returncode == 0:
        return "passed"
    return "failed" if re.search(r"\d+ failed", summary) and not re.search(r"\d+ error", summary) else "broken"


if __name__ == "__main__":
    sys.exit(main())
