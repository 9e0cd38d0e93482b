"""Submit PyTorch distributed training jobs to Slurm, Kubernetes, ModelArts, machines with ssh, or this machine.

    import jobsubmit

    job = jobsubmit.load("job.yaml")
    handle = jobsubmit.create(job)
    print(jobsubmit.wait(handle).state)

Every function that takes a job accepts its handle, its id or its name (the newest job of that name). Errors are
subclasses of JobSubmitError.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # `python -m jobsubmit` still finds modules in the current folder here: nothing else is imported
if TYPE_CHECKING:
    from jobsubmit.api import (
        cancel as cancel,
        create as create,
        delete as delete,
        events as events,
        list_jobs as list_jobs,
        load as load,
        logs as logs,
        prepare as prepare,
        render_script as render_script,
        report_of as report_of,
        rerun as rerun,
        status as status,
        wait as wait,
    )
    from jobsubmit.backends.models import (
        Failure as Failure,
        JobHandle as JobHandle,
        JobPhase as JobPhase,
        JobStatus as JobStatus,
        LogLine as LogLine,
        LogQuery as LogQuery,
        Recovery as Recovery,
        State as State,
    )
    from jobsubmit.common.finding import Finding as Finding
    from jobsubmit.errors import (
        BackendError as BackendError,
        BundleError as BundleError,
        CancelledError as CancelledError,
        CheckError as CheckError,
        JobNotFoundError as JobNotFoundError,
        JobSubmitError as JobSubmitError,
        Problem as Problem,
        SpecError as SpecError,
        StoreError as StoreError,
        UsageError as UsageError,
    )
    from jobsubmit.jobs.prepare import Prepared as Prepared
    from jobsubmit.jobs.records import JobRecord as JobRecord
    from jobsubmit.plan.script import Script as Script
    from jobsubmit.report.job_phases import Phase as Phase
    from jobsubmit.report.model import Report as Report
    from jobsubmit.spec.loader import LoadedSpec as LoadedSpec

__version__ = "0.1.0"

_FUNCTIONS = "cancel create delete events list_jobs load logs prepare render_script report_of rerun status wait"
_MODULES = {
    "jobsubmit.api": _FUNCTIONS,
    "jobsubmit.backends.models": "Failure JobHandle JobPhase JobStatus LogLine LogQuery Recovery State",
    "jobsubmit.common.finding": "Finding",
    "jobsubmit.errors": "BackendError BundleError CancelledError CheckError JobNotFoundError JobSubmitError Problem "
    "SpecError StoreError UsageError",
    "jobsubmit.jobs.prepare": "Prepared",
    "jobsubmit.jobs.records": "JobRecord",
    "jobsubmit.plan.script": "Script",
    "jobsubmit.report.job_phases": "Phase",
    "jobsubmit.report.model": "Report",
    "jobsubmit.spec.loader": "LoadedSpec",
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_PLACES)  # noqa: PLE0605 - the names are above, once


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name):  # noqa: ANN001, ANN202
        """Load a name when it is used: on nodes, only the modules of the agent exist."""
        missing = f"module {__name__!r} has no attribute {name!r}"
        if name not in _PLACES:
            raise AttributeError(missing)
        try:
            return getattr(import_module(_PLACES[name]), name)
        except ModuleNotFoundError as error:
            if "_jobsubmit_agent" in sys.modules:  # a process of a node
                raise AttributeError(missing) from error
            raise


def __dir__() -> list[str]:
    """Return the names that completion and `help` show."""
    return [*globals(), *__all__]
