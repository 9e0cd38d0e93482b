"""Programs that use argparse."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from jobsubmit.check.parsers.accepted import CommandLine, Gap
from jobsubmit.check.parsers.argparse.gaps import gaps
from jobsubmit.check.parsers.argparse.indirect import fields_set_by_name, fills_those_not_given
from jobsubmit.check.parsers.argparse.namespaces import namespaces, supposed_namespaces
from jobsubmit.check.parsers.argparse.options import options
from jobsubmit.check.parsers.argparse.search import LENIENT, STRICT, Search
from jobsubmit.check.parsers.argparse.subcommands import find_commands
from jobsubmit.check.program.calls import default_of, given_for, hides_arguments
from jobsubmit.check.program.module import Function, Module, unparsed
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.values import Values
from jobsubmit.check.program.variables import parameters

_LONGEST_WAY = 8  # from the command line to the parser, through functions and variables


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with argparse accepts; None if it has no parser of that kind."""
    search = Search(program, reached, values)
    if not search.parses and not search.creations:
        return None
    of_argv = [(module, call, how) for module, call, how in search.parses if _is_argv(search, call, module)]
    if not of_argv:
        module, call = search.parses[0][:2] if search.parses else search.creations[0]
        return CommandLine(
            "argparse", gaps=(Gap(module.where(call), "it parses something other than the command line"),)
        )
    sure = [(module, call) for module, call, how in of_argv if how in STRICT and search.reached.is_sure(call, module)]
    module, call = sure[0] if sure else of_argv[0][:2]
    supposed = supposed_namespaces(search)
    line = CommandLine(
        "argparse",
        is_strict=bool(sure),
        drops_rest=all(how in LENIENT and _drops_rest(call, module) for module, call, how in search.parses)
        and not _reads_words_otherwise(program),
        parsed_at=module.where(call),
        is_intermixed=any("intermixed" in how for _, _, how in of_argv),
        gaps=tuple(gaps(search)),
        settings=search.settings(),
        namespaces=namespaces(search, supposed),
        supposed=supposed,
        changed=fields_set_by_name(search, supposed),
        may_fill_none=fills_those_not_given(search),
    )
    if search.subparsers:
        return _with_commands(line, search)
    defaults = search.defaults
    own = (replace(one, default=defaults.get(one.field, one.default)) for one in options(search))
    return replace(line, options=tuple(own))


def _reads_words_otherwise(program: Program) -> bool:
    """Return whether something else may read the words of the command line."""
    names = {node.attr for _, node in program.of(ast.Attribute)}
    imported = {name for module in program.modules.values() for name in module.aliases.values()}
    reads_all = any(name.startswith(("absl", "sys.argv", "fire", "hydra")) for name in imported)
    return (
        reads_all or not names.isdisjoint(("argv", "from_cli")) or any(name.endswith("from_cli") for name in imported)
    )


def _drops_rest(call: ast.Call, module: Module) -> bool:
    """Return whether nothing uses the words that a parser does not know: `args, _ = parser.parse_known_args()`."""
    match module.parents.get(call):
        case ast.Subscript(slice=ast.Constant(value=0)):
            return True
        case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=rest)])]):
            used = (node for node in walk(module.scope_of(call)) if isinstance(node, ast.Name) and node.id == rest)
            is_shared = any(rest in one.names for one in module.of(ast.Global, ast.Nonlocal))
            return not is_shared and not any(isinstance(node.ctx, ast.Load) for node in used)
    return False


def _with_commands(line: CommandLine, search: Search) -> CommandLine:
    """Return a command line with the options and commands of a program that has subcommands."""
    found = find_commands(search)
    own = () if found is None else tuple(options(search, found.adds))
    if found is None or any(option.is_positional for option in own):
        module, call = search.subparsers[0]
        return replace(
            line, gaps=(Gap(module.where(call), "it is unclear which options belong to which subcommand"), *line.gaps)
        )
    commands = {
        name: replace(line, options=tuple(options(search, command.adds)))
        for command in found.commands
        for name in command.names
    }
    return replace(line, options=own, commands=commands, needs_command=found.is_required)


def _is_argv(search: Search, call: ast.Call, module: Module) -> bool:
    """Return whether a call parses the words of the command line, or those that another parser left."""
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "args"), None)
    if given is None or _is_words(search, given, module, _LONGEST_WAY):
        return True
    return isinstance(given, ast.Name) and _is_left_over(given, module)


def _is_words(search: Search, node: ast.AST, module: Module, depth: int) -> bool:
    """Return whether an expression is all words of the command line, or None, which argparse takes for them."""
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.Subscript):
        return unparsed(node) in ("sys.argv[1:]", "argv[1:]")
    if isinstance(node, ast.BoolOp):
        return all(_is_words(search, value, module, depth) for value in node.values)
    if not isinstance(node, ast.Name) or not depth:
        return False
    function = module.function_of(node)
    sources: list[tuple[Module, ast.AST]] = [
        (module, parent.value if isinstance(parent := module.parents.get(store), ast.Assign) else store)
        for store in module.stores.get((function or module.tree, node.id), ())
        if store.lineno < node.lineno
    ]
    if function is not None and node.id in parameters(function):
        sources += _given(search, function, node.id, module)
    return bool(sources) and all(_is_words(search, value, where, depth - 1) for where, value in sources)


def _given(search: Search, function: Function, parameter: str, module: Module) -> Iterator[tuple[Module, ast.AST]]:
    """Return what a parameter may be: what each call gives for it, and its default where one gives nothing."""
    calls = [
        (where, call)
        for where, call in search.program.calls_of.get(f"{module.name}.{function.name}", ())
        if search.reached.of(call, where)
    ]
    default = default_of(function, parameter) or function
    for where, call in calls:
        given = given_for(call, function, parameter)
        yield (where, call) if hides_arguments(call) else (where, given) if given is not None else (module, default)
    if not calls:
        yield module, default


def _is_left_over(name: ast.Name, module: Module) -> bool:
    return any(
        isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in LENIENT
        and any(isinstance(target, ast.Tuple) and unparsed(target.elts[-1]) == name.id for target in node.targets)
        for node in module.of(ast.Assign)
    )
