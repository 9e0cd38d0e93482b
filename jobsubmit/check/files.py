"""Compare the files that the code or its arguments name with the files that are uploaded."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path, PurePosixPath

from jobsubmit.bundle.ignore import how_to_bring_back, with_all_below
from jobsubmit.bundle.model import Bundle, LeftOut
from jobsubmit.check.arguments import Word
from jobsubmit.check.code import Code
from jobsubmit.check.files_read import (
    ANY,
    IS_CONFIGURATION,
    IS_INPUT,
    IS_OUTPUT,
    READERS,
    file_of,
    is_reading,
    located,
    path_of,
    paths,
    paths_configured,
    paths_read,
)
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import MAIN, Module, unparsed
from jobsubmit.check.program.reading import ADDS_TO_PATH
from jobsubmit.common.finding import Finding

_DATA_SET = re.compile(r"\.datasets\.[A-Z]\w*$|datamodule\.[A-Z]\w*$")
_DATA_SETS = ("torchvision.datasets.", "torchaudio.datasets.")
_GLOBS = frozenset(["glob.glob", "glob.iglob"])
_SEARCHES = frozenset(["glob", "iglob", "rglob"])
_GLOB_METHODS = ("glob", "rglob")
_CONFIGURATION_OPTIONS = (
    "--conf",
    "--config",
    "--cfg",
    "--config_file",
    "--config-file",
    "--config_path",
    "-c",
    "-opt",
    "--deepspeed",
    "--deepspeed_config",
    "--fsdp_config",
)
_OF_CONFIGURATION = re.compile(r"(?:[-_]|^--)(?:config|cfg|conf)(?:[-_](?:file|path))?$")
_CONFIGURATION_FILE = re.compile(r"[\w./-]+\.(?:ya?ml|json|toml)")
_PLACEHOLDER = re.compile(r"[%{*]")
_OPENERS = ("open", "io.open", "codecs.open")
_HISTORY = ".git"  # code that asks for it does without
_PART_OF_NAME = re.compile(r"(?<=[^/*])\*{2,}|\*{2,}(?=[^/*])")  # two unknown parts of one name: no folders
_MOST = 20
_HOW_TO_BRING_IN = (
    "copy it into code_dir and use its new path, or name it in `inputs`; if its path begins at __file__, you can set "
    "code_dir to a folder above it instead"
)
_WRITTEN = re.compile(r"out|save|log|result|cache|dump|ckpt|checkpoint|run|work|epoch|step|model")  # by earlier runs


def check_files(code: Code, bundle: Bundle, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield a warning for each file that is read by a literal name, exists here, and is not uploaded."""
    yield from _outside(code, bundle, words)
    yield from _not_there(code, bundle, words)
    yield from _defaults_not_there(code, bundle, words)
    yield from _empty_by_default(code, words)
    yield from _searched(code, bundle)
    yield from _downloaded_again(code, bundle)
    seen: set[str] = set()
    for where, path_read in paths(code, words):
        for path, left_out in _left_out(code, bundle, path_read):
            if path not in seen and path.partition("/")[0] != _HISTORY:
                seen.add(path)
                text = f"reads {path}, which exists here but is not uploaded: {left_out.reason}"
                wanted = path
                if left_out.path.startswith(f"{path}/") and left_out.path != f"{path}/":
                    text = f"reads the folder {path}, of which nothing is uploaded: {left_out.reason}"
                    wanted = left_out.path
                whole = with_all_below(bundle.root, wanted, left_out)
                yield Finding("warning", "left-out", where, text, how_to_bring_back(whole, left_out))


