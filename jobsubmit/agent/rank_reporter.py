"""Report what happens inside a node's Python processes; hook/sitecustomize.py imports it under a private name.

A launcher (torchrun, the boot file of mp.spawn, …) reports the exact exit status of every child it collects. A rank
gets a log of its own, and reports its start and an uncaught exception. The user's code does not notice it, and all
errors here are ignored: a job must run as it would without the reporter.

While `install` runs, only the standard library can be imported. Modules that are imported later must be loaded already
or be built in: otherwise a module of the user with the same name might be imported.
"""

from __future__ import annotations

import os
import sys

from . import node_contract as contract

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from multiprocessing import process
    from types import FrameType, TracebackType
    from typing import Any, TypeVar

    from typing_extensions import ParamSpec, Unpack

    from .group_use import GroupUse
    from .protocol import EventFields

    P = ParamSpec("P")
    T = TypeVar("T")

_GLOO_SECONDS = 0.3
_VICTIM_SIGNS = (
    "closed by peer",
    "reset by peer",
    "recv operation",
    "send operation",
    "broken pipe",
    "read error",
    "write error",
    "socket timeout",
    "remote process exited",
    "connection was likely closed",
    "nccl communicator was aborted",
)


def _report(event: str, **fields: Unpack[EventFields]) -> None:
    from .events import append_event

    fields["node"] = _node()
    append_event(os.environ[contract.AGENT_DIR], event, **fields)


def _node() -> int:
    return int(os.environ[contract.AGENT_NODE])


def _guarded(function: Callable[P, T]) -> Callable[P, T | None]:
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception:
            return None

    return guarded


@_guarded
def install() -> None:
    """Install the reporter for what this process is: a rank, or a launcher that may start ranks."""
    sys.meta_path.append(_ProfilingFinder())
    if contract.AGENT_DIR not in os.environ:
        return
    if contract.RANK_PID in os.environ:
        if "spawn_main" in _command_line():
            _report_joining(None)  # a rank may start processes of its own that train
        return
    from . import events, processes  # noqa: F401 - later on, a module of the user's might be found instead

    if contract.RANK in os.environ and contract.LOCAL_RANK in os.environ:
        _become_rank(int(os.environ[contract.RANK]))
        _die_with_launcher()
    elif contract.SPAWN_RANK in os.environ:
        if "spawn_main" in _command_line():
            _become_spawned_rank()
    else:
        _become_launcher()


def _command_line() -> str:
    if hasattr(sys, "orig_argv"):
        return " ".join(sys.orig_argv)
    with open("/proc/self/cmdline", "rb") as stream:
        return stream.read().decode("utf-8", "replace")


def _become_spawned_rank() -> None:
    # The trap: NODE_RANK counts nodes; the rank of a process is counted over all processes of all nodes.
    local_rank = int(os.environ.pop(contract.SPAWN_RANK))
    count = os.environ.pop(contract.SPAWN_COUNT, "") or os.environ[contract.NPROC_PER_NODE]
    rank = int(os.environ[contract.NODE_RANK]) * int(count) + local_rank
    _become_rank(rank, is_assumed=bool(os.environ.pop(contract.ASSUMED, "")))
    from multiprocessing import process

    run = process.BaseProcess.run

    def reporting_run(self: process.BaseProcess) -> None:
        _die_with_launcher_for_sure(self)
        try:
            run(self)
        except BaseException as error:
            if not (isinstance(error, SystemExit) and error.code in (None, 0)):
                _report_exception(error)
                _print_cause(error)
            raise

    process.BaseProcess.run = reporting_run  # type: ignore[method-assign]


