"""The API of ModelArts. The official SDK signs requests but does not retry them, so this module does."""

from __future__ import annotations

import itertools
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from jobsubmit.agent.retry import PASSING_STATUSES
from jobsubmit.errors import BackendError, JobNotFoundError

if TYPE_CHECKING:
    from jobsubmit.backends.modelarts.credentials import Identity

_TIMES = (3, 8)  # seconds to connect and to answer, so that a dead server is reported within ten
_LONGEST_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_UNSURE = (408, 500, 502, 504)  # it may have been done
_SETTLE_SECONDS, _SETTLE_PAUSE = 10.0, 1.5  # for a job to be listed that was created by a request without an answer
_NOT_FOUND, _TOO_MANY = 404, 429
_MOST_A_PAGE = 50
MOST_LINES = 500
_LOOK_SECONDS = 1.0
_LAST_LINES = 50

_NOT_MADE = re.compile(r"Failed to establish a new connection|NewConnectionError|ConnectTimeout|SSL", re.IGNORECASE)

_HINTS = {
    400: "run `jobsubmit render --request` to see what is sent",
    401: "check the keys: they are wrong or have expired",
    403: "ask for the permissions of ModelArts training jobs in this project and workspace: the keys do not have them",
    404: "correct backend.project_id, region or endpoint",
}


