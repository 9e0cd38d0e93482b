"""Pipes of data, as in torchdata, of which one divides the data among the processes only if it is asked to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import own_method, unparsed
from jobsubmit.common.finding import Finding

_DIVIDES = re.compile(r"apply_sharding|\brank\b|world_size|num_replicas")


def check_pipes(code: Code) -> Iterator[Finding]:
    """Yield a warning for a pipe that leaves its data whole, since nothing asks it to divide it.

    WeNet's: `@functional_datapipe("shard") class ShardDataPipe: def __init__(self, source, partition=False)`.
    """
    for module, node in code.program.of(ast.ClassDef) if code.is_parallel else ():
        method, option, position = _pipe_of(node)
        if not option:
            continue
        for home, call, _ in code.reached.calls:
            is_pipe = isinstance(call.func, ast.Attribute) and call.func.attr == method and home.path == module.path
            if is_pipe and argument(call, option, position) is None and not hides_arguments(call):
                yield Finding(
                    "warning",
                    "no-sampler",
                    home.where(call),
                    f"{method}() does not get {option}, which is False by default: each process reads all of the data",
                    f"pass it: {method}({option}=True)",
                )
                return


def _pipe_of(node: ast.ClassDef) -> tuple[str, str, int]:
    """Return the method that a class stands behind, its argument that has it divide the data, and its position."""
    maker = own_method(node, "__init__")
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=function, args=[ast.Constant(value=str(method))]):
                if maker is not None and unparsed(function).endswith("functional_datapipe"):
                    options = dict(_off_by_default(maker))
                    asked = next((name for name in options if _is_asked_for(node, name)), "")
                    return method, asked, options.get(asked, 0)
    return "", "", 0


def _off_by_default(maker: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, int]]:
    """Yield the parameters that are False by default, with their positions in a call: it gives no self, no source."""
    names = [one.arg for one in maker.args.args]
    for name, default in zip(reversed(names), reversed(maker.args.defaults), strict=False):
        if isinstance(default, ast.Constant) and default.value is False:
            yield name, names.index(name) - 2


def _is_asked_for(node: ast.ClassDef, name: str) -> bool:
    """Return whether a class divides the data only if a field, or a variable, of a name is true."""
    tests = (one for one in ast.walk(node) if isinstance(one, ast.If) and unparsed(one.test) in (name, f"self.{name}"))
    return any(_DIVIDES.search("\n".join(map(unparsed, one.body))) for one in tests)
