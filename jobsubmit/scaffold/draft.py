"""The draft of a job file, made from something else: code, a command line, a job of ModelArts' own tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobsubmit.spec.loader import Override

NPROC_NOT_SET = "nproc_per_node is not set"
_FIRST = ("name", "mode", "code_dir", "boot_file")


@dataclass(frozen=True)
class JobDraft:
    """The fields of a job file, before they are written.

    `notes` name what was dropped, `reason` explains the boot file and the mode, `others` are other boot files.
    """

    fields: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    reason: str = ""
    others: tuple[str, ...] = ()

    @property
    def started_file(self) -> str:
        """Return the Python file that the boot file or the command names, or nothing."""
        command = self.fields.get("command", "")
        words = command.split() if isinstance(command, str) else map(str, command)
        named = next((word for word in words if word.endswith(".py")), "")
        return str(self.fields.get("boot_file", named)).removeprefix("./")

    def with_changes(self, changes: Sequence[Override]) -> JobDraft:
        """Return the draft with the changes that options such as --nodes and --set make, without notes on these."""
        fields = dict(self.fields)
        for change in changes:
            target = fields
            for name in change.path[:-1]:
                inner = target.get(name)
                target[name] = dict(inner) if isinstance(inner, Mapping) else {}
                target = target[name]
            target[change.path[-1]] = change.value
        is_set = any(change.path == ("resources", "nproc_per_node") for change in changes)
        notes = (note for note in self.notes if not (is_set and note.startswith(NPROC_NOT_SET)))
        return replace(self, fields=fields, notes=tuple(notes))

    def text(self) -> str:
        """Return the job file. Raises SpecError for fields that no job file can have."""
        from jobsubmit.spec.loader import load_mapping
        from jobsubmit.spec.yaml_document import to_yaml

        load_mapping(self.fields)
        first = {name: self.fields[name] for name in _FIRST if name in self.fields}
        return to_yaml({**first, **self.fields})
