"""Arguments for Hydra, which takes NAME=VALUE and refuses a name that its configuration lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobsubmit.check.arguments import Word
from jobsubmit.check.code import Code
from jobsubmit.check.program.hydra import FLAGS
from jobsubmit.common.finding import Finding


def check_overrides(code: Code, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield options, names that the configuration lacks, and values that are not given."""
    composed = code.values.composed
    if composed is None or code.line.kind != "hydra":
        return
    refused = [word for word in words if word.text.startswith("--") and not FLAGS.match(word.text)]
    if code.facts.mode == "spawn" and refused:
        names = ", ".join(word.name for word in refused)
        yield Finding(
            "error",
            "argument-unknown",
            code.program.boot.path,
            f"Hydra takes NAME=VALUE, without dashes: it does not accept {names}, which mode spawn passes",
            "use mode: torchrun with `args`, or a `command:` of your own",
        )
        return
    for word in refused:
        yield Finding(
            "error",
            "argument-unknown",
            word.field,
            f"Hydra does not accept {word.name}: it takes NAME=VALUE, without dashes",
            f"give it in `args`: [{word.text.removeprefix('--')}]",
        )
    if not composed.is_complete:
        return
    fields = {word.text: word.field for word in words}
    for override in composed.refused:
        text = f"{override.name}={override.text}"
        yield Finding(
            "error",
            "argument-unknown",
            fields.get(text, ""),
            f"the configuration has no {override.name}: Hydra refuses to override it",
            f"correct the name, or add the value: +{text}",
        )
    for name in composed.missing:
        yield Finding(
            "warning",
            "argument-missing",
            code.program.boot.path,
            f"{name} must be given: the configuration has `???` for it",
            f"add {name}=… to `args`",
        )
