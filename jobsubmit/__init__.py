"""Submit PyTorch distributed training jobs to ModelArts-like platforms.

    import jobsubmit

    job = jobsubmit.load("job.yaml")
    handle = jobsubmit.create(job)
    print(jobsubmit.wait(handle).state)

Every function that takes a job accepts its handle, its id or its name (the newest job of that name). Errors are
subclasses of JobSubmitError.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `python -m jobsubmit` still finds modules in the current folder here: nothing else is imported
if TYPE_CHECKING:
    from jobsubmit.api import cancel as cancel
    from jobsubmit.api import create as create
    from jobsubmit.api import delete as delete
    from jobsubmit.api import events as events
    from jobsubmit.api import list_jobs as list_jobs
    from jobsubmit.api import load as load
    from jobsubmit.api import logs as logs
    from jobsubmit.api import prepare as prepare
    from jobsubmit.api import render_script as render_script
    from jobsubmit.api import report_of as report_of
    from jobsubmit.api import rerun as rerun
    from jobsubmit.api import status as status
    from jobsubmit.api import wait as wait
    from jobsubmit.backends.models import Failure as Failure
    from jobsubmit.backends.models import JobHandle as JobHandle
    from jobsubmit.backends.models import JobStatus as JobStatus
    from jobsubmit.backends.models import LogLine as LogLine
    from jobsubmit.backends.models import LogQuery as LogQuery
    from jobsubmit.backends.models import Recovery as Recovery
    from jobsubmit.backends.models import State as State
    from jobsubmit.backends.models import Step as Step
    from jobsubmit.common.finding import Finding as Finding
    from jobsubmit.errors import BackendError as BackendError
    from jobsubmit.errors import BundleError as BundleError
    from jobsubmit.errors import CancelledError as CancelledError
    from jobsubmit.errors import CheckError as CheckError
    from jobsubmit.errors import JobNotFoundError as JobNotFoundError
    from jobsubmit.errors import JobSubmitError as JobSubmitError
    from jobsubmit.errors import Problem as Problem
    from jobsubmit.errors import SpecError as SpecError
    from jobsubmit.errors import StoreError as StoreError
    from jobsubmit.errors import UsageError as UsageError
    from jobsubmit.jobs.prepare import Prepared as Prepared
    from jobsubmit.jobs.records import JobRecord as JobRecord
    from jobsubmit.plan.script import Script as Script
    from jobsubmit.report.job_phases import Phase as Phase
    from jobsubmit.report.report import Report as Report
    from jobsubmit.spec.loader import LoadedSpec as LoadedSpec

__version__ = "0.1.0"

_FUNCTIONS = "cancel create delete events list_jobs load logs prepare render_script report_of rerun status wait"
_MODULES = {
    "jobsubmit.api": _FUNCTIONS,
    "jobsubmit.backends.models": "Failure JobHandle JobStatus LogLine LogQuery Recovery State Step",
    "jobsubmit.common.finding": "Finding",
    "jobsubmit.errors": "BackendError BundleError CancelledError CheckError JobNotFoundError JobSubmitError Problem "
    "SpecError StoreError UsageError",
    "jobsubmit.jobs.prepare": "Prepared",
    "jobsubmit.jobs.records": "JobRecord",
    "jobsubmit.plan.script": "Script",
    "jobsubmit.report.job_phases": "Phase",
    "jobsubmit.report.report": "Report",
    "jobsubmit.spec.loader": "LoadedSpec",
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_PLACES)  # noqa: PLE0605 - the names are above, once


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name):  # noqa: ANN001, ANN202
        """Load a name when it is used: the parts that run on nodes import this package too."""
        if name in _PLACES:
            return getattr(import_module(_PLACES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what completion and `help` show."""
    return [*globals(), *__all__]