class RefusedError(BackendError):
    """The service refused a request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, hint: str) -> None:
        super().__init__(message, hint, may_pass=status in PASSING_STATUSES, is_unsure=status in _UNSURE)
        self.status = status


@cache
def open_service(who: Identity) -> ModelArts:
    """Return the client of a service; what it caches lasts as long as the process."""
    return ModelArts(who)


class ModelArts:
    """A client of the service for one project."""

    def __init__(self, who: Identity) -> None:
        self.who = who
        self.has_answered = False  # one that never did is reported at once
        self._looks: dict[str, tuple[float, dict[str, Any]]] = {}
        self._sdk, self._client = _connected(who)

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a training job, once; return it.

        If the response does not say whether the job exists now, it looks for a job of that name; if that fails, too,
        the error is unsure.
        """
        name = str(body["metadata"]["name"])
        is_unsure = False

        def attempt() -> dict[str, Any]:
            nonlocal is_unsure
            try:
                created = self._once("create_training_job", body=dict(body))
            except BackendError as error:
                is_unsure = is_unsure or error.is_unsure
                found = self._settled(name) if is_unsure else None
                if found is None:
                    raise
                return found
            return self._first(name, created) if is_unsure else created

        return _job(self._patiently(attempt))

    def _settled(self, name: str) -> dict[str, Any] | None:
        """Return the job that a request without an answer has created, if it comes to be listed within seconds."""
        begun = time.monotonic()
        while True:
            try:
                found = self.find(name)
                if found is not None or time.monotonic() - begun > _SETTLE_SECONDS:
                    return found
            except BackendError as error:
                if time.monotonic() - begun > _LONGEST_SECONDS or not error.may_pass:
                    text = f"ModelArts did not confirm that it created {name}, and the lookup failed: {error.message}"
                    raise BackendError(
                        text,
                        "run `jobsubmit status JOB` to look for it (`jobsubmit list` shows its id)",
                        is_unsure=True,
                    ) from error
            time.sleep(_SETTLE_PAUSE)

    def _first(self, name: str, created: dict[str, Any]) -> dict[str, Any]:
        """Return the job that an earlier request has created after all, and end the one that this one has."""
        *later, first = self._named(name) or [created]
        for job in later:
            self.stop(job["metadata"]["id"])
        return first

    def find(self, name: str) -> dict[str, Any] | None:
        """Return the training job of exactly this name, the first if there are several, or None."""
        *_, first = [None, *self._named(name)]
        return first

    def _named(self, name: str) -> list[dict[str, Any]]:
        """Return the training jobs of exactly this name, the newest first."""
        return [_job(job) for job in self.search(name) if (job.get("metadata") or {}).get("name") == name]

    def search(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the training jobs whose names contain a text, the newest first."""
        filters = [{"key": "name", "operator": "like", "value": [name]}]
        asked = {"limit": _MOST_A_PAGE, "sort_by": "create_time", "order": "desc", "filters": filters}
        for page in itertools.count():
            items = self._call("list_training_jobs", body={**asked, "offset": page}).get("items") or []
            yield from items
            if len(items) < _MOST_A_PAGE:
                return

    def get(self, job: str) -> dict[str, Any]:
        """Return a training job. Raises JobNotFoundError."""
        try:
            return _job(self._call("show_training_job_details", training_job_id=job))
        except RefusedError as error:
            if error.status == _NOT_FOUND:
                raise JobNotFoundError(f"ModelArts has no job {job}", "run `jobsubmit list` to see all jobs") from error
            raise

    def look(self, job: str) -> dict[str, Any]:
        """Return a training job, cached for a second: callers that wait ask often. Raises as `get`."""
        moment, found = self._looks.get(job, (0.0, {}))
        if time.monotonic() - moment > _LOOK_SECONDS:
            found = self.get(job)
            self._looks[job] = time.monotonic(), found
        return found

    def log_page(self, job: str, task: str, after: int) -> tuple[int, str] | None:
        """Return the number of the last line of a page of a task's log, and the page; None while it is not ready."""
        found = self._log(job, task, base_line=str(after), lines=MOST_LINES, order="asc")
        return (int(found.get("end_line") or after), str(found.get("content") or "")) if found else None

    def last_lines(self, job: str, task: str) -> list[str]:
        """Return the newest lines of a task's log, in the order of the service."""
        return str(self._log(job, task, lines=_LAST_LINES, order="desc").get("content") or "").split("\n")

    def _log(self, job: str, task: str, **which: Any) -> dict[str, Any]:
        return self._call("show_training_job_logs_from_aom", training_job_id=job, task_id=task, **which)

    def log_preview(self, job: str, task: str) -> tuple[str, int] | None:
        """Return the newest part of a task's log, at most 5 MB, and the size of the whole log in bytes; None while
        it is empty."""
        found = self._call("show_training_job_logs_preview", training_job_id=job, task_id=task)
        content = str(found.get("content") or "")
        return (content, int(found.get("full_size") or len(content.encode()))) if content else None

    def events(self, job: str) -> Iterator[dict[str, Any]]:
        """Yield the service's events of a job, the oldest first."""
        offset = 0
        while True:
            asked = {"offset": offset, "limit": _MOST_A_PAGE, "order": "asc"}
            found = self._call("list_training_job_events", training_job_id=job, **asked).get("events") or []
            yield from found
            offset += len(found)
            if len(found) < _MOST_A_PAGE:
                return

    def stop(self, job: str) -> None:
        """Ask a job to end."""
        self._call("stop_training_job", training_job_id=job, body={"action_type": "terminate"})

    def delete(self, job: str) -> None:
        """Remove a job that has ended; do nothing if it does not exist."""
        try:
            self._call("delete_training_job", training_job_id=job)
        except RefusedError as error:
            if error.status != _NOT_FOUND:
                raise

    def flavors(self) -> list[dict[str, Any]]:
        """Return the machine types that training jobs may use."""
        return list(self._call("show_training_job_flavors").get("flavors") or [])

    def engines(self) -> list[dict[str, Any]]:
        """Return the preset frameworks."""
        return list(self._call("show_training_job_engines").get("items") or [])

    def _call(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Return what an operation that may be done twice answers."""
        return self._patiently(lambda: self._once(operation, **fields))

    def _patiently(self, attempt: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        begun, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except BackendError as error:
                is_tolerated = error.may_pass and (self.has_answered or error.is_unsure)
                if not is_tolerated or time.monotonic() - begun + pause > _LONGEST_SECONDS:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _once(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Do an operation of the SDK, which names its requests alike: stop_training_job, StopTrainingJobRequest."""
        from huaweicloudsdkcore.exceptions import exceptions
        from requests import RequestException

        request = getattr(self._sdk, operation.title().replace("_", "") + "Request")(**fields)
        try:
            answer = getattr(self._client, operation)(request)
        except exceptions.ServiceResponseException as error:
            self.has_answered = True
            text = error.error_msg or error.error_code or "no reason given"
            hint = _HINTS.get(error.status_code, "try again later")
            raise RefusedError(
                error.status_code, f"ModelArts refuses the request: {text} ({error.status_code})", hint
            ) from error
        except exceptions.RetryOutageException as error:  # what the SDK makes of a 429
            self.has_answered = True
            raise RefusedError(
                _TOO_MANY, "ModelArts refuses the request: too many requests (429)", "try again later"
            ) from error
        except (exceptions.SdkException, RequestException) as error:
            where = self.who.endpoint or self.who.region
            text = f"ModelArts at {where} cannot be reached: {str(error)[:300]}"
            hint, is_unsure = "correct backend.region or backend.endpoint", not _is_unsent(error)
            raise BackendError(text, hint, may_pass=True, is_unsure=is_unsure) from error
        except ValueError as error:  # the SDK reads answers, too
            raise self._odd(error) from error
        self.has_answered = True
        try:
            found = json.loads(answer.raw_content) if answer.raw_content else {}
        except ValueError as error:
            raise self._odd(error) from error
        if not isinstance(found, dict):
            raise self._odd(f"a {type(found).__name__}")
        return found

    def _odd(self, what: object) -> BackendError:
        where = self.who.endpoint or self.who.region
        text = f"the server at {where} is not ModelArts: {str(what)[:200]}"
        return BackendError(text, "correct backend.endpoint, or check for a proxy in between", is_unsure=True)


def _job(found: dict[str, Any]) -> dict[str, Any]:
    """Return a training job that has what each must have; raise BackendError for one that has not."""
    if not isinstance(found.get("metadata"), dict) or not found["metadata"].get("id"):
        raise BackendError("ModelArts returned a job without an id", "try again later", may_pass=True, is_unsure=True)
    return found


def _is_unsent(error: Exception) -> bool:
    """Return whether a connection was never made."""
    import requests
    from huaweicloudsdkcore.exceptions import exceptions

    if isinstance(error, (requests.ConnectTimeout, exceptions.HostUnreachableException)):
        return True
    return isinstance(error, exceptions.ConnectionException) and bool(_NOT_MADE.search(str(error)))


def _connected(who: Identity) -> tuple[Any, Any]:
    try:
        from huaweicloudsdkcore.auth.credentials import BasicCredentials
        from huaweicloudsdkcore.http.http_config import HttpConfig
        from huaweicloudsdkmodelarts import v1 as sdk
        from huaweicloudsdkmodelarts.v1.region.modelarts_region import ModelArtsRegion
    except ImportError as error:
        raise BackendError("the SDK for ModelArts is not installed", "pip install 'jobsubmit[modelarts]'") from error
    credentials = BasicCredentials(who.ak, who.sk, who.project_id)
    if who.security_token:
        credentials = credentials.with_security_token(who.security_token)
    config = HttpConfig.get_default_config()
    config.timeout = _TIMES
    builder = sdk.ModelArtsClient.new_builder().with_credentials(credentials).with_http_config(config)
    if who.endpoint:
        return sdk, _silent(builder.with_endpoint(who.endpoint).build())
    try:
        return sdk, _silent(builder.with_region(ModelArtsRegion.value_of(who.region)).build())
    except KeyError as error:
        known = ", ".join(sorted(ModelArtsRegion.static_fields))
        raise BackendError(f"backend.region: the SDK has no region {who.region}", f"use one of: {known}") from error


def _silent(client: Any) -> Any:
    """Keep the SDK from writing its own words about an error to our stderr."""
    logging.getLogger(f"HuaweiCloud-SDK-{type(client).__name__}").addHandler(logging.NullHandler())
    return client
