"""The limits that several backends share, checked before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from jobsubmit.common.finding import BUNDLE_LIMIT, Finding
from jobsubmit.common.store_address import REMOTE_SCHEMES

if TYPE_CHECKING:
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.transfer.code_ref import CodeRef

_LONGEST_WORD = 131_072  # bytes of one argument or variable with its end (execve(2), MAX_ARG_STRLEN)
_SHORTEST_SIGNATURE = 330  # characters of a signed address after its path: algorithm, key, date, expiry, signature


def limit_finding(where: str, what: str, number: int, most: int, unit: str, hint: str) -> Finding:
    """Return the error for a number above a limit of the platform."""
    return refused(where, f"{what}: {number:,} {unit}, but the limit is {most:,}", hint)


def refused(where: str, text: str, hint: str) -> Finding:
    """Return the error for something that the platform does not support."""
    return Finding("error", "limit", where, text, hint)


def word_limits(plan: LaunchPlan) -> Iterator[Finding]:
    """Yield the errors for arguments and variables that are too long for Linux."""
    from jobsubmit.plan.processes import build_boot_words

    words = [(value.field, value.text) for value in build_boot_words(plan)]
    words += [("command", word) for word in plan.command or ()]
    words += [(f"env.{name}", f"{name}={value}") for name, value in plan.env]
    hint = "put it in a file of the code directory: Linux starts no process with a longer one"
    for field, word in words:
        yield from _word_limit(field, word, hint)


def secret_limits(values: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the errors for secrets (name → value) that are too long for a variable."""
    for name, value in values.items():
        yield from _word_limit(f"secrets.{name}", f"{name}={value}", "put it in a file that the nodes see")


def _word_limit(field: str, word: str, hint: str) -> Iterator[Finding]:
    size = len(os.fsencode(word)) + 1
    if size > _LONGEST_WORD:
        yield limit_finding(field, "one argument or variable", size, _LONGEST_WORD, "bytes", hint)


def far_data_limits(plan: LaunchPlan, where: str) -> Iterator[Finding]:
    """Yield the errors for data in buckets, which nodes cannot use here; `where` says which folders they see."""
    for mount in plan.mounts:
        if mount.uri.startswith(REMOTE_SCHEMES):
            text = f"{mount.uri} is in a bucket, which a {plan.backend.kind} job cannot use"
            hint = f"set it to a folder that all nodes see, {where}"
            if mount.kind == "input":
                hint = f"copy it (jobsubmit download) to a folder that all nodes see: {where}"
            elif mount.kind == "output":
                hint += f"; after the job, copy that to the bucket: jobsubmit upload FOLDER {mount.uri}"
            yield refused(mount.field, text if mount.name == mount.field else f"{mount.name}: {text}", hint)


def order_limit(bundle: Bundle | None, code: CodeRef, most: int) -> Iterator[Finding]:
    """Yield the error for more files than nodes can fetch one by one."""
    if bundle is None or code.layout == "archive":
        return
    address = len(code.uri) + (_SHORTEST_SIGNATURE if code.uri.startswith(REMOTE_SCHEMES) else 0)
    size = sum(2 * len(file.path) + address for file in bundle.files)
    if size > most:
        what = f"the addresses of {len(bundle.files):,} files: {size:,} characters, but the limit is {most:,}"
        yield Finding("error", BUNDLE_LIMIT, "layout", what, "use layout: archive: nodes then fetch one file")
