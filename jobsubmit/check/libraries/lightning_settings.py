"""What Lightning's Trainer is given: by LightningCLI, with files and arguments, or by Hydra's configuration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.configuration import parse_text

TRAINERS = (
    *("lightning.Trainer", "lightning.pytorch.Trainer", "lightning.pytorch.trainer.Trainer"),
    *("lightning.pytorch.trainer.trainer.Trainer", "pytorch_lightning.Trainer", "pytorch_lightning.trainer.Trainer"),
    *("pytorch_lightning.trainer.trainer.Trainer", "lightning.Fabric", "lightning.fabric.Fabric"),
    "lightning_fabric.Fabric",
)


def trainer_composed(code: Code) -> tuple[str, dict[str, Any]] | None:
    """Return what Hydra's configuration calls Lightning's Trainer, and its settings; None if it has none."""
    composed = code.values.composed
    for name, part in composed.values.items() if composed is not None and composed.is_complete else ():
        if isinstance(part, dict) and part.get("_target_") in TRAINERS:
            return name, part
    return None


def settings_of_cli(code: Code, read: Callable[[str], str]) -> dict[str, tuple[object, str]]:
    """Return what LightningCLI gives its Trainer, with the place: its defaults, then files, then arguments."""
    files = files_named(code, (".yaml", ".yml"))
    field = "command" if code.facts.mode == "command" else "args"
    place = files[0] if files else field
    settings: dict[str, tuple[object, str]] = {"num_nodes": (1, place)}
    if code.facts.gpus == 0:
        settings["devices"] = (1, place)  # of CPUs, Lightning takes one
    for module, call, name in code.reached.calls:
        if name.rpartition(".")[2] == "LightningCLI":
            if argument(call, "trainer_class") is not None or hides_arguments(call):
                return {}
            defaults = code.values.of(argument(call, "trainer_defaults"), module)
            given = defaults.items() if isinstance(defaults, dict) else ()
            settings |= {str(key): (value, module.where(call)) for key, value in given}
    for file in files:
        whole = _mapping(read(file))
        for part in (whole, *(one for one in whole.values() if isinstance(one, dict))):  # of a subcommand, perhaps
            trainer = part.get("trainer")
            settings |= {key: (value, file) for key, value in trainer.items()} if isinstance(trainer, dict) else {}
    for before, word in pairwise(("", *code.facts.argv)):
        name, _, value = word.partition("=") if "=" in word else (before, "", word)
        key, read_as = name.removeprefix("--trainer."), int(value) if value.isdecimal() else value
        if key != name and settings.get(key, (None, ""))[0] != read_as:
            settings[key] = (read_as, field)
    return settings


def _mapping(text: str) -> dict[str, object]:
    """Return what a YAML text says, if it is a mapping."""
    found = parse_text(text)
    return found if isinstance(found, dict) else {}


def files_named(code: Code, endings: tuple[str, ...]) -> list[str]:
    """Return the files with these endings that arguments name, alone or after `=`."""
    words = [word.partition("=")[2] or word for word in code.facts.argv]
    return [word for word in words if word.endswith(endings)]
