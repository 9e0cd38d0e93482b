"""The Kubernetes API: requests with the user's kubeconfig, and errors in words that a user understands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from jobsubmit.agent.retry import PASSING_STATUSES
from jobsubmit.errors import BackendError

_TIMES = (3, 8)  # seconds to connect and to answer, so that a dead server is reported within ten
_PATCH = "application/merge-patch+json"
NOT_FOUND, CONFLICT = 404, 409
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"
COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/{namespace}/commands"
CORE = "/api/v1/namespaces/{namespace}/"
_Query: TypeAlias = Mapping[str, str] | None
_Body: TypeAlias = Mapping[str, Any] | None

_HINTS = {
    401: "log in to the cluster again; check with `kubectl get pods`",
    403: "ask the administrator of the cluster for the Role in docs/backends/volcano.md; `jobsubmit docs` shows where "
    "the documentation is",
    404: "check whether Volcano is installed: `kubectl get crd jobs.batch.volcano.sh`",
}


class RefusedError(BackendError):
    """The server refused a request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, hint: str) -> None:
        super().__init__(message, hint, may_pass=status in PASSING_STATUSES)
        self.status = status


class Kubernetes:
    """A client of the API server of one context (None: the current one of the kubeconfig, or of this pod)."""

    def __init__(self, context: str | None) -> None:
        self._client, self.namespace = _connected(context, os.environ.get("KUBECONFIG"))

    def get(self, path: str, query: _Query = None) -> dict[str, Any]:
        """Return an object, or a list of them. Raises RefusedError, BackendError."""
        return self._json("GET", path, query=query)

    def find(self, path: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""
        try:
            return self.get(path)
        except RefusedError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object; with `dry_run` the server only checks it."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._json("POST", path, query=query, body=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Change some fields of an object."""
        self._json("PATCH", path, body=body, content=_PATCH)

    def delete(self, path: str, body: _Body = None) -> None:
        """Remove an object; do nothing if it does not exist."""
        try:
            self._json("DELETE", path, body=body)
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise

    @contextmanager
    def lines(self, path: str, query: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """Open a response and give its lines as they arrive."""
        response = self._request("GET", path, query, None, "application/json")
        try:
            yield _lines(response)
        finally:
            response.close()
            response.release_conn()

    def _json(
        self, method: str, path: str, *, query: _Query = None, body: _Body = None, content: str = "application/json"
    ) -> dict[str, Any]:
        from urllib3.exceptions import HTTPError

        response = self._request(method, path, query, body, content)
        try:
            found: dict[str, Any] = json.loads(response.data or b"{}")
        except HTTPError as error:
            raise BackendError(
                f"Kubernetes: the connection broke during the response: {error}", _REACH_HINT, may_pass=True
            ) from error
        except ValueError as error:
            raise BackendError(
                "Kubernetes: the response is not JSON (is a proxy answering instead?)", _REACH_HINT
            ) from error
        return found

    def _request(self, method: str, path: str, query: _Query, body: _Body, content: str) -> Any:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return self._client.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=_TIMES,
            )
        except ApiException as error:
            raise _refused(error.status or 0, error.body, error.reason) from error
        except HTTPError as error:
            host = self._client.configuration.host
            reason = str(getattr(error, "reason", None) or error).rpartition(": ")[2]
            text = f"Kubernetes at {host} cannot be reached: {reason}"
            raise BackendError(text, _REACH_HINT, may_pass=True) from error


_REACH_HINT = "check `kubectl cluster-info`, or set backend.context to use another cluster"


@cache
def _connected(context: str | None, kubeconfig: str | None) -> tuple[Any, str]:
    """Return a client and the namespace of a context; the library itself reads the kubeconfig's variable."""
    try:
        from kubernetes import client, config
        from yaml import YAMLError
    except ImportError as error:
        hint = "pip install 'jobsubmit[volcano]'"
        raise BackendError("the client library for Kubernetes is not installed", hint) from error
    try:
        configuration = client.Configuration()
        configuration.retries = 0
        if context is None and kubeconfig is None and not _has_own_kubeconfig():
            config.load_incluster_config(client_configuration=configuration)
            return client.ApiClient(configuration), _POD_NAMESPACE.read_text(encoding="utf-8").strip()
        contexts, active = config.list_kube_config_contexts()
        chosen = next((c for c in contexts if c["name"] == context), None) if context else active
        if chosen is None:
            names = ", ".join(sorted(c["name"] for c in contexts))
            raise BackendError(f"backend.context: there is no context {context}", f"your kubeconfig has: {names}")
        config.load_kube_config(context=chosen["name"], client_configuration=configuration)
        return client.ApiClient(configuration), str(chosen["context"].get("namespace") or "default")
    except (config.ConfigException, OSError, TypeError, KeyError, YAMLError) as error:
        raise BackendError(
            f"cannot load the Kubernetes configuration: {error}", "set KUBECONFIG, or log in to the cluster"
        ) from error


_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _has_own_kubeconfig() -> bool:
    """Return whether the user has one, or we are in no pod."""
    return (Path.home() / ".kube" / "config").exists() or not _POD_NAMESPACE.exists()


def _refused(status: int, body: Any, reason: Any) -> RefusedError:
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or reason)
    with suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["message"]
    hint = _HINTS.get(status, "correct `backend` in the job file")
    if status in PASSING_STATUSES:
        hint = "the cluster is busy or in trouble: run again later, or check `kubectl get --raw /readyz`"
    if status == NOT_FOUND and "namespaces" in text:
        hint = "correct backend.namespace"
    return RefusedError(status, f"Kubernetes refuses the request: {text.strip()[:1000]}", hint)


def _lines(response: Any) -> Iterator[bytes]:
    from urllib3.exceptions import HTTPError

    partial = b""
    try:
        for block in response.stream(1 << 16):
            *whole, partial = (partial + block).split(b"\n")
            yield from whole
    except HTTPError as error:
        raise BackendError(
            f"Kubernetes: the connection broke during the response: {error}", _REACH_HINT, may_pass=True
        ) from error
    if partial:
        yield partial