def _downloaded_again(code: Code, bundle: Bundle) -> Iterator[Finding]:
    """Yield a warning for a data set of torchvision in a folder that is here, and is not uploaded."""
    made = [
        (module, call, _downloads(code, call, module))
        for module, call, name in code.reached.calls
        if name.startswith(_DATA_SETS) and name not in READERS
    ]
    for module, call, downloads in sorted(made, key=lambda one: not one[2]):
        root = argument(call, "root", 0)
        for path, left_out in _left_out(code, bundle, path_of(code, root, module)) if root is not None else ():
            text = f"reads the data in {path}, which exists here but is not uploaded: {left_out.reason}"
            if downloads:
                text = (
                    f"each node downloads the data in {path} again: it exists here but is not uploaded: "
                    f"{left_out.reason}"
                )
            hint = how_to_bring_back(with_all_below(bundle.root, path, left_out), left_out)
            yield Finding("warning", "left-out", module.where(call), text, hint)
            return


def _downloads(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a data set may download its data: the argument is the fifth one of MNIST and CIFAR10."""
    given = argument(call, "download", 4)
    return given is not None and code.values.of(given, module) is not False


def _searched(code: Code, bundle: Bundle) -> Iterator[Finding]:
    """Yield a warning for each literal pattern that files of this machine match, none of which is uploaded."""
    for module, call, name in code.reached.calls:
        pattern = _PART_OF_NAME.sub(ANY, located(code, _pattern(code, call, name, module)))
        if ANY not in pattern or pattern.startswith(("/", "../", "~", ANY)) or _WRITTEN.search(pattern):
            continue
        matches = [match.relative_to(bundle.root).as_posix() for match in islice(bundle.root.glob(pattern), _MOST)]
        left_out = [bundle.left_out_by(match) or bundle.left_out_by(f"{match}/") for match in matches]
        if matches and left_out[0] and all(left_out):
            text = f"searches for {pattern}, and nothing of what is here is uploaded: {left_out[0].reason}"
            yield Finding(
                "warning",
                "left-out",
                module.where(call),
                text,
                how_to_bring_back(matches[0], left_out[0], *matches[1:]),
            )


def _pattern(code: Code, call: ast.Call, name: str, module: Module) -> str:
    """Return the pattern that a call searches files with; empty if it is not known or the call is another one."""
    if name in _GLOBS and call.args:
        return path_of(code, call.args[0], module)
    if isinstance(call.func, ast.Attribute) and call.func.attr in _GLOB_METHODS and len(call.args) == 1:
        inside = "**/" if call.func.attr == "rglob" else ""
        return f"{path_of(code, call.func.value, module)}/{inside}{path_of(code, call.args[0], module)}"
    return ""


def _outside(code: Code, bundle: Bundle, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield a warning for what is used beside the code directory: the nodes have only what is in it."""
    given = [(word.field, word.value) for word in words if word.field]
    inputs = [
        (word.field, word.value)
        for before, word in pairwise((Word("", ""), *words))
        if IS_INPUT.search(name := word.name or before.text) and not IS_OUTPUT.search(name)
    ]
    added = [
        (module.where(call), code.values.of(call.args[-1], module))
        for name in ADDS_TO_PATH
        for module, call in code.calls(name)
        if call.args
    ]
    read = [one for one in paths_read(code) if one[1].strip("./")]  # not `os.listdir("..")`, only a look
    said: set[str] = set()
    in_code = (*_folders_of_data(code), *_set_in_code(code))
    for where, value in (*given, *added, *read, *in_code, *paths_configured(code, words)):
        path = located(code, str(value)) if isinstance(value, (str, PurePosixPath)) else ""
        home = posixpath.dirname(where.partition(":")[0])  # a relative path may be meant from the file's own folder
        if (where, value) in added and not path.strip("./") and _has_packages(code):
            continue  # what would be imported from there is uploaded
        from_home = posixpath.normpath(posixpath.join(home, path))
        is_beside = _is_outside(path) and (_is_outside(from_home) or not (bundle.root / from_home).exists())
        is_known = path in said or "\0" in path or ANY in path
        is_far = path.startswith("../../") and (where, value) in inputs  # a node may have something beside the code
        if is_beside and not is_known and (is_far or (bundle.root / path).exists()):
            said.add(path)
            text = f"uses {path}, which is outside the code directory and is not uploaded"
            yield Finding(
                "warning",
                "left-out",
                where,
                text,
                _HOW_TO_BRING_IN,
            )


def _folders_of_data(code: Code) -> Iterator[tuple[str, str]]:
    """Yield where a data set of a library is made and its folder: `MNIST(FOLDER, download=True)`."""
    for module, call, name in code.reached.calls:
        is_data_set = _DATA_SET.search(name) is not None and name not in READERS
        root = argument(call, "root", 0) if is_data_set else None
        if root is not None and name.partition(".")[0] not in code.program.tops:
            yield module.where(call), path_of(code, root, module)


def _set_in_code(code: Code) -> Iterator[tuple[str, str]]:
    """Yield where a setting of the program is a folder of data beside it: `cfg.DATASETS.PATH = "../data/%s"`."""
    for module, node in code.program.of(ast.Assign):
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if not isinstance(value, str) or not _is_outside(value) or not isinstance(node.targets[0], ast.Attribute):
            continue
        name = unparsed(node.targets[0]).lower()
        is_input = IS_INPUT.search(name) is not None and not IS_OUTPUT.search(name)
        if is_input and node.targets[0].attr in code.names_in_use and code.reached.of(node, module):
            known = _PLACEHOLDER.split(value, maxsplit=1)[0]
            yield module.where(node), value if known == value else known.rpartition("/")[0]


def _has_packages(code: Code) -> bool:
    """Return whether the program imports from a package of its own: a folder in the code directory."""
    return any("." in name and name != MAIN for name in code.program.modules)


def _is_outside(path: str) -> bool:
    return path == ".." or path.startswith("../")


def _not_there(code: Code, bundle: Bundle, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield a warning for a configuration that an argument names, that the code reads, and that is nowhere."""
    given = {word.value: word.field for word in words if word.field}
    named = [("", word.text) for word in words if word.field and _is_configuration(code, word)]
    named += [("", path) for path in _configurations(words) if (bundle.root / located(code, path)).parent.is_dir()]
    named += [("", path) for path in _of_configuration_options(words) if _is_below_folder(code, bundle, path)]
    for _, path_read in (*paths_read(code), *named):
        path = located(code, path_read)
        field = given.get(path_read) or given.get(posixpath.normpath(path_read))
        is_inside = not path.startswith(("/", "../", "~")) and ANY not in path and "\0" not in path
        is_searched = not _SEARCHES.isdisjoint(code.names_in_use)
        is_elsewhere = is_searched and any(file.path.endswith(f"/{path}") for file in bundle.files)
        if (
            field
            and is_inside
            and IS_CONFIGURATION.search(path)
            and not (is_elsewhere or (bundle.root / path).exists())
        ):
            text = f"reads {path}, which does not exist in the code directory"
            start = code.program.folder or "the code directory"
            yield Finding("warning", "not-there", field, text, f"correct the path: it begins in {start}")
            return


def _defaults_not_there(code: Code, bundle: Bundle, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield a warning for a configuration that the code reads by the default of an option, and that is nowhere."""
    given = {word.name for word in words}
    unset = [option for option in code.options if option.names and not given & set(option.names)]
    defaults = {str(option.default): option.names[0] for option in unset if isinstance(option.default, str)}
    for where, path in paths_read(code):
        place_here = located(code, path)
        is_file = _CONFIGURATION_FILE.fullmatch(path) or (
            path.endswith(".py") and _OF_CONFIGURATION.search(defaults.get(path, ""))
        )
        is_inside = path in defaults and is_file and not _is_outside(place_here)
        place = bundle.root / place_here
        if is_inside and not path.startswith("/") and place.parent.is_dir() and not place.exists():
            text = f"reads {place_here}, the default of {defaults[path]}, which does not exist in the code directory"
            yield Finding("warning", "not-there", where, text, f"pass {defaults[path]} with a file that is there")
            return


def _empty_by_default(code: Code, words: Sequence[Word]) -> Iterator[Finding]:
    """Yield an error for a file that the code surely opens by an option which is not given, and empty by default."""
    given = {word.name for word in words}
    unset = {one.field: one for one in code.options if one.default == "" and not given & set(one.names)}
    for module, call, name in code.reached.calls if unset else ():
        path = file_of(call, name) if name in _OPENERS else None
        option = unset.get(path.attr) if isinstance(path, ast.Attribute) else None
        is_sure = code.reached.is_sure(call, module) and is_reading(code, call, name, module)
        if option is not None and path is not None and is_sure and code.values.of(path, module) == "":
            yield Finding(
                "error",
                "not-there",
                module.where(call),
                f"opens the file that {option.names[0]} names, which is not given, and empty by default",
                f"pass {option.names[0]} with a file that is there",
            )
            return


def _is_configuration(code: Code, word: Word) -> bool:
    """Return whether a word is a file for the first positional argument, and that is called a configuration."""
    positional = next((option for option in code.options if option.is_positional), None)
    is_named = positional is not None and positional.names[0] in ("config", "cfg", "config_file", "config_path")
    return is_named and not word.name and "/" in word.text


def _configurations(words: Sequence[Word]) -> Iterator[str]:
    """Yield the configurations that an option such as `--conf` names, or that stand alone, whatever reads them."""
    for before, word in pairwise(words):
        if before.text in _CONFIGURATION_OPTIONS and not word.name:
            yield word.text
    for before, word in pairwise((Word("", ""), *words)):
        if word.field and not word.name and not before.name and _CONFIGURATION_FILE.fullmatch(word.text):
            yield word.text
    yield from (word.value for word in words if word.name in _CONFIGURATION_OPTIONS)


def _of_configuration_options(words: Sequence[Word]) -> Iterator[str]:
    """Yield the configurations that options such as `--unet_config` name."""
    for word in words:
        is_input = _OF_CONFIGURATION.search(word.name) is not None and not IS_OUTPUT.search(word.name)
        if is_input and _CONFIGURATION_FILE.fullmatch(word.value):
            yield word.value


def _is_below_folder(code: Code, bundle: Bundle, path: str) -> bool:
    """Return whether a path begins with a folder of the code directory."""
    folder = located(code, path).partition("/")[0]
    return "/" in path and folder != ".." and (bundle.root / folder).is_dir()


def _left_out(code: Code, bundle: Bundle, path: str) -> Iterator[tuple[str, LeftOut]]:
    """Yield the files that a path may mean, and what leaves them out; each folder may be unknown, a name may not."""
    pattern = _PART_OF_NAME.sub(ANY, located(code, path)) if path else ANY
    name = pattern.rpartition("/")[2]
    if pattern.startswith(("/", "../", "~", ANY)) or ANY in name or name in (".", "..") or "\0" in pattern:
        return
    if ANY not in pattern:
        found = [pattern] if (bundle.root / pattern).exists() else []
    else:
        matches = islice(Path(bundle.root).glob(pattern), _MOST)
        found = [match.relative_to(bundle.root).as_posix() for match in matches]
    for match in found:
        left_out = bundle.left_out_by(match) or bundle.left_out_by(f"{match}/") or _emptied(bundle, match)
        if left_out:
            yield match, left_out


def _emptied(bundle: Bundle, folder: str) -> LeftOut | None:
    """Return what leaves out the first file of a folder, if it has files and none of them is uploaded."""
    inside = f"{folder}/"
    if not (bundle.root / folder).is_dir() or any(file.path.startswith(inside) for file in bundle.files):
        return None
    return next((left for left in bundle.left_out if left.path.startswith(inside) and left.rule), None)
