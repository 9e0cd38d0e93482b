"""The API of ModelArts, by its official SDK, which signs; it tries nothing again, so we do."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jobsubmit.errors import BackendError, JobNotFoundError

if TYPE_CHECKING:
    from jobsubmit.backends.modelarts.credentials import Identity

_TIMES = (3, 8)  # seconds to connect and to answer, so that a dead server is told within ten
_PATIENCE_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_PASSING = (408, 429, 500, 502, 503, 504)
_NOT_FOUND, _TOO_MANY = 404, 429
_MOST_A_PAGE = 50
MOST_LINES = 500
_LAST_LINES = 50

_HINTS = {
    400: "see what it says; `jobsubmit render --request` shows what is sent",
    401: "the keys are wrong or have expired",
    403: "the keys may not do this: ask for the permissions of ModelArts training jobs in this project and workspace",
    404: "correct backend.project_id, region or endpoint",
}


class RefusedError(BackendError):
    """Say that the service refused a request; `status` is HTTP's."""

    def __init__(self, status: int, message: str, hint: str) -> None:
        super().__init__(message, hint, may_pass=status in _PASSING)
        self.status = status


class ModelArts:
    """Speak to the service of one project."""

    def __init__(self, who: Identity, patience: float = _PATIENCE_SECONDS) -> None:
        self.who, self.patience = who, patience
        self.has_answered = False  # one that never did is told at once
        self._sdk, self._client = _connected(who)

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a training job, once; return it.

        After an answer that does not tell whether there is a job now, we look for one of that name.
        """
        name = str(body["metadata"]["name"])
        request = self._sdk.CreateTrainingJobRequest(body=dict(body))

        def attempt() -> dict[str, Any]:
            try:
                return self._once(self._client.create_training_job, request)
            except BackendError as error:
                if not error.may_pass:
                    raise
                found = self.find(name)
                if found is None:
                    raise
                return found

        return self._patiently(attempt)

    def find(self, name: str) -> dict[str, Any] | None:
        """Return the training job of exactly this name, or None."""
        return next((job for job in self.search(name) if job["metadata"]["name"] == name), None)

    def search(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the training jobs whose names hold a text, the newest first."""
        page = 0
        while True:
            filters = [{"key": "name", "operator": "like", "value": [name]}]
            body = {
                "offset": page,
                "limit": _MOST_A_PAGE,
                "sort_by": "create_time",
                "order": "desc",
                "filters": filters,
            }
            request = self._sdk.ListTrainingJobsRequest(body=body)
            found = self._call(self._client.list_training_jobs, request)
            items = found.get("items") or []
            yield from items
            page += 1
            if len(items) < _MOST_A_PAGE:
                return

    def get(self, job: str) -> dict[str, Any]:
        """Return a training job. Raises JobNotFoundError."""
        request = self._sdk.ShowTrainingJobDetailsRequest(training_job_id=job)
        try:
            return self._call(self._client.show_training_job_details, request)
        except RefusedError as error:
            if error.status == _NOT_FOUND:
                raise JobNotFoundError(f"ModelArts knows no job {job}", "`jobsubmit list` shows yours") from error
            raise

    def log_page(self, job: str, task: str, after: int) -> tuple[int, str] | None:
        """Return the number of the last line of a page of a task's log, and the page; None while it is not ready."""
        request = self._sdk.ShowTrainingJobLogsFromAomRequest(
            training_job_id=job, task_id=task, base_line=str(after), lines=MOST_LINES, order="asc"
        )
        found = self._call(self._client.show_training_job_logs_from_aom, request)
        return (int(found.get("end_line") or after), str(found.get("content") or "")) if found else None

    def last_lines(self, job: str, task: str) -> list[str]:
        """Return the newest lines of a task's log, in whichever order the service has them."""
        request = self._sdk.ShowTrainingJobLogsFromAomRequest(
            training_job_id=job, task_id=task, lines=_LAST_LINES, order="desc"
        )
        found = self._call(self._client.show_training_job_logs_from_aom, request)
        return str(found.get("content") or "").split("\n")

    def log_preview(self, job: str, task: str) -> tuple[str, int] | None:
        """Return the newest part of a task's log, at most 5 MB, and the size of the whole in bytes; None while there
        is none."""
        request = self._sdk.ShowTrainingJobLogsPreviewRequest(training_job_id=job, task_id=task)
        found = self._call(self._client.show_training_job_logs_preview, request)
        content = str(found.get("content") or "")
        return (content, int(found.get("full_size") or len(content.encode()))) if content else None

    def events(self, job: str) -> Iterator[dict[str, Any]]:
        """Yield what the service noted of a job, the oldest first."""
        offset = 0
        while True:
            request = self._sdk.ListTrainingJobEventsRequest(
                training_job_id=job, offset=offset, limit=_MOST_A_PAGE, order="asc"
            )
            found = self._call(self._client.list_training_job_events, request).get("events") or []
            yield from found
            offset += len(found)
            if len(found) < _MOST_A_PAGE:
                return

    def stop(self, job: str) -> None:
        """Ask a job to end."""
        request = self._sdk.StopTrainingJobRequest(training_job_id=job, body={"action_type": "terminate"})
        self._call(self._client.stop_training_job, request)

    def delete(self, job: str) -> None:
        """Remove a job that has ended; that there is none is fine."""
        try:
            self._call(self._client.delete_training_job, self._sdk.DeleteTrainingJobRequest(training_job_id=job))
        except RefusedError as error:
            if error.status != _NOT_FOUND:
                raise

    def flavors(self) -> list[dict[str, Any]]:
        """Return the machine types that training jobs may use."""
        found = self._call(self._client.show_training_job_flavors, self._sdk.ShowTrainingJobFlavorsRequest())
        return list(found.get("flavors") or [])

    def engines(self) -> list[dict[str, Any]]:
        """Return the preset frameworks."""
        found = self._call(self._client.show_training_job_engines, self._sdk.ShowTrainingJobEnginesRequest())
        return list(found.get("items") or [])

    def _call(self, call: Callable[[Any], Any], request: Any) -> dict[str, Any]:
        """Return what a call that may be made twice answers."""
        return self._patiently(lambda: self._once(call, request))

    def _patiently(self, attempt: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        begun, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except BackendError as error:
                is_borne = error.may_pass and self.has_answered
                if not is_borne or time.monotonic() - begun + pause > self.patience:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _once(self, call: Callable[[Any], Any], request: Any) -> dict[str, Any]:
        from huaweicloudsdkcore.exceptions import exceptions
        from requests import RequestException

        try:
            answer = call(request)
        except exceptions.ServiceResponseException as error:
            self.has_answered = True
            text = error.error_msg or error.error_code or "no reason given"
            hint = _HINTS.get(error.status_code, "try again later")
            raise RefusedError(error.status_code, f"ModelArts refuses: {text} ({error.status_code})", hint) from error
        except exceptions.RetryOutageException as error:  # what the SDK makes of a 429
            self.has_answered = True
            raise RefusedError(_TOO_MANY, "ModelArts refuses: too many requests (429)", "try again later") from error
        except (exceptions.SdkException, RequestException) as error:
            where = self.who.endpoint or self.who.region
            text = f"ModelArts at {where} cannot be reached: {str(error)[:300]}"
            raise BackendError(text, "correct backend.region or backend.endpoint", may_pass=True) from error
        self.has_answered = True
        found: dict[str, Any] = json.loads(answer.raw_content) if answer.raw_content else {}
        return found


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
        raise BackendError(f"backend.region: the SDK knows no region {who.region}", f"it knows: {known}") from error


def _silent(client: Any) -> Any:
    """Keep the SDK from writing its own words about an error to our stderr."""
    logging.getLogger(f"HuaweiCloud-SDK-{type(client).__name__}").addHandler(logging.NullHandler())
    return client
