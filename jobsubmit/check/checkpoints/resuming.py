"""Programs that load a checkpoint only if an option names it, which a restart does not add."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.origins import last_value, words_of
from jobsubmit.check.parsers.accepted import Option
from jobsubmit.check.program.module import spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to
from jobsubmit.common.finding import Finding

_OPTION = re.compile(r"(?:(?!no_|not_|never_|skip_|disable_)\w+_)?resume(?:_from)?(?:_(?:checkpoint|ckpt|path|file))?")
# Names of a checkpoint, with the optimizer in it, or of the weights alone: what is loaded shows which.
_CHECKPOINT = re.compile(r"preload|(?:load_)?(?:checkpoint|ckpt)(?:_(?:path|file|name))?")
_OF_START = re.compile(r"pretrain|teacher|backbone|finetune|init(?:ial)?_(?:ckpt|checkpoint|weight|model)")
_SETTING = re.compile(rf"{_OPTION.pattern}|restart(?:_from)?")
_LOADS = re.compile(
    r"^load$|load_(?:state|check|ckpt|model|weight|snap|from|pretrain|resume)|resume|restore|checkpoint"
)
_FINDS = re.compile(
    r"(?<!drop_)\blast|_last|latest|newest|recent|glob|listdir|scandir|exists|isfile|is_file|snapshot|auto_?resume"
    r"|find_(?:last|check|ckpt|resum)"
)


def not_asked_to_resume(code: Code) -> Iterator[Finding]:
    """Yield a warning where the option that has the code load a checkpoint is not given, and nothing else loads one."""
    is_of_library = code.has_framework and not code.has_only_framework("accelerate")
    if is_of_library or code.program.unread or _finds_checkpoints(code):
        return
    unset = [*options_to_resume(code), *_left_out(code, _CHECKPOINT)]
    for module, node in code.program.of(ast.If, ast.IfExp):
        test = last_value(node.test, module) if isinstance(node.test, ast.Name) else node.test
        asked = [one for one in unset if _asks_for(node.test, one.field) or (test and _asks_for(test, one.field))]
        option = max(asked[0].names, key=len) if asked else ""
        is_entered = code.values.truth(node.test, module) is not False
        if not option and _is_setting_left_out(code, node.test):
            option, is_entered = f"`{unparsed(node.test)}`", False
        is_asked = bool(option)
        if not option and code.values.truth(node.test, module) is False and _names_setting(node.test):
            option, is_entered = f"`{unparsed(node.test)}`", False
        if not option or is_entered or not code.reached.of(node, module):
            continue
        body = node.body if isinstance(node, ast.If) else [node.body]
        calls = (one for part in body for one in walk(part) if isinstance(one, ast.Call))
        is_of_state = any(_CHECKPOINT.fullmatch(word) for word in re.findall(r"\w+", option))
        is_whole = not is_of_state or any("optim" in unparsed(part) for part in body)
        if is_whole and any(_LOADS.search(spelled(one.func).rpartition(".")[2]) for one in calls):
            where = module.where(node)
            text = (
                f"the code loads a checkpoint only if {option} is given ({where}), and it is not: each restart trains "
                "from the beginning"
            )
            if not is_asked:
                text = (
                    f"the code loads a checkpoint only if {option} holds ({where}), and it does not: each restart "
                    "trains from the beginning"
                )
            yield Finding(
                "warning", "no-checkpoint", "restarts", text, "let the code look for its last checkpoint at each start"
            )
            return


def options_to_resume(code: Code) -> list[Option]:
    """Return the options that ask the code to go on from a checkpoint, and that the job does not give."""
    return _left_out(code, _OPTION)


def _left_out(code: Code, form: re.Pattern[str]) -> list[Option]:
    return [one for one in code.options if form.fullmatch(one.field) and _is_left_out(code, one)]


def _names_setting(test: ast.expr) -> bool:
    """Return whether a condition is that a setting which names a checkpoint has a value: `config.preload != ""`."""
    match test:
        case ast.Compare(left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None | "")]):
            return _names_setting(left)
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return bool(_SETTING.fullmatch(name) or _CHECKPOINT.fullmatch(name))
    return False


def _is_setting_left_out(code: Code, test: ast.expr) -> bool:
    """Return whether a condition is a setting that is empty in the code, and that the job's configuration lacks."""
    name = test.attr if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name) else ""
    if not code.settings_given or name in code.settings_given or not _SETTING.fullmatch(name):
        return False
    values = [assigned_to(store, home) for home, store in code.program.attribute_stores.get(name, ())]
    return bool(values) and all(isinstance(one, ast.Constant) and not one.value for one in values)


def _is_left_out(code: Code, option: Option) -> bool:
    """Return whether an option is empty, or if its value is not known, whether the job does not give it."""
    if option.field in code.values.arguments:
        return not code.values.arguments[option.field]
    return not any(word.partition("=")[0] in option.names for word in code.facts.argv)


def _asks_for(test: ast.expr, field: str) -> bool:
    """Return whether a condition is that an option is given, and nothing else."""
    match test:
        case ast.Attribute() | ast.Name():
            return spelled(test).rpartition(".")[2] == field
        case ast.Compare(left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None | "")]):
            return _asks_for(left, field)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=1 | True)]):
            return _asks_for(left, field)
    return False


def _finds_checkpoints(code: Code) -> bool:
    """Return whether the code may look for checkpoints itself, by the words of what it loads and of its conditions."""
    for module, call, name in code.reached.calls:
        last = spelled(call.func).rpartition(".")[2] or name
        if not _LOADS.search(last) or code.passes_by(call, module) or code.is_never_made(call):
            continue
        if _OF_START.search(f"{last} {' '.join(map(unparsed, call.args))}"):
            continue  # the weights that the training begins with
        tests = [unparsed(above.test) for above in module.above(call) if isinstance(above, ast.If)]
        if _FINDS.search(last) or any(map(_FINDS.search, tests)):
            return True
        if any(_FINDS.search(words_of(code, given, module)) for given in call.args[:1]):
            return True
    return False
