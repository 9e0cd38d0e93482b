"""Programs that take their arguments two by two, as names and values, and get `--name=value` in one word."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.common.finding import Finding


def check_word_pairs(code: Code) -> Iterator[Finding]:
    """Yield a warning for a word with a name and its value where a loop takes them for two words."""
    for module, loop in code.program.of(ast.For):
        taken = _taken_in_pairs(loop)
        if taken is None or not code.reached.of(loop, module) or '"="' in unparsed(loop) or "'='" in unparsed(loop):
            continue
        names = _words(code, taken, module)[::2]
        together = next((one for one in names if one.startswith("--") and "=" in one), "")
        if together:
            name, _, value = together.partition("=")
            yield Finding(
                "warning",
                "word-pairs",
                module.where(loop),
                f"this loop takes a name from one word and its value from the next one: {together} is one word, and "
                "is taken for a name",
                f"pass it in `args` as two words: {name}, {value}",
            )
            return


def _taken_in_pairs(loop: ast.For) -> ast.expr | None:
    """Return the list that a loop goes through in steps of two: `for i in range(0, len(words), 2)`."""
    match loop.iter:
        case ast.Call(
            func=ast.Name(id="range"),
            args=[ast.Constant(value=0), ast.Call(func=ast.Name(id="len"), args=[taken]), ast.Constant(value=2)],
        ):
            return taken
        case ast.Call(func=ast.Name(id="zip"), args=[ast.Subscript(value=taken, slice=ast.Slice(step=step)), _]):
            return taken if isinstance(step, ast.Constant) and step.value == 2 else None  # noqa: PLR2004 - of pairs
    return None


def _words(code: Code, taken: ast.expr, module: Module) -> list[str]:
    """Return the words of a list of arguments, as far as they are known."""
    value = code.values.of(taken, module)
    is_known = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return value if is_known and {*value} <= {*code.facts.argv} else []
