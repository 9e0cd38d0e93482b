"""Connect to the hosts of a job while it is still read and checked. This comes first, and loads little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsubmit.agent.job_directory import USUAL_ROOT
from jobsubmit.backends.ssh.connection import ask_ahead
from jobsubmit.backends.ssh.host_name import MOST_HOSTS, is_host

FACTS = "facts"  # the command of the agent


def connect(fields: Mapping[str, Any]) -> None:
    """Log in on all hosts, and ask for their facts (see BackendSpec.connects_by)."""
    hosts, root = fields.get("hosts"), fields.get("workdir", USUAL_ROOT)
    python, interface = fields.get("python"), fields.get("interface")
    texts = (root, python or "", interface or "")
    if isinstance(hosts, (list, tuple)) and all(isinstance(text, str) for text in (*hosts, *texts)):
        names = list(dict.fromkeys(filter(is_host, hosts)))[:MOST_HOSTS]
        ask_ahead(names, root, FACTS, question_of(python, interface))


def question_of(python: str | None, interface: str | None) -> dict[str, Any]:
    """Return the question for the facts of a host, for a job with these fields of `backend`."""
    return {"python": python, "interface": interface}
