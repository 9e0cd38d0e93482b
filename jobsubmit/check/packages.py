"""Compare the third-party packages that the code imports with those that the nodes have or install."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from jobsubmit.bundle.model import Bundle
from jobsubmit.check.code import Code
from jobsubmit.check.collectives.rank_conditions import holds_on_rank_zero
from jobsubmit.check.imports import ImportSearch, is_in_branch, may_fail
from jobsubmit.check.program.calls import Reach
from jobsubmit.check.program.configuration import read_text
from jobsubmit.check.program.module import FUNCTIONS, Module, unparsed
from jobsubmit.check.program.reading import INSTALLED_FROM, find_module
from jobsubmit.common.finding import Finding, Level
from jobsubmit.plan.launch_plan import LaunchPlan

FindMissing: TypeAlias = Callable[[Collection[str]], set[str]]
_INSTALLS = re.compile(r"\binstall\b([^\n;&|]*)")
_OF_FILES = re.compile(r"(?:-r|--requirement)[ =](?:\./)?(\S+)")
_BUILDS = re.compile(r"setup\.py\s+(?:install|develop|build)|pip3? install\s[^\n;&|]*(?:\.(?:\s|$|/)|/)")
_MOST_BUILDERS = 20
_REQUIREMENTS, _PROJECT = "requirements.txt", "pyproject.toml"
# Modules whose package has another name.
_OTHER_NAMES = {
    **{"PIL": "pillow", "cv2": "opencv_python", "sklearn": "scikit_learn", "yaml": "pyyaml", "skimage": "scikit_image"},
    **{
        "OpenSSL": "pyopenssl",
        "attr": "attrs",
        "bs4": "beautifulsoup4",
        "dateutil": "python_dateutil",
        "git": "gitpython",
    },
    **{"google": "protobuf", "hydra": "hydra_core", "tensorboardX": "tensorboardx", "Crypto": "pycryptodome"},
    **{"skvideo": "video", "dotenv": "python_dotenv", "pywt": "pywavelets", "Bio": "biopython", "tree": "dm_tree"},
    **{"umap": "umap_learn", "imblearn": "imbalanced_learn", "Levenshtein": "python_levenshtein", "zmq": "pyzmq"},
    **{"pycocotools": "cocoapi", "lvis": "lvis_api"},
    **{"pytorch_lightning": "pytorch_lightning", "pl_bolts": "lightning_bolts", "apex": "apex", "decord": "decord"},
}
# What parts of libraries need of other packages.
_NEEDED_BY_PARTS = {
    "torch.utils.tensorboard.": "tensorboard",
    "lightning.pytorch.cli.": "jsonargparse",
    "pytorch_lightning.cli.": "jsonargparse",
}
# Packages whose names resemble that of a module, and that do not have it.
_FALSE_FRIENDS = {"rouge_score": {"rouge"}, "tensorboardX": {"tensorboard"}, "sklearn_extra": {"scikit_learn"}}
_OF_HUB = ("transformers", "diffusers", "accelerate", "datasets", "peft", "timm", "trl", "evaluate", "open_clip_torch")
_OF_LIGHTNING = ("lightning", "pytorch_lightning")
# Modules that come with some packages, and with nothing that every node for PyTorch has.
_BROUGHT_BY = {
    "rich": ("typer", "lightning", "pytorch_lightning", "wandb", "hydra_core"),
    "pytz": ("pandas",),
    "dateutil": ("pandas", "matplotlib"),
    "pyarrow": ("datasets", "pandas"),
    "scipy": (
        *("scikit_learn", "scikit_image", "librosa", "statsmodels", "torchdiffeq", "torch_geometric", "monai", "lpips"),
        *(
            "pytorch_fid",
            "torch_fidelity",
            "clean_fid",
            "torchmetrics",
            "xgboost",
            "open3d",
            "albumentations",
            "mir_eval",
        ),
    ),
    "sklearn": ("librosa", "umap_learn", "imbalanced_learn", "torch_geometric", "open3d", "sentence_transformers"),
    "pandas": ("datasets", "seaborn", "statsmodels", "ogb", "plotly", "xarray", "open3d", "ultralytics", "evaluate"),
    "matplotlib": ("seaborn", "pycocotools", "scikit_plot", "open3d", "ultralytics", "pyquaternion", "nuscenes_devkit"),
    "numba": ("librosa", "umap_learn", "resampy", "openai_whisper"),
    "torchmetrics": ("lightning", "pytorch_lightning"),
    "joblib": ("scikit_learn", "librosa", "sacremoses"),
    "jsonargparse": tuple(
        f"{package}[{extra}]"
        for package in ("lightning", "pytorch_lightning")
        for extra in ("extra", "pytorch_extra", "all", "pytorch_all", "cli")
    ),
    "accelerate": ("transformers[torch]", "transformers[accelerate]", "transformers[all]"),
    "sentencepiece": ("transformers[sentencepiece]", "transformers[all]"),
    "soundfile": ("datasets[audio]", "transformers[audio]"),
    "librosa": ("datasets[audio]", "transformers[audio]"),
    "huggingface_hub": (*_OF_HUB, "tokenizers"),
    "tokenizers": ("transformers", "sentence_transformers", "trl"),
    "safetensors": ("transformers", "diffusers", "accelerate", "peft", "timm", "trl"),
    "yaml": (*_OF_HUB, *_OF_LIGHTNING, "huggingface_hub", "wandb", "omegaconf", "hydra_core"),
    "tqdm": (*_OF_HUB, *_OF_LIGHTNING, "huggingface_hub", "nltk", "openai_whisper", "ultralytics"),
    "requests": ("transformers", "diffusers", "datasets", "evaluate", "huggingface_hub", "wandb", "torchtext"),
    "packaging": (*_OF_HUB, *_OF_LIGHTNING, "huggingface_hub", "wandb", "matplotlib", "hydra_core"),
    "fsspec": ("datasets", *_OF_LIGHTNING, "huggingface_hub"),
    "filelock": (*_OF_HUB, "huggingface_hub"),
    "regex": ("transformers", "diffusers", "nltk", "tiktoken", "open_clip_torch"),
    "psutil": ("accelerate", "peft", "deepspeed", "ultralytics"),
    "omegaconf": ("hydra_core",),
    "PIL": ("torchvision", "matplotlib", "diffusers", "scikit_image", "imageio", "ultralytics"),
    "lightning_utilities": (*_OF_LIGHTNING, "torchmetrics"),
    **dict.fromkeys(("dill", "multiprocess", "xxhash", "aiohttp"), ("datasets", "evaluate")),
}
_IN_OTHER_NAMES = frozenset(["torch", "numpy", "tensorflow"])  # torch is no package of torch_fidelity
# Modules that come with other packages, or are part of what a node has for PyTorch.
_COME_ALONG = frozenset(
    [
        *("torch", "torchvision", "torchaudio", "torchtext", "torchdata", "triton", "apex", "transformer_engine"),
        *("flash_attn", "torch_npu", "torch_xla", "pynvml", "mpi4py", "horovod", "cupy", "nvidia"),
        *("numpy", "PIL", "networkx", "sympy"),
        *("yaml", "tqdm", "requests", "packaging", "filelock", "fsspec", "regex", "psutil", "click", "six"),
        *("tokenizers", "huggingface_hub", "safetensors", "omegaconf", "lightning_utilities"),
        *("jinja2", "typing_extensions", "setuptools", "pkg_resources", "google", "grpc", "attr"),
        *("soundfile", "dill", "multiprocess", "aiohttp", "urllib3", "certifi", "markdown", "werkzeug", "pydantic"),
    ]
)


def check_packages(code: Code, bundle: Bundle, job: LaunchPlan, find_missing: FindMissing | None) -> Iterator[Finding]:
    """Yield an error for each third-party package that is surely imported and that the nodes' Python lacks.

    For one that a function imports which is perhaps called, yield a warning. Where that Python is not known, yield a
    warning for one that the requirements do not name, if they name others. What the `setup` installs is not missing.
    """
    search, requirements = ImportSearch(code, bundle), job.requirements
    first = installed_by_job(bundle, job)
    places = _imported(code, search, find_missing)
    sure = places[Reach.SURELY]
    if find_missing is None:
        named = {**places[Reach.PERHAPS], **sure}
        own = {top: where for top, where in named.items() if top not in _COME_ALONG}
        if _configures_deepspeed(code):
            own["deepspeed"] = "hyperparameters"
        if requirements is not None and not search.has_more_places:
            yield from _not_named(first, own, sure, requirements)
            yield from _none_named(first, _alternatives(code, search, Reach.PERHAPS), sure, requirements)
        return
    all_places = {**places[Reach.PERHAPS], **sure}
    choices = list(_alternatives(code, search, Reach.SURELY))
    asked = {*all_places, *(top for one in choices for top in (*one.first, *one.second))}
    missing = set() if search.has_more_places else {top for top in find_missing(asked) if not first.has(top)}
    beside = None if requirements is not None else _installed_by(bundle, _REQUIREMENTS, "")
    for choice in choices:
        one, other = (sorted((tops & missing) - sure.keys()) for tops in (choice.first, choice.second))
        if one and other:
            text = f"the nodes' Python has neither the module {one[0]} nor {other[0]}"
            hint = _how_to_get(other[0], bundle, beside)
            yield Finding("error", "packages", choice.where, text, hint)
    grouped: dict[tuple[Level, str], list[str]] = {}
    for top in sorted(missing & all_places.keys()):
        level: Level = "error" if top in sure else "warning"
        if folder := _folder_beside(search, top):
            yield _not_searched(top, folder, level, all_places[top])
        else:
            grouped.setdefault((level, _how_to_get(top, bundle, beside)), []).append(top)
    for (level, hint), tops in grouped.items():
        yield Finding(level, "packages", all_places[tops[0]], _lacking(tops, all_places), hint)


def _imported(code: Code, search: ImportSearch, find_missing: FindMissing | None) -> dict[Reach, dict[str, str]]:
    """Return the packages that are surely imported and those that perhaps are, each with its first place."""
    configured = _modules_configured(code)
    places: dict[Reach, dict[str, str]] = {Reach.SURELY: {}, Reach.PERHAPS: {}}
    for module in code.program.modules.values():
        for node in module.of(ast.Import, ast.ImportFrom):
            reach = code.reached.of(node, module)
            if not reach and (find_missing is not None or module.name not in configured):
                continue
            is_chosen = reach is not Reach.SURELY and (
                (is_in_branch(node, module) and not _is_for_first(code, node, module))
                or search.is_imported_by_choice(node, module)
            )
            if is_chosen or may_fail(node, module) or code.is_of_no_object(node, module):
                reach = Reach.NEVER
            elif module.name in configured and module.function_of(node) is None and find_missing is None:
                reach = Reach.SURELY
            tops = search.packages(node) if find_missing is None else _tops(node, search)
            for top in tops if reach else ():
                places[reach].setdefault(top, module.where(node))
    return places


def _is_for_first(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether the first process comes to a node in its function: no condition asks for more than the rank."""
    inner = node
    for above in itertools.takewhile(lambda one: not isinstance(one, FUNCTIONS), module.above(node)):
        if isinstance(above, ast.If) and not (inner in above.body and holds_on_rank_zero(code, above.test, module)):
            return False
        if isinstance(above, (ast.Try, ast.While, ast.For)):
            return False
        inner = above
    return True


