"""Run a job to its end: set it up, run its attempts, end its processes each time, and write the result."""

from __future__ import annotations

import time

from .. import atomic_write, events, processes
from ..protocol import Assignment
from ..recovery.outcome import Outcome
from ..recovery.restart_policy import wants_restart
from ..recovery.step_parser import StepParser
from ..status_file import STOPPED_BY_PLATFORM
from . import setup
from .attempt import Attempt
from .data_staging import Outputs
from .faults import Faults
from .job import POLL_SECONDS, USUAL_GRACE_SECONDS, Job
from .restart import prepare_restart
from .trained_alone import find_note

_FAILURE_GRACE_SECONDS = 3.0  # where nobody has said that there is something to save


def _spelled(error: OSError) -> str:
    return "the job cannot continue: %s%s" % (
        error.strerror or error,
        ": %s" % error.filename if error.filename else "",
    )


class Supervisor:
    """Run one job to its end."""

    def __init__(self, job_dir: str, assignment: Assignment) -> None:
        self.job = Job(job_dir, assignment)
        self.faults = Faults(job_dir, self.job.request["faults"])
        self.outputs = Outputs(self.job)
        self.progress = StepParser(job_dir)
        self.attempt: Attempt | None = None

    def run(self) -> None:
        """Run the job; the result is in status.json."""
        try:
            outcome = self._try()
        except Outcome as early:
            self._stop(early)
            outcome = early
        except OSError as error:
            outcome = Outcome("FAILED", "DISK_FULL" if atomic_write.is_full(error) else "AGENT_FAILED", _spelled(error))
            self._stop(outcome)
        self._finish(outcome)

    def _try(self) -> Outcome:
        setup.fetch_code(self.job)
        setup.bring_data(self.job)
        number = self.job.status["attempt"]
        while True:
            attempt, outcome = self._run_attempt(number)
            if not wants_restart(self.job.scope.restarts, outcome, number):
                return outcome  # the engine may start the job again
            number = prepare_restart(attempt, outcome, self.detected_at)
            setup.renew_code(self.job)

    def _run_attempt(self, number: int) -> tuple[Attempt, Outcome]:
        self.attempt = attempt = Attempt(self.job, number, self.faults, self.outputs, self.progress)
        try:
            outcome = attempt.run()
        except Outcome as early:
            outcome = early
            if outcome.reason == STOPPED_BY_PLATFORM:
                attempt.keep_stacks()
        attempt.machine.close()
        self.job.phases.end("training")
        self.job.phases.start("exit")
        self._stop(outcome)
        self.job.phases.end("exit")
        return attempt, attempt.judge(outcome)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, outcome: Outcome) -> None:
        self.job.scope.release()
        if not self.outputs.flush():
            outcome = self._without_outputs(outcome)
        for fault in self.faults.waiting:
            self.job.add_note("the fault `%s` was not triggered" % fault["text"])
        if outcome.state == "SUCCEEDED":
            note = find_note(self.job, self.attempt.table if self.attempt else None)
            if note:
                self.job.add_note(note)
        self.job.note_logs(now=True)
        events.append_event(self.job.dir, "end", state=outcome.state, reason=outcome.reason)
        self.job.write_status(
            state=outcome.state,
            reason=outcome.reason,
            message=outcome.message,
            failure=outcome.failure,
            ended=time.time(),
            last_step=self.progress.last,
        )
        self.job.write_at_last()

    def _without_outputs(self, outcome: Outcome) -> Outcome:
        text = "the outputs could not be uploaded; they are in %s/outputs" % self.job.dir
        if outcome.state != "SUCCEEDED":
            self.job.add_note(text)
            return outcome
        return Outcome("FAILED", "OUTPUTS_FAILED", text)

    def _stop(self, outcome: Outcome) -> None:
        """Send SIGTERM to every node, wait for the grace time, then send SIGKILL until no descendant is left."""
        self.detected_at = time.time()
        if self.attempt:
            self.attempt.table.stopped_at = self.detected_at
        if outcome.state == "CANCELLED":
            self.job.write_status(state="CANCELLING")
        running = [process.pid for process in self.job.started if process.poll() is None]
        for leader in running:
            processes.send_group(leader, 15)
        for orphan in set(processes.find_children()) - set(running):
            processes.send(orphan, 15)
        begun, usual = time.monotonic(), self._grace(outcome)
        while processes.reap():
            wanted = self.job.stop_grace()
            if time.monotonic() - begun >= (usual if wanted is None else wanted):
                break
            self.job.note_logs()
            time.sleep(POLL_SECONDS)
        processes.kill_all(known=[rank.pid for rank in self.attempt.table.ranks.values()] if self.attempt else ())
        self.job.started.clear()

    def _grace(self, outcome: Outcome) -> float:
        may_save = self.job.request["restarts"] or any(m["kind"] == "checkpoint" for m in self.job.request["mounts"])
        if outcome.state == "CANCELLED" or outcome.reason == "TIMEOUT" or may_save:
            return USUAL_GRACE_SECONDS
        return _FAILURE_GRACE_SECONDS