def _become_rank(rank: int, is_assumed: bool = False) -> None:
    from .job_directory import STREAMS, JobDirectory

    os.environ[contract.RANK_PID] = str(os.getpid())
    files = JobDirectory(os.environ[contract.AGENT_DIR])
    for descriptor, stream in enumerate(STREAMS, start=1):
        ours = os.stat(files.log_of(_node(), None, stream))
        # Only what still is our own file: a redirection of the user's is respected.
        if os.path.samestat(os.fstat(descriptor), ours):
            log = os.open(files.log_of(_node(), rank, stream), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(log, descriptor)
            os.close(log)
    _show_stacks_when_asked(files.stacks_of(rank))
    _report(
        "rank_start",
        rank=rank,
        pid=os.getpid(),
        is_assumed=is_assumed,
        world=int(os.environ.get(contract.WORLD_SIZE) or 0),
        error_file=os.environ.get(contract.ERROR_FILE),
    )
    show = sys.excepthook

    def reporting_hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        _report_exception(error)
        show(kind, error, traceback)

    sys.excepthook = reporting_hook
    _let_gloo_finish_at_exit()
    _report_asked_exit()
    use = _report_joining(files.standstill_of(rank))
    _connect_early()
    _report_end(use)
    _time_if_asked(files.path, rank)


@_guarded
def _report_end(use: GroupUse | None) -> None:
    """Report the end of this rank: its launcher may notice it much later."""
    import atexit

    def report() -> None:
        _report("rank_end", pid=os.getpid(), has_exchanged=use.look() if use else None)

    atexit.register(_guarded(report))


@_guarded
def _report_joining(standstill: str | None) -> GroupUse:
    """Report once that this process joins a process group.

    From the first group on that may use NCCL, what a rank waits for there is written to its file `standstill`.
    """
    from . import nccl_watch
    from .group_use import GroupUse

    def join(size: int) -> None:
        _guarded(_report)("rank_joined", pid=os.getpid(), world=size)

    def watch(backend: object) -> bool:
        return standstill is None or bool(_guarded(nccl_watch.watch_collectives)(standstill, backend))

    return GroupUse(join, watch)


@_guarded
def _connect_early() -> None:
    """Have this process connect to torch's store as soon as that listens."""
    from . import early_store
    from .after_import import after_import

    after_import({early_store.MODULE: early_store.watch_stores}, lambda why: None)


@_guarded
def _time_if_asked(job_dir: str, rank: int) -> None:
    """Time the process if the job file has `profile`."""
    kind = os.environ.get(contract.PROFILE)
    if kind:
        from .timing.install import install

        install(job_dir, rank, _node(), kind)


class _ProfilingFinder:
    """Find `jobsubmit.profiling`, which training code may use, where jobsubmit itself is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        from importlib.util import spec_from_file_location

        if name != "jobsubmit":
            return None
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        return spec_from_file_location(name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])


@_guarded
def _show_stacks_when_asked(path: str) -> None:
    """Write the stacks of all threads when the supervisor asks for them, which it does when the job hangs."""
    import faulthandler

    from .job_directory import STACK_SIGNAL

    if not faulthandler.is_enabled():
        faulthandler.enable()  # a crash in C shows its stack, too
    stacks = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)


def _let_gloo_finish_at_exit() -> None:
    """Give Gloo's threads a moment before Python ends.

    They free the tensors of the last collectives, for which they need Python. A thread that is too late aborts the
    process, which would be reported as a failure of a successful training, or would hide a rank's exit code.
    """
    import atexit
    import time

    @atexit.register
    def wait() -> None:
        if any(_thread_name(thread).startswith("pt_gloo") for thread in _threads()):
            time.sleep(_GLOO_SECONDS)


def _threads() -> list[str]:
    tasks = "/proc/self/task"
    return os.listdir(tasks) if os.path.isdir(tasks) else []


def _thread_name(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm") as stream:
            return stream.read()
    except OSError:
        return ""


def _die_with_launcher() -> None:
    from .processes import die_with_parent

    die_with_parent(9)


@_guarded
def _die_with_launcher_for_sure(child: Any) -> None:
    """Make a rank die with its launcher: a collective call can ignore the signal that mp.spawn asks the kernel for."""
    if _is_torch_spawn(child):
        function, *arguments = child._args

        def dying(*args: object) -> object:
            _guarded(_die_with_launcher)()
            return function(*args)

        child._args = (dying, *arguments)


@_guarded
def _report_asked_exit() -> None:
    """Report the exit code that a rank asks for: torch may abort during shutdown, and hide it behind a signal."""
    leave = sys.exit

    def reporting_exit(status: int | str | None = None) -> None:
        if status:
            _guarded(_report)("rank_asked_exit", pid=os.getpid(), code=status if isinstance(status, int) else 1)
        leave(status)

    sys.exit = reporting_exit  # type: ignore[assignment]


@_guarded
def _print_cause(error: BaseException) -> None:
    """Show a spawned rank's traceback in its own log; mp.spawn shows it only in its parent's."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if cause is not None:
        sys.__excepthook__(type(cause), cause, cause.__traceback__)
        sys.stderr.flush()


@_guarded
def _report_exception(error: BaseException | None) -> None:
    names, text, seen = [], "", set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if not isinstance(error, SystemExit):
            names.append(type(error).__name__)
            text += str(error).lower()
        error = error.__cause__ or error.__context__
    if names:  # texts may hold anything, secrets too: only the kinds are written down
        is_victim = any(sign in text for sign in _VICTIM_SIGNS)
        _report("rank_exception", pid=os.getpid(), kinds=names, is_victim=is_victim, stderr_size=_stderr_size())


def _stderr_size() -> int:
    """Return how much is in the file that stderr is; 0 if it is none."""
    try:
        return os.fstat(2).st_size
    except OSError:
        return 0


def _become_launcher() -> None:
    waitpid = os.waitpid

    def reporting_waitpid(pid: int, options: int) -> tuple[int, int]:
        result = waitpid(pid, options)
        _report_exit(*result)
        return result

    os.waitpid = reporting_waitpid
    _connect_early()
    if os.environ.get(contract.AGENT_MODE) in ("spawn", "command"):
        _hand_over_spawn_ranks()


@_guarded
def _report_exit(pid: int, status: int) -> None:
    if pid and os.WIFSIGNALED(status):
        _report("child_exit", pid=pid, code=-os.WTERMSIG(status))
    elif pid and os.WIFEXITED(status):
        _report("child_exit", pid=pid, code=os.WEXITSTATUS(status))


def _hand_over_spawn_ranks() -> None:
    """Pass its rank to each process that mp.spawn (or a loop over Process) starts; wait for the ranks after SIGTERM."""
    import signal
    from multiprocessing import process

    start = process.BaseProcess.start
    started: list[process.BaseProcess] = []
    nproc = int(os.environ.get(contract.NPROC_PER_NODE, "0"))

    def handing_start(self: process.BaseProcess) -> None:
        local_rank, count = _spawn_rank(self, len(started)), _spawn_count()
        if local_rank is None or local_rank >= (count or nproc):
            return start(self)
        if not started and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            _guarded(signal.signal)(signal.SIGTERM, wait_for_ranks)
        started.append(self)
        os.environ[contract.SPAWN_RANK] = str(local_rank)
        os.environ[contract.SPAWN_COUNT] = str(count or "")
        os.environ[contract.ASSUMED] = "" if _is_torch_spawn(self) else "1"
        try:
            return start(self)
        finally:
            for name in (contract.SPAWN_RANK, contract.SPAWN_COUNT, contract.ASSUMED):
                os.environ.pop(name, None)

    def wait_for_ranks(number: int, frame: object) -> None:
        # The ranks got the signal too and may be saving a checkpoint; the join of the launcher ends when they have.
        if not any(_runs(child.pid) for child in started):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def become_forked_rank() -> None:
        if contract.SPAWN_RANK in os.environ and contract.RANK_PID not in os.environ:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _guarded(_become_spawned_rank)()

    process.BaseProcess.start = handing_start  # type: ignore[method-assign]
    os.register_at_fork(after_in_child=become_forked_rank)


def _spawn_rank(child: Any, count: int) -> int | None:
    """Return the local rank of a process that is being started, or None for a helper: pools and loaders are daemons.

    Of the processes that a command of the user starts, only those of mp.spawn are certainly ranks.
    """
    if _is_torch_spawn(child):
        return int(child._args[1])  # _wrap(fn, i, args, error_file)
    is_helper = child.daemon or os.environ.get(contract.AGENT_MODE) != "spawn"
    return None if is_helper else count


@_guarded
def _spawn_count() -> int | None:
    """Return how many processes mp.spawn starts, from the stack frame that starts them, or None."""
    caller: FrameType | None = sys._getframe()
    while caller is not None and caller.f_code.co_name != "start_processes":
        caller = caller.f_back
    count = caller.f_locals.get("nprocs") if caller is not None else None
    return count if isinstance(count, int) and count > 0 else None


def _is_torch_spawn(child: process.BaseProcess) -> bool:
    return getattr(getattr(child, "_target", None), "__module__", "") == "torch.multiprocessing.spawn"


def _runs(pid: int | None) -> bool:
    """Return whether a child still runs, without collecting its exit status."""
    try:
        return pid is not None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except OSError:
        return False