def _not_searched(top: str, folder: str, level: Level, where: str) -> Finding:
    """Return that a module is in a folder of the code where Python does not look for it."""
    place = "the code directory itself" if folder == "." else folder
    text = f"Python does not find the module {top}: it looks in the boot file's folder, and not in {place}"
    hint = f"add `-e PYTHONPATH={folder}`, or in the job file env: {{PYTHONPATH: {folder}}}"
    return Finding(level, "packages", where, text, hint)


def _lacking(tops: Sequence[str], places: Mapping[str, str]) -> str:
    """Return that the nodes' Python has none of some modules, with the places of all but the first."""
    if len(tops) == 1:
        return f"the nodes' Python has no module {tops[0]}"
    others = ", ".join(f"{top} ({places[top]})" for top in tops[1:])
    return f"the nodes' Python has no module {tops[0]}, nor {others}"


@dataclass(frozen=True)
class _Alternatives:
    """Packages of which the second are imported if the first are missing: `try: import a`, `except …: import b`."""

    first: frozenset[str]
    second: frozenset[str]
    where: str


def _alternatives(code: Code, search: ImportSearch, least: Reach) -> Iterator[_Alternatives]:
    for module, statement in code.program.of(ast.Try):
        if may_fail(statement, module) or is_in_branch(statement, module) or code.reached.of(statement, module) < least:
            continue
        first = [node for node in statement.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        second = [
            node
            for handler in statement.handlers
            if handler.type is None or "Error" in unparsed(handler.type) or "Exception" in unparsed(handler.type)
            for node in handler.body
            if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        if first and second:
            tops = [frozenset(top for one in nodes for top in _tops(one, search)) for nodes in (first, second)]
            yield _Alternatives(tops[0], tops[1], module.where(second[0]))


def _tops(node: ast.Import | ast.ImportFrom, search: ImportSearch) -> list[str]:
    """Return the packages that an import needs, also those that a part of torch imports at once."""
    return [*search.packages(node), *_needed_by(node)]


def _how_to_get(top: str, bundle: Bundle, beside: Installed | None) -> str:
    """Return how the nodes get a module; `beside` is what requirements.txt would install, if the job names none."""
    if top == "apex":
        return (
            "remove the import if torch.amp does what the code needs; NVIDIA's apex is built from its source, and the "
            "package named apex in the registry is another one"
        )
    if top == "pkg_resources":
        return "install setuptools<81, which still has it, or use importlib.metadata and importlib.resources"
    if beside is not None and _OTHER_NAMES.get(top, top).lower() in beside.names:
        return (
            f"{_REQUIREMENTS} names its package: add `--set requirements={_REQUIREMENTS}`, or "
            f"requirements: {_REQUIREMENTS} to the job file, and each node installs it"
        )
    if top == bundle.root.name and any("/" not in file.path and file.path.endswith(".py") for file in bundle.files):
        return (
            f"{top} is the name of this folder: set code_dir to the folder above it, put {top}/ before boot_file, and "
            "add `env: {PYTHONPATH: .}`"
        )
    if (project := _project_with(bundle, top)) is not None:
        folder = project.rpartition("/")[0] or "."
        return (
            f"{project} names its package: install the project for that Python (pip install {folder}), or name the "
            "package in a `requirements` file, which each node installs"
        )
    return (
        "put a module of your own into code_dir; name a package in a `requirements` file, which each node installs, or "
        "install it for that Python (it may have another name than its module: opencv-python)"
    )


def _project_with(bundle: Bundle, top: str) -> str | None:
    """Return the pyproject.toml that names the package of a module among what it depends on, if one does."""
    names = {top.lower(), _OTHER_NAMES.get(top, top).lower()}
    for file in bundle.files:
        if file.path.rpartition("/")[2] == _PROJECT:
            words = re.findall(r"""["']([\w.-]+)""", Path(file.source).read_text(errors="replace").lower())
            if not names.isdisjoint(word.replace("-", "_") for word in words):
                return file.path
    return None


def _folder_beside(search: ImportSearch, top: str) -> str:
    """Return the folder of the code that has a module which Python does not find there; empty if there is none."""
    program = search.program
    if not any(name.partition(".")[0] == top for name in program.unread):
        return ""
    places = (root for root in INSTALLED_FROM if find_module(top, (root,), program.paths))
    folders = (root for root in INSTALLED_FROM if f"{root}{top}" in search.folders)
    found = next(itertools.chain(places, folders), None)
    return "" if found is None else found.rstrip("/") or "."


def _needed_by(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules of other packages that a part of torch imports at once."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{name}" for name in names]
    return [needed for part, needed in _NEEDED_BY_PARTS.items() if any(f"{name}.".startswith(part) for name in names)]


def _modules_configured(code: Code) -> frozenset[str]:
    """Return the modules whose classes a configuration names that an argument names: `target: ldm.models.Diffusion`."""
    words = {word for argument in code.facts.argv for word in (argument, argument.partition("=")[2])}
    files = [path for path in code.program.configurations if words & {path, f"./{path}"}]
    texts = "\n".join(read_text(code.program, path) for path in files)
    named = set(re.findall(r"(?<!\w)[A-Za-z_]\w*(?:\.\w+)+", texts))
    return frozenset(name.rpartition(".")[0] for name in named) & code.program.modules.keys()


def _configures_deepspeed(code: Code) -> bool:
    """Return whether an argument hands a configuration of DeepSpeed to transformers, which then imports it."""
    given = code.values.arguments.get("deepspeed")
    return isinstance(given, str) and given.endswith(".json") and code.program.imports("transformers")


def _not_named(
    first: Installed, wanted: Mapping[str, str], places: Mapping[str, str], requirements: str
) -> Iterator[Finding]:
    """Yield a warning for what is wanted and not installed by requirements that name another of the places."""
    for top in sorted(top for top in wanted if not first.has(top)) if any(map(first.has, places)) else ():
        yield Finding(
            "warning",
            "packages",
            wanted[top],
            f"{requirements} does not name a package for module {top}",
            "add its package, unless the nodes' Python has it already",
        )


def _none_named(
    first: Installed, choices: Iterable[_Alternatives], places: Mapping[str, str], requirements: str
) -> Iterator[Finding]:
    """Yield a warning for two packages, of which one is imported, that requirements do not install."""
    for choice in choices if any(map(first.has, places)) else ():
        wanted = [sorted(tops - places.keys() - set(_COME_ALONG)) for tops in (choice.first, choice.second)]
        if all(wanted) and not any(first.has(top) for tops in wanted for top in tops):
            yield Finding(
                "warning",
                "packages",
                choice.where,
                f"{requirements} names a package neither for module {wanted[0][0]} nor for {wanted[1][0]}",
                "add the package of one of them, unless the nodes' Python has it already",
            )


@dataclass(frozen=True)
class Installed:
    """What a job installs before it starts: the packages that its requirements name, and words of its `setup`.

    If it `is_open`, the requirements name other files. `built` is the text of the `setup.py` files that it executes,
    and `folders` are the last parts of the paths that it installs packages from. `versions` are what plain lines of the
    requirements ask for, and `extras` what they ask for beyond the packages themselves.
    """

    names: frozenset[str]
    words: frozenset[str]
    is_open: bool
    built: str = ""
    folders: frozenset[str] = frozenset()
    versions: Mapping[str, SpecifierSet] = field(default_factory=dict)
    extras: frozenset[str] = frozenset()

    def may_replace(self, top: str, version: str) -> bool:
        """Return whether another version of a module's package may be installed than the one that is there.

        pip keeps what fits; but an upper limit of another package may bring one that wants another version.
        """
        own = top.lower()
        wanted = self.versions.get(own)
        has_limits = any("=" in str(one).replace(">=", "") or "<" in str(one) for one in self.versions.values())
        is_kept = wanted is not None and bool(version) and wanted.contains(version, prereleases=True)
        is_plain = self.versions.keys() == self.names and not (self.is_open or has_limits or own in self.words)
        return self.has(top) and not (is_kept and is_plain)

    def has(self, top: str) -> bool:
        """Return whether a package of this name, or one whose name is not its module's, may be installed."""
        other = _OTHER_NAMES.get(top, top)
        if self.is_open or {top, other} & self.words or re.search(rf"['\"]{re.escape(top)}\b", self.built):
            return True
        brought = not (self.names | self.extras).isdisjoint(_BROUGHT_BY.get(top, ()))
        if brought or any(one in top.lower() for one in self.folders):
            return True
        names = self.names - _FALSE_FRIENDS.get(top, set())
        own = {top.lower(), other.lower()}
        is_named = any(one in name or name in one.split("_") for one in own for name in names - _IN_OTHER_NAMES)
        return is_named or any(_is_short_for(top.lower(), name) for name in names)


def installed_by_job(bundle: Bundle, job: LaunchPlan) -> Installed:
    """Return what a job installs before it starts."""
    return _installed_by(bundle, job.requirements, job.setup or "")


def _installed_by(bundle: Bundle, requirements: str | None, setup: str) -> Installed:
    named = {requirements, *_OF_FILES.findall(" ".join(_INSTALLS.findall(setup)))}
    sources = (file.source for file in bundle.files if file.path in named)
    text = "\n".join(Path(source).read_text(errors="replace") for source in sources)
    lines = [line.strip().lower() for line in text.splitlines()]
    words = re.findall(r"(?<!\S)[\w.-]+", " ".join(_INSTALLS.findall(setup)))
    builders = [file.source for file in bundle.files if file.path.rpartition("/")[2] == "setup.py"]
    builders = builders if _BUILDS.search(setup) else []
    return Installed(
        frozenset(map(_package_of, lines)) - {""},
        frozenset(spelling for word in words for spelling in (word, word.replace("-", "_").lower())),
        any(line.startswith(("-r", "-e .", ".")) for line in lines),
        "\n".join(Path(source).read_text(errors="replace") for source in builders[:_MOST_BUILDERS]),
        frozenset(name.lower() for name in re.findall(r"/(\w{5,})(?=\s|$)", " ".join(_INSTALLS.findall(setup)))),
        dict(found for line in lines if (found := _version_of(line)) is not None),
        frozenset(extra for line in lines for extra in _extras_of(line)),
    )


def _version_of(line: str) -> tuple[str, SpecifierSet] | None:
    """Return the package and the versions that a line of requirements asks for; None for a line with more in it."""
    try:
        wanted = Requirement(line.partition("#")[0].strip())
    except InvalidRequirement:
        return None
    return None if wanted.url or wanted.marker else (wanted.name.replace("-", "_"), wanted.specifier)


def _is_short_for(top: str, name: str) -> bool:
    """Return whether a module has parts of a package's name: thinplate of py-thin-plate-spline, or its initials."""
    parts = [part for part in name.split("_") if part]
    initials = "".join(part if part[0].isdigit() else part[0] for part in parts)
    return top in "".join(parts) or top == initials


def _extras_of(line: str) -> list[str]:
    """Return what a line of requirements asks for beyond a package itself: `lightning[pytorch_extra]`."""
    given = re.match(r"([\w.-]+)\[([^\]]*)\]", line)
    extras = re.findall(r"[\w-]+", given[2]) if given else []
    return [f"{given[1]}[{extra}]".replace("-", "_") for extra in extras] if given else []


def _package_of(line: str) -> str:
    """Return the name of the package that a line of requirements names, or whose address it is."""
    if given := re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*@\s", line):
        return given[1].replace("-", "_")
    named = re.search(r"[#&]egg=([\w.-]+)", line)
    address = named or re.search(r"(?:git\+|https?://)\S*?/([\w.-]+?)(?:\.git)?(?:[@#]\S*|/?)(?:\s|$)", line)
    name = address[1] if address else re.split(r"[^a-z0-9_.-]", line.removeprefix("-e "))[0]
    return name.replace("-", "_")
