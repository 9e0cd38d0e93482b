"""The pages of `jobsubmit ui`, and the streams that keep them current."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode

import anyio
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from jobsubmit.common.resources import TEMPLATES
from jobsubmit.config import Settings
from jobsubmit.errors import BackendError, JobNotFoundError, JobSubmitError, UsageError
from jobsubmit.jobs.records import JobRecord, JobRecords
from jobsubmit.report import html
from jobsubmit.report.model import Comparison, Report
from jobsubmit.report.report import compare, events_text
from jobsubmit.report.view import view_comparison, view_job
from jobsubmit.ui import actions
from jobsubmit.ui.comparison import differences
from jobsubmit.ui.guard import Guard
from jobsubmit.ui.job_index import JobIndex
from jobsubmit.ui.job_watch import JobWatch, Watches
from jobsubmit.ui.jobs_view import Query, view_jobs
from jobsubmit.ui.log_spool import NumberedLine, Selection

PAGE_LINES, _STREAM_LINES, _FEWEST_COMPARED, _MOST_COMPARED = 500, 500, 2, 4
_MOST_ON_PAGE = 2000  # lines; a reader that is further behind begins again with the last ones
_TABS = ("logs", "timeline", "ranks", "code", "files", "events")
_PARTS = ("actions", "head", "curves")
_STILL_SECONDS = 15.0  # then a stream says that it lives
_TAB_PARTS = {"logs": "sources", "timeline": "timeline", "ranks": "ranks"}


def build_app(settings: Settings, token: str, *, version: str) -> ASGIApp:
    """Return the application; only requests with the token reach it."""
    pages = _Pages(settings, version)
    routes = [
        Route("/", pages.jobs),
        Route("/jobs/part", pages.jobs_part),
        Route("/jobs/stream", pages.jobs_stream),
        Route("/compare", pages.compare),
        Route("/job/{job}", pages.job),
        Route("/job/{job}/stream", pages.job_stream),
        Route("/job/{job}/log", pages.log_part),
        Route("/job/{job}/{action:str}", pages.confirm, methods=["GET"]),
        Route("/job/{job}/{action:str}", pages.act, methods=["POST"]),
        Route("/page.css", _file("style.css", "text/css")),
        Route("/icon.svg", _file("icon.svg", "image/svg+xml")),
        Route("/page.js", _file("page.js", "text/javascript")),
    ]
    app = Starlette(routes=routes, exception_handlers={JobSubmitError: pages.error, 404: pages.error})
    app.router.redirect_slashes = False  # its redirects would lack the token
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=5)
    return Guard(app, token)


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    def serve(request: Request) -> Response:
        return Response((TEMPLATES / "page" / name).read_text(encoding="utf-8"), media_type=kind)

    return serve


class _Pages:
    def __init__(self, settings: Settings, version: str) -> None:
        self.settings, self.version = settings, version
        self.records = JobRecords(settings)
        self.index, self.watches = JobIndex(settings), Watches(settings)
        self.index.refresh()
        self.limiter = anyio.CapacityLimiter(200)  # a stream waits in a thread of its own

    def _page(self, template: str, base: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(html.render(template, base=base, version=self.version, **values), status)

    def error(self, request: Request, error: Exception) -> Response:
        """Show an error of ours, or that there is no such page."""
        known = error if isinstance(error, JobSubmitError) else UsageError("there is no such page")
        status = 404 if isinstance(known, JobNotFoundError) or not isinstance(error, JobSubmitError) else 400
        base = "../" * max(0, request.url.path.count("/") - 1) or "./"
        return self._page("error.html.j2", base, status, error=known)

    # All jobs

    def jobs(self, request: Request) -> Response:
        self.index.refresh()
        version = self.index.version  # before the content: a change between the two is shown again
        view = view_jobs(self.index, _query(request))
        return self._page("jobs.html.j2", "./", view=view, jobs_version=version)

    def jobs_part(self, request: Request) -> Response:
        view = view_jobs(self.index, _query(request))
        return HTMLResponse(html.render("jobs_part.html.j2", base="./", view=view))

    async def jobs_stream(self, request: Request) -> Response:
        version = _number(request.query_params.get("version"), 0)
        await self._in_thread(self.index.refresh)

        async def events() -> AsyncIterator[str]:
            nonlocal version
            while True:
                newer = await self._in_thread(partial(self.index.wait, version, _STILL_SECONDS))
                yield f"event: jobs\ndata: {newer}\n\n" if newer != version else ": still here\n\n"
                version = newer
                await anyio.sleep(0.5)

        return _stream(events())

    # One job

    def job(self, request: Request) -> Response:
        record = self._record(request)
        watch = self.watches.of(record)
        report, report_version = watch.first_report()
        tab = request.query_params.get("tab", "logs")
        tab = tab if tab in _TABS else "logs"
        has_ended = report is not None and not report.status.state.may_change
        if tab == "logs" and has_ended:  # a page without scripts adds nothing later
            watch.wait_for_log(PAGE_LINES)
        view = view_job(report) if report is not None else None
        return self._page(
            "job.html.j2",
            "../",
            record=record,
            view=view,
            problem=watch.problem,
            report_version=report_version,
            tab=tab,
            selection=_selection(request),
            stream_query=urlencode([*_log_query(request), ("tab", tab), ("created", record.created)]),
            actions=actions.actions_for(report.status if report is not None else None),
            log=self._log(watch, request) if tab == "logs" else None,
            events=events_text(record, self.settings) if tab == "events" else "",
        )

    def _log(self, watch: JobWatch, request: Request) -> dict[str, Any]:
        """Return the last selected lines, or those before a number."""
        before = _number(request.query_params.get("before"), watch.spool.count)
        lines = watch.spool.before(before, _selection(request), PAGE_LINES)
        first = lines[0].number if lines else 0
        query = urlencode([*_log_query(request), ("tab", "logs"), ("before", first)])
        return {
            "lines": lines,
            "next": watch.spool.count if request.query_params.get("before") else before,
            "is_old": bool(request.query_params.get("before")),
            "older": query if first > 0 and len(lines) == PAGE_LINES else "",
            "sources": _sources(watch),
            "lost": watch.spool.lost,
        }

    def log_part(self, request: Request) -> Response:
        """Return older lines, as the page asks for them when the reader scrolls up."""
        watch = self.watches.of(self._record(request))
        log = self._log(watch, request)
        return HTMLResponse(html.render("log_part.html.j2", lines=log["lines"]))

    async def job_stream(self, request: Request) -> Response:
        record = await self._in_thread(partial(self._record, request))
        watch = await self._in_thread(partial(self.watches.of, record))
        selection, tab = _selection(request), request.query_params.get("tab", "logs")
        version = _number(request.query_params.get("version"), 0)
        is_other = _float(request.query_params.get("created")) not in (None, record.created)
        number = _number(request.query_params.get("from"), 0)
        number = _number(request.headers.get("last-event-id"), number)

        async def events() -> AsyncIterator[str]:
            watch.readers += 1
            try:
                async for event in self._job_events(watch, selection, tab, number, version):
                    yield event
            finally:
                watch.readers -= 1

        async def other_job() -> AsyncIterator[str]:
            yield "event: other\ndata:\n\n"  # the id was given to another job: the page is of no use

        return _stream(other_job() if is_other else events())

    async def _job_events(
        self, watch: JobWatch, selection: Selection, tab: str, number: int, version: int
    ) -> AsyncIterator[str]:
        """Yield the changed parts of a job's page and its new lines, until there will be no more."""
        shown: dict[str, str] = {}
        while not watch.is_over.is_set():
            is_complete, newest = watch.is_complete, watch.version
            if newest != version:
                version = newest
                async for part in self._changed_parts(watch, tab, selection, shown):
                    yield part
            if tab == "logs" and number < watch.spool.count:
                message, number = await self._in_thread(partial(_lines_message, watch, selection, number))
                yield message
            elif is_complete:
                yield "event: end\ndata:\n\n"
                return
            else:
                begun = anyio.current_time()
                await self._in_thread(partial(watch.wait, version, watch.spool.count, _STILL_SECONDS))
                if anyio.current_time() - begun >= _STILL_SECONDS:
                    yield ": still here\n\n"
                await anyio.sleep(0.1)

    async def _changed_parts(
        self, watch: JobWatch, tab: str, selection: Selection, shown: dict[str, str]
    ) -> AsyncIterator[str]:
        """Yield the parts of the page that are not as they were."""
        report = watch.report
        if report is None:
            return
        parts = await self._in_thread(partial(_render_parts, watch, report, tab, selection))
        for name, text in parts.items():
            if shown.get(name) != text:
                shown[name] = text
                yield f"event: part\ndata: {json.dumps({'name': name, 'html': text})}\n\n"

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(work, limiter=self.limiter, abandon_on_cancel=True)

    def _record(self, request: Request) -> JobRecord:
        return self.records.find(request.path_params["job"])

    def _exact_record(self, request: Request) -> JobRecord:
        """Return the job with the id in the path; a name could be that of another job by now."""
        record = self.records.read(request.path_params["job"])
        if record is None:
            raise JobNotFoundError("there is no such job any more")
        return record

    # Several jobs

    def compare(self, request: Request) -> Response:
        names = request.query_params.getlist("job")
        if not _FEWEST_COMPARED <= len(names) <= _MOST_COMPARED:
            raise UsageError("choose two, three or four jobs to compare")
        records = [self.records.find(name) for name in names]
        found = [self.watches.of(record).first_report()[0] for record in records]
        reports = [report for report in found if report is not None]
        if len(reports) < len(records):
            raise UsageError("the jobs are still being read: load this page again in a moment")
        compared: tuple[Comparison, ...] = ()
        if len(reports) == _FEWEST_COMPARED and all(report.syncs for report in reports):
            compared = compare(reports[0], reports[1])
        view = view_comparison(reports, compared, differences(reports))
        return self._page("compare.html.j2", "./", view=view, command=f"jobsubmit report {' '.join(names[:2])}")

    # Actions

    def confirm(self, request: Request) -> Response:
        action = actions.find_action(request.path_params["action"])
        record = self._exact_record(request)
        return self._page("confirm.html.j2", "../../", record=record, action=action, command=action.command(record))

    async def act(self, request: Request) -> Response:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"))
        done: Response = await self._in_thread(partial(self._act, request, fields.get("created", [""])[0]))
        return done

    def _act(self, request: Request, created: str) -> Response:
        record = self._exact_record(request)
        if _float(created) != record.created:
            raise UsageError("this job is not the one that you saw: load its page again")
        try:
            done = actions.find_action(request.path_params["action"]).act(record, self.settings)
        except OSError as error:
            raise BackendError(f"{error.filename}: {error.strerror}", "check the permissions and the space") from error
        self.index.refresh()
        return RedirectResponse("../../" if done is None else f"../{done}", status_code=303)


