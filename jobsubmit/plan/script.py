"""LaunchPlan → Script: the one place where a template becomes shell."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel

from jobsubmit.agent import node_contract as contract
from jobsubmit.common.resources import TEMPLATES
from jobsubmit.errors import Problem, SpecError
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.mounts import Mount
from jobsubmit.spec.field_types import ENV_NAME

_ENTRY = "startup.sh.j2"
_CONTRACT = {"port": contract.DEFAULT_PORT, "unset": [str(name) for name in contract.UNSET_BY_SCRIPT]}
_LARGEST_TEMPLATE = 1 << 20  # bytes


@dataclass(frozen=True)
class Script:
    """The start script that every node of a job runs, byte for byte."""

    text: str

    @property
    def data(self) -> bytes:
        """Return the bytes that are shown, stored and executed."""
        return self.text.encode()

    @property
    def sha256(self) -> str:
        """Return the hex digest of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


class _ShellText(str):
    """Mark text that is safe to stand in a shell script."""

    __slots__ = ()


def _sh(value: object) -> _ShellText:
    if isinstance(value, (list, tuple)):
        return _ShellText(shlex.join(str(item) for item in value))
    return _ShellText(shlex.quote(str(value)))


def _var(name: object, complaint: str = "") -> _ShellText:
    if not re.fullmatch(ENV_NAME, str(name)) or not re.fullmatch(r"[\w ;]*", complaint):
        raise jinja2.TemplateRuntimeError(f"{name!r} is not a valid variable name")
    return _ShellText(f'"${{{name}:?{complaint}}}"' if complaint else f'"${{{name}}}"')


def _only_quoted(value: object) -> object:
    if not isinstance(value, _ShellText):
        raise jinja2.TemplateRuntimeError("a value is inserted without the filter `| sh` (or `| var`)")
    return value


class _RefusedFileError(jinja2.TemplateRuntimeError):
    """A template names a file that is not used as one."""


class _Folders(jinja2.FileSystemLoader):
    """Load templates from folders, and nothing that a link there leads out to."""

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        for folder in map(Path, self.searchpath):
            file = folder / template
            if not file.is_file():
                continue
            if not file.resolve().is_relative_to(folder.resolve()):
                raise _RefusedFileError(f"{file} is outside the templates folder {folder}")
            if file.stat().st_size > _LARGEST_TEMPLATE:
                raise _RefusedFileError(f"{file} is larger than {_LARGEST_TEMPLATE:,} bytes")
        return super().get_source(environment, template)


def _plain(value: object) -> object:
    """Return a value as texts, numbers, tuples and mappings: no attribute of it leads to code or to a file."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    fields = _fields(value)
    if fields is not None:
        return {str(name): _plain(each) for name, each in fields.items()}
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def _fields(value: object) -> Mapping[str, object] | None:
    if isinstance(value, Mount):
        return {**value._asdict(), "declaration": value.declaration}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    return value if isinstance(value, Mapping) else None


def render(plan: LaunchPlan) -> Script:
    """Render the start script of a job; raise SpecError if a template of the user is wrong.

    A template may be untrusted: it sees plain values only, and it cannot call into Python or read a file outside its
    folder.
    """
    if plan.templates is not None and not plan.templates.is_dir():
        raise SpecError([Problem("templates", "", f"{plan.templates} is not a folder")])
    folders = [plan.templates, TEMPLATES] if plan.templates else [TEMPLATES]
    return Script(render_document(_ENTRY, folders, job=plan, contract=_CONTRACT))


def render_document(template: str, folders: Sequence[Path] = (TEMPLATES,), **values: object) -> str:
    """Render a template, by default a shipped one; a backend's documents follow the rules of the start script."""
    environment = ImmutableSandboxedEnvironment(
        loader=_Folders(folders),
        undefined=jinja2.StrictUndefined,
        finalize=_only_quoted,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{%#",  # `{#` would be found in ${#array[@]}
        comment_end_string="#%}",
    )
    environment.filters["sh"] = _sh
    environment.filters["var"] = _var
    try:
        return environment.get_template(template).render({name: _plain(value) for name, value in values.items()})
    except jinja2.TemplateSyntaxError as error:
        raise _template_error(f"{error.filename or error.name}:{error.lineno}", str(error.message)) from error
    except jinja2.TemplateNotFound as error:
        hint = "correct the name: it is relative to the templates folder"
        raise _template_error(str(folders[0]), f"template `{error.name}` does not exist", hint) from error
    except _RefusedFileError as error:
        hint = "include a template that is inside the templates folder"
        raise _template_error(_template_line(error.__traceback__), str(error), hint) from error
    except Exception as error:  # whatever an expression of the user's may raise
        raise _template_error(_template_line(error.__traceback__), str(error)) from error


_FILTERS = "add a filter to every value: {{ job.name | sh }} is one quoted word, a list is one word per item"


def _template_error(where: str, text: str, hint: str = _FILTERS) -> SpecError:
    return SpecError([Problem(where, "", text)], hint)


def _template_line(traceback: TracebackType | None) -> str:
    place = _ENTRY
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            place = f"{file}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def build_paste_commands(
    plan: LaunchPlan, script: Script, hosts: Sequence[str], job_id: str, port: int
) -> Iterable[str]:
    """Yield one self-contained command per machine: variables of the node contract, and the script itself.

    Paste each on its machine, in the folder that holds the code directory.
    """
    end = _delimiter(script.text)
    for node_rank in range(len(hosts)):
        environment = {
            contract.HOSTS: ",".join(hosts),
            contract.NODE_COUNT: str(len(hosts)),
            contract.NODE_INDEX: str(node_rank),
            contract.HOST_COUNT: str(len(hosts)),
            contract.JOB_ID: job_id,
            contract.PORT: str(port),
            **dict(plan.env),
        }
        words = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        words += [f'{name}="${{{source}:?set {source} first}}"' for name, source in plan.secrets]
        words.append(f'{contract.JOB_FOLDER}="${{PWD}}"')
        count = ""
        if plan.nproc_per_node is None:
            count = "gpus=$(nvidia-smi --id=0 --query-gpu=count --format=csv,noheader)\n"
            words.append(f'{contract.GPU_COUNT}="${{gpus}}"')
        # Assignments before the command, not arguments of `env`: an argument is seen by every user of the machine.
        yield count + " \\\n".join([*words, f"bash /dev/fd/3 3<<'{end}'"]) + f"\n{script.text}{end}\n"


def _delimiter(text: str) -> str:
    end = "END_OF_SCRIPT"
    while end in text:
        end += "_"
    return end
