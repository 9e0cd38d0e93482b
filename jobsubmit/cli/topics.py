"""The command that explains a topic: help."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import typer

from jobsubmit.cli.commands import COMMANDS
from jobsubmit.cli.console import columns, out
from jobsubmit.errors import EXIT_CODES, UsageError, did_you_mean

_WRAPPED = textwrap.TextWrapper(96, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False)


def help_(
    topic: Annotated[
        str | None, typer.Argument(help="A topic, a field of a job file, an exit code or a command.", metavar="TOPIC")
    ] = None,
) -> int:
    """Explain a topic: the job file, exit codes, environment variables, backends.

    Also explains a single field (`jobsubmit help restarts`, `jobsubmit help
    backend.partition`) or a single exit code (`jobsubmit help 101`).
    """
    if topic is None:
        about = {name: about for name, (about, _) in TOPICS.items()}
        if out.json:
            out.document([{"topic": name, "about": text} for name, text in about.items()])
        else:
            out.data(columns([("topic", "what it explains"), *about.items()]))
            out.data(
                "\nAlso explains a field (restarts, backend.partition), an exit code (101) and a command (create)."
            )
        return 0
    if topic in COMMANDS and not out.json:
        from jobsubmit.cli.main import run_command

        return run_command([topic, "--help"])
    lines = list(_explained(topic))
    if not lines:
        from jobsubmit.spec.field_list import field_lists

        known = [*TOPICS, *COMMANDS, *field_lists().get("", {})]
        raise UsageError(
            f"no help for {topic!r}", did_you_mean(topic, known) + "run `jobsubmit help` to list the topics"
        )
    text = "\n".join(lines)
    if out.json:
        out.document({"topic": topic, "text": text})
    else:
        out.data(text)
    return 0


def _explained(topic: str) -> Iterator[str]:
    if topic in TOPICS:
        yield from TOPICS[topic][1]()
    elif topic in _MODES:
        yield from _entries({topic: _MODES[topic]})
    elif topic in COMMANDS:
        yield from (COMMANDS[topic].about, "", *COMMANDS[topic].epilog())
    elif topic.isdecimal() and int(topic) in EXIT_CODES:
        yield f"exit code {topic}: {EXIT_CODES[int(topic)]}"
    else:
        yield from _field(topic)


def _job_file() -> Iterator[str]:
    from jobsubmit.spec.field_list import field_lists

    yield "Required: name, code_dir, and either mode with boot_file, or command. See also: jobsubmit schema"
    for section, fields in field_lists().items():
        if not section.startswith("backend."):
            yield from ("", f"{section}:" if section else "Top level:")
            yield from _entries(fields)


def _field(name: str) -> Iterator[str]:
    from jobsubmit.spec.field_list import field_lists

    lists = field_lists()
    whole = {
        f"{section}.{field}" if section else field: (section, field) for section in lists for field in lists[section]
    }
    names = [name] if name in whole else [known for known in whole if known.endswith(f".{name}")]
    if not names:
        above, _, field = name.rpartition(".")
        names = [known for known in whole if known.startswith(f"{above}.") and known.endswith(f".{field}")]
    for known in names:
        section, field = whole[known]
        yield from _entries({known: lists[section][field]})
    for known in (section for section in lists if section in (*names, name) and section):
        yield from ("", f"{known}:")
        yield from _entries(lists[known])


def _modes() -> Iterator[str]:
    yield "mode: … in the job file, or --mode. Without one, `command` is started as it is."
    yield from _entries(_MODES)
    yield ""
    yield "Preset framework and custom image are terms of ModelArts. The local, ssh and slurm backends need no image:"
    yield "there, the Python of the nodes runs the code."


_MODES = {
    "spawn": "Preset framework (an image of the platform). Each node runs `python boot_file`, which starts its "
    "processes with mp.spawn. The boot file gets --init_method, --world_size and --rank; --world_size and --rank count "
    "nodes, not processes.",
    "launch": "Custom image (yours). Each node runs torch.distributed.launch --use_env. Each process reads RANK, "
    "LOCAL_RANK and WORLD_SIZE; with `local_rank: argument` it gets --local_rank or --local-rank, too.",
    "torchrun": "Custom image (yours). Each node runs torch.distributed.run. Each process reads RANK, LOCAL_RANK and "
    "WORLD_SIZE.",
    "command": "Your own command on each node. It reads NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT.",
}


def _exit_codes() -> Iterator[str]:
    yield from (f"{code:>4}  {meaning}" for code, meaning in EXIT_CODES.items())
    yield from (
        "",
        "With --propagate-exit-code, a failed job gives the code of the process that failed first (128+N: signal N).",
    )


def _environment() -> Iterator[str]:
    from jobsubmit.agent import node_contract as contract

    yield "Read by jobsubmit:"
    yield from _entries(_READ)
    for source, title in (
        (contract.PLATFORM, "Set on every node, as ModelArts and Volcano do:"),
        (contract.SCRIPT, "Set on every node by the start script (not in mode spawn on ModelArts):"),
        (contract.JOBSUBMIT, "Set on every node by jobsubmit (not in mode spawn on ModelArts):"),
        (contract.LAUNCHER, "Set by the launcher for each process (modes launch and torchrun):"),
    ):
        yield from ("", title)
        own = (variable for variable in contract.TABLE if variable.given_by == source and variable.meaning)
        yield from _entries({v: v.meaning for v in own if not v.meaning.startswith("of the agent")})
    yield from ("", "Which process sees which value: jobsubmit render JOB_FILE --expand")


def _backends() -> Iterator[str]:
    from jobsubmit.spec.field_list import field_lists

    yield "backend: {kind: …} in the job file, or --backend KIND."
    for section, fields in field_lists().items():
        if section.startswith("backend."):
            yield from ("", f"{section.partition('.')[2]}:")
            yield from _entries(fields)


def _entries(entries: Mapping[str, str]) -> Iterator[str]:
    for name, about in entries.items():
        yield f"  {name}"
        yield from _WRAPPED.wrap(about)


_READ = {
    "JOBSUBMIT_STATE_DIR": "folder of jobs, logs and caches; default on Linux: ~/.local/state/jobsubmit",
    "JOBSUBMIT_CONFIG": "configuration file with defaults; default on Linux: ~/.config/jobsubmit/config.yaml",
    "JOBSUBMIT_LANG": "language of messages, zh or en; default: the locale (LC_ALL, LC_MESSAGES, LANG)",
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN": "credentials for a bucket, as botocore reads them",
    "AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3": "profile, region and server of a bucket",
    "HUAWEICLOUD_SDK_AK, HUAWEICLOUD_SDK_SK, HUAWEICLOUD_SDK_PROJECT_ID": "credentials and project for ModelArts",
    "JOBSUBMIT_LOG_LIMIT": "maximum size of a log of the local backend, in bytes",
    "AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE, SSL_CERT_FILE": "CA certificates for verifying the server",
    "HTTP_PROXY, HTTPS_PROXY, NO_PROXY": "proxies for all requests",
    "NO_COLOR, COLUMNS": "turns colours off; sets the width of the output",
}
TOPICS: Mapping[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "job-file": ("every field of a job file", _job_file),
    "backends": ("the fields of each backend", _backends),
    "modes": ("how each mode starts training, and where your script finds its rank", _modes),
    "environment": ("variables that jobsubmit reads, and those that a node's processes see", _environment),
    "exit-codes": ("what each exit code means", _exit_codes),
}