def _render_parts(watch: JobWatch, report: Report, tab: str, selection: Selection) -> dict[str, str]:
    """Return the parts of a job's page that may change while it is open, by name."""
    names = [*_PARTS, *([_TAB_PARTS[tab]] if tab in _TAB_PARTS else [])]
    values = {
        "base": "../",
        "record": watch.record,
        "view": view_job(report),
        "actions": actions.actions_for(report.status),
        "sources": _sources(watch),
        "selection": selection,
    }
    return {name: html.render("part.html.j2", name=name, **values) for name in names}


def _sources(watch: JobWatch) -> list[tuple[int, int | None]]:
    """Return the nodes and ranks that have lines, the nodes first."""
    return sorted(watch.spool.sources.copy(), key=lambda source: (source[1] is not None, source[1] or 0, source[0]))


def _lines_message(watch: JobWatch, wanted: Selection, number: int) -> tuple[str, int]:
    """Return the next lines for a page as an event, and the number at which to go on."""
    is_far = watch.spool.count - number > _MOST_ON_PAGE
    lines: Sequence[NumberedLine]
    if is_far:
        number = watch.spool.count
        lines = watch.spool.before(number, wanted, PAGE_LINES)
    else:
        lines, number = watch.spool.after(number, wanted, _STREAM_LINES)
    text = html.render("log_part.html.j2", lines=lines) if lines else ""
    data = json.dumps({"html": text, "again": is_far})
    return f"id: {number}\nevent: log\ndata: {data}\n\n", number


def _stream(events: AsyncIterator[str]) -> Response:
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _query(request: Request) -> Query:
    given = request.query_params
    return Query(
        given.get("q", "").strip()[:200],
        given.get("state", ""),
        given.get("backend", ""),
        _float(given.get("since")),
        _float(given.get("before")),
        _number(given.get("page"), 0),
    )


def _selection(request: Request) -> Selection:
    given = request.query_params
    kind, _, number = given.get("of", "").partition("-")
    chosen = _number(number, -1)
    return Selection(
        chosen if kind == "rank" and chosen >= 0 else None,
        chosen if kind == "node" and chosen >= 0 else None,
        given.get("stream", "") if given.get("stream") in ("stdout", "stderr") else "",
        given.get("find", "")[:200],
    )


def _log_query(request: Request) -> list[tuple[str, Any]]:
    return [(name, request.query_params[name]) for name in ("of", "stream", "find") if request.query_params.get(name)]


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else default  # noqa: PLR2004


def _float(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
