"""What the code uses of libraries, and what their installed versions have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, found, with_files

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.installed.libraries import Libraries
from jobsubmit.check.installed.signatures import accepted_names, fields_of
from jobsubmit.check.run import check_code
from jobsubmit.common.finding import Finding
from jobsubmit.config import BUILT_IN
from jobsubmit.plan import launch_plan as planning
from jobsubmit.spec.loader import load_mapping

INSTALLED = {
    "transformers-5.1.0.dist-info/METADATA": "",
    "transformers/__init__.py": """
import sys
from typing import TYPE_CHECKING
from .utils import _LazyModule
if TYPE_CHECKING:
    from .trainer import Trainer as Trainer
    from .training_args import Seq2SeqTrainingArguments, TrainingArguments
else:
    sys.modules[__name__] = _LazyModule(__name__, globals()["__file__"], {})
""",
    "transformers/utils.py": "class _LazyModule:\n    pass\n",
    "transformers/auto.py": "class AutoModel:\n    pass\n",
    "transformers/trainer.py": """
from .utils import requires
@requires(backends=("torch",))
class Trainer:
    def __init__(self, model=None, args=None, processing_class=None):
        pass
    def train(self, resume_from_checkpoint=None, **kwargs):
        pass
""",
    "transformers/training_args.py": """
from dataclasses import dataclass, field
@dataclass
class TrainingArguments:
    output_dir: str | None = field(default=None)
    eval_strategy: str = field(default="no")
    num_train_epochs: float = field(default=3.0)
    local_rank: int = field(default=-1)
    bf16: bool = field(default=False)
    _n_gpu: int = field(init=False, repr=False, default=-1)
@dataclass
class Seq2SeqTrainingArguments(TrainingArguments):
    predict_with_generate: bool = False
""",
    "lib-2.0.dist-info/METADATA": "",
    "lib/__init__.py": """
from .models import *
from .kept import keep as kept
try:
    import fast
except ImportError:
    fast = None
""",
    "lib/models.py": """
class Base:
    def __init__(self, width, *, bias=True):
        pass
class Net(Base):
    pass
class Open(Base):
    def __init__(self, width, **kwargs):
        pass
class Made(metaclass=type):
    def __init__(self):
        pass
def build(name, pretrained=False):
    pass
@renamed_arguments(old="new")
def changed(new):
    pass
class Named(UnknownBase):
    pass
""",
    "lib/kinds.py": """
import enum
class Kind(str, enum.Enum):
    CPU = "cpu"
    GPU = "gpu"
    def show(self):
        return self.value
def mel(*, rate, size=3):
    pass
class Made:
    def __init__(self, width, *, depth=2):
        pass
""",
    "lib/kept.py": "def keep(value):\n    pass\n",
    "lib/made.py": "def __getattr__(name):\n    return None\n",
    "lib/fast.cpython-311-x86_64-linux-gnu.so": "",
    "lib/deep/__init__.py": "",
    "unknown/__init__.py": "",
}


@pytest.fixture
def libraries(tmp_path: Path) -> Libraries:
    with_files(tmp_path / "site", INSTALLED)
    return Libraries(lambda top: tmp_path / "site" / top if (tmp_path / "site" / top).is_dir() else None)


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("lib.Net", {"self", "width", "bias"}),
        ("lib.models.Net", {"self", "width", "bias"}),
        ("lib.build", {"name", "pretrained"}),
        ("lib.kept", {"value"}),
        ("transformers.Trainer", {"self", "model", "args", "processing_class"}),
        *((f"lib.{name}", None) for name in ("Open", "Made", "changed", "Named", "fast", "unknown", "deep")),
        ("other.Net", None),
    ],
)
def test_the_arguments_that_an_installed_function_accepts(
    name: str, accepted: set[str] | None, libraries: Libraries
) -> None:
    assert accepted_names(name, libraries) == accepted


def test_the_fields_of_a_dataclass_come_with_those_above_it(libraries: Libraries) -> None:
    fields = fields_of("transformers.Seq2SeqTrainingArguments", libraries)
    assert fields is not None
    assert next(iter(fields)) == "output_dir"
    assert {"eval_strategy", "predict_with_generate"} < set(fields)
    assert "_n_gpu" not in fields


def test_what_a_library_does_not_have(libraries: Libraries) -> None:
    names = ("lib.Net", "lib.deep", "lib.fast", "lib.made.anything", "transformers.AutoModel", "other.x", "lib.kept.x")
    assert [name for name in (*names, "lib.gone", "transformers.AdamW") if libraries.lacks(name)] == [
        *("lib.kept.x", "lib.gone", "transformers.AdamW")
    ]
    modules = ("lib.models", "lib.deep", "lib.fast", "lib._six", "lib._six.more", "lib.deep.more", "lib", "other.more")
    assert [name for name in modules if libraries.lacks_module(name)] == ["lib._six", "lib._six.more", "lib.deep.more"]


def check(tmp_path: Path, text: str, *, asked: str = "lib==1.0\ntransformers==4.40\n", **fields: Any) -> list[Finding]:
    """Check a program with the libraries above; its file of requirements asks for others."""
    with_files(tmp_path / "site", INSTALLED)
    own = "import os\nif os.environ.get('FAST'):\n    from other import Net\nelse:\n    from lib import Net\n"
    with_files(tmp_path / "code", {"train.py": text, "own.py": own, "requirements.txt": asked})
    spec = {"name": "checked", "mode": "torchrun", "code_dir": str(tmp_path / "code"), "boot_file": "train.py"}
    plan = planning.build_plan(load_mapping(spec | fields).spec, BUILT_IN)

    def find(top: str) -> Path | None:
        folder = tmp_path / "site" / top
        return folder if folder.is_dir() else None

    return list(check_code(plan, scan(tmp_path / "code"), lambda names: set(), find))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("from transformers import AdamW, AutoModel\n", "transformers 5.1.0, which has no transformers.AdamW"),
        ("from lib import Net, gone, also_gone\n", "lib 2.0, which has no lib.gone, also_gone"),
        ("from lib import deep, models\nfrom transformers import auto\n", ""),
        ("try:\n    from fast import Net\nexcept ImportError:\n    from lib import Net\nNet(3, depth=2)\n", ""),
        ("from own import Net\nNet(3, depth=2)\n", ""),
        ("from lib._six import inf\n", "lib 2.0, which has no lib._six"),
        ("import lib.gone.more\n", "lib 2.0, which has no lib.gone.more"),
        ("import lib\nlib.build('x', pretrained=True, progress=False)\n", "build has no argument progress"),
        ("from lib.models import Net\nNet(3, bias=False, depth=2)\n", "Net has no argument depth"),
        (
            "from transformers import TrainingArguments\nTrainingArguments('x', evaluation_strategy='no', no_cuda=1)\n",
            "TrainingArguments has no argument evaluation_strategy, no_cuda",
        ),
        ("import lib\nlib.Open(3, depth=2)\nlib.Net(3, bias=True)\nlib.Net(3, **{})\n", ""),
        ("try:\n    from lib._six import inf\nexcept ImportError:\n    from math import inf\n", ""),
        ("import lib\nif lib.__version__ < '2':\n    lib.Net(3, depth=2)\n", ""),
        ("from lib.kinds import Kind\nprint(Kind.CPU, Kind.TPU)\n", "in which Kind has no TPU"),
        ("from lib.kinds import Kind\nprint(Kind.GPU, Kind('cpu').show(), Kind.__members__)\n", ""),
        (
            "from lib.kinds import mel\nmel(22050, 3)\n",
            "mel takes at most 0 of its arguments without a name",
        ),
        ("from lib.kinds import Made, mel\nmel(rate=1)\nMade(3)\nMade(*[1, 2])\n", ""),
        (
            "from lib import kinds\nkinds.Made(3, 2)\n",
            "Made takes at most 1 of its arguments without a name",
        ),
        ("import other._six, unknown.gone\nfrom other import x\nfrom unknown import y\n", ""),
    ],
)
def test_code_for_another_version_of_a_library(text: str, wrong: str, tmp_path: Path) -> None:
    shown = [one for one in check(tmp_path, text) if one.check == "library-version"]
    assert [one.level for one in shown] == ["error"] * bool(wrong)
    assert all(wrong in one.text for one in shown)


def test_a_copy_of_a_library_in_the_code_is_not_compared(tmp_path: Path) -> None:
    with_files(tmp_path / "code", {"third_party/lib/__init__.py": ""})
    text = "import os, sys\nsys.path.insert(0, os.environ['COPIES'])\nfrom lib import gone\n"
    assert not [one for one in check(tmp_path, text) if one.check == "library-version"]


def test_the_new_name_of_an_argument_is_proposed(tmp_path: Path) -> None:
    old = "Trainer(model=None, tokenizer=None)\nTrainingArguments('x', evaluation_strategy='no')\n"
    shown = check(tmp_path, f"from transformers import Trainer, TrainingArguments\n{old}")
    hints = [str(one.hint).partition(",")[0] for one in shown if one.check == "library-version"]
    assert hints == ["use processing_class", "use eval_strategy"]


def test_what_the_job_installs_itself_is_not_compared(tmp_path: Path) -> None:
    text = "from lib._six import inf\nfrom transformers import AdamW\n"
    assert len([one for one in check(tmp_path, text) if one.check == "library-version"]) == 2
    assert not [one for one in check(tmp_path, text, requirements="requirements.txt") if one.level == "error"]
    assert not [
        one for one in check(tmp_path, text, setup="pip install lib==1 transformers==4") if one.level == "error"
    ]


ARGUMENTS = """
from transformers import HfArgumentParser, TrainingArguments
(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
"""


def test_options_are_those_of_the_installed_training_arguments(tmp_path: Path) -> None:
    given = {"output_dir": "out", "evaluation_strategy": "no", "num_train_epochs": "many"}
    shown = check(tmp_path, ARGUMENTS, hyperparameters=given)
    assert [(one.level, one.where) for one in shown if one.check.startswith("argument")] == [
        ("error", "hyperparameters.evaluation_strategy"),
        ("error", "hyperparameters.num_train_epochs"),
    ]
    assert any("use --eval_strategy" in str(one.hint) for one in shown)


TOPK = """
import torch
def accuracy(output, target, topk=(1,)):
    _, pred = output.topk(max(topk), 1, True, True)
    pred = pred.t()
    correct = pred.eq(target.view(1, -1).expand_as(pred))
    return [correct[:k].VIEW(-1).float().sum(0) for k in topk]
accuracy(torch.ones(8, 10), torch.ones(8).long()GIVEN)
"""


@pytest.mark.parametrize(
    ("view", "given", "version", "is_said"),
    [
        ("view", ", topk=(1, 5)", None, True),
        ("view", ", (1, 5)", "2.1", True),
        ("reshape", ", topk=(1, 5)", None, False),
        ("view", ", topk=(1,)", None, False),
        ("view", "", None, False),
        ("view", ", topk=(1, 5)", "1.4", False),
    ],
)
def test_a_view_that_newer_versions_of_torch_refuse(
    tmp_path: Path, view: str, given: str, version: str | None, is_said: bool
) -> None:
    fields = {"torch_version": version} if version else {}
    text = TOPK.replace("VIEW", view).replace("GIVEN", given)
    assert ("library-version" in found(tmp_path, text, **GPUS, **fields)) is is_said


@pytest.mark.parametrize(
    ("version", "lost"),
    [("1.23.5", []), ("1.26.4", ["float"]), ("2.1.0", ["Inf", "float"])],
)
def test_names_that_numpy_has_lost(version: str, lost: list[str], tmp_path: Path) -> None:
    with_files(tmp_path / "site", {f"numpy-{version}.dist-info/METADATA": "", "numpy/__init__.py": ""})
    text = "import numpy as np\nprint(np.float(3), np.float64(3), np.Inf)\n"
    text += "try:\n    np.int\nexcept AttributeError:\n    pass\n"
    shown = [one.text for one in check(tmp_path, text) if one.check == "library-version"]
    assert shown == [f"the nodes have numpy {version}, which has no {name}" for name in lost]


@pytest.mark.parametrize(
    "text",
    [
        "x = np.zeros(3, dtype=np.bool)\n",
        "np.float = float\nprint(np.float(3))\n",
        "if not hasattr(np, 'float'):\n    setattr(np, 'float', float)\nprint(np.float(3))\n",
        "print(np.float if hasattr(np, 'float') else float)\n",
        "print(np.float64 if int(np.__version__.split('.')[0]) >= 2 else np.Inf)\n",
    ],
)
def test_names_that_the_program_gives_back_or_asks_for(text: str, tmp_path: Path) -> None:
    with_files(tmp_path / "site", {"numpy-2.4.6.dist-info/METADATA": "", "numpy/__init__.py": ""})
    assert not [one for one in check(tmp_path, f"import numpy as np\n{text}") if one.check == "library-version"]


def test_a_member_that_the_program_asks_for(tmp_path: Path) -> None:
    text = "from lib.kinds import Kind\nprint(hasattr(Kind, 'TPU') and Kind.TPU)\n"
    text += "x = Kind.TPU if hasattr(Kind, 'TPU') else 0\n"
    assert not [one for one in check(tmp_path, text) if one.check == "library-version"]


def test_an_assertion_about_the_version_of_a_library(tmp_path: Path) -> None:
    text = "import lib\nassert lib.__version__ == '1.0'\n"
    [one] = [one for one in check(tmp_path, text) if one.check == "unfulfilled"]
    assert one.hint.startswith("name the version that it asks for")
    assert not [one for one in check(tmp_path, text.replace("1.0", "2.0")) if one.check == "unfulfilled"]


@pytest.mark.parametrize(("file", "is_wrong"), [("libtorch_cuda.so", True), ("libtorch_cpu.so", False)])
def test_a_build_of_torch_with_nccl_has_it_without_gpus_too(file: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path / "site", {f"torch/lib/{file}": "", "torch/__init__.py": ""})
    text = "import torch.distributed as dist\n"
    text += "dist.init_process_group('nccl' if dist.is_nccl_available() else 'gloo')\n"
    assert ("nccl-on-cpu" in {one.check for one in check(tmp_path, text)}) is is_wrong


ACCELERATED = "from accelerate import Accelerator\naccelerator = Accelerator()\n"


@pytest.mark.parametrize(
    ("version", "level"), [("1.12.0", None), ("0.34.2", None), ("1.13.0", "error"), ("", "warning")]
)
def test_accelerate_asks_for_processes_on_cpus_since_a_version(version: str, level: str | None, tmp_path: Path) -> None:
    metadata = {f"accelerate-{version}.dist-info/METADATA": ""} if version else {}
    with_files(tmp_path / "site", {"accelerate/__init__.py": "class Accelerator:\n    pass\n", **metadata})
    shown = [one.level for one in check(tmp_path, ACCELERATED) if one.check == "no-init"]
    assert shown == ([level] if level else [])


TIMM = {
    "timm-1.0.9.dist-info/METADATA": "",
    "timm/__init__.py": "from .models import create_model as create_model\n",
    "timm/models/__init__.py": """
from ._factory import create_model as create_model
from ._registry import register_model as register_model
from .vit import VisionTransformer as VisionTransformer
""",
    "timm/models/_factory.py": """
def create_model(model_name, pretrained=False, pretrained_cfg=None, cache_dir=None, **kwargs):
    create_fn = model_entrypoint(model_name)
    return create_fn(pretrained=pretrained, pretrained_cfg=pretrained_cfg, cache_dir=cache_dir, **kwargs)
""",
    "timm/models/_registry.py": "def register_model(fn):\n    return fn\n",
    "timm/models/vit.py": "class VisionTransformer:\n    def __init__(self, depth=2, embed_dim=8):\n        pass\n",
}
OF_TIMM = """
from timm.models import create_model, register_model
from timm.models.vit import VisionTransformer
from torch import nn
class Own(nn.Module):
    def __init__(self, depth=2, CLASS):
        super().__init__()
class Distilled(VisionTransformer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
@register_model
def tiny(pretrained=False, **kwargs):
    BODY
create_model("tiny", pretrained=False, depth=3)
"""


@pytest.mark.parametrize(
    ("body", "of_class", "names"),
    [
        ("return Own(**kwargs)", "width=8", "pretrained_cfg, cache_dir"),
        ("return Own(**kwargs)", "cache_dir=None", "pretrained_cfg"),
        ("return Own(**kwargs)", "**kwargs", ""),
        ("return VisionTransformer(embed_dim=4, **kwargs)", "width=8", "pretrained_cfg, cache_dir"),
        ("return Distilled(embed_dim=4, **kwargs)", "width=8", "pretrained_cfg, cache_dir"),
        ("kwargs.pop('pretrained_cfg', None)\n    return Own(**kwargs)", "width=8", "cache_dir"),
        ("for name in ('pretrained_cfg', 'cache_dir'):\n        kwargs.pop(name)\n    return Own(**kwargs)", "a=1", ""),
        ("kwargs = clean(kwargs)\n    return Own(**kwargs)", "width=8", ""),
        ("return Own(depth=kwargs.get('depth'))", "width=8", ""),
    ],
)
def test_a_registered_model_takes_what_timm_gives_it(body: str, of_class: str, names: str, tmp_path: Path) -> None:
    with_files(tmp_path / "site", TIMM)
    shown = check(tmp_path, OF_TIMM.replace("BODY", body).replace("CLASS", of_class))
    found = [(one.level, one.text) for one in shown if one.check == "library-version"]
    text = f"timm 1.0.9 calls tiny() with {names}, too, which this does not accept"
    assert found == ([("error", text)] if names else [])


def test_a_registered_model_without_kwargs(tmp_path: Path) -> None:
    with_files(tmp_path / "site", TIMM)
    text = (
        OF_TIMM.replace("BODY", "return Own()").replace("CLASS", "a=1").replace("pretrained=False, **k", "depth=1, *k")
    )
    shown = [one for one in check(tmp_path, text) if one.check == "library-version"]
    assert [one.hint for one in shown] == ["add **kwargs to the parameters of tiny()"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("from lib.models import Bas\nprint(Bas)\n", "import Base, or"),
        ("from lib.models import old\nprint(old)\n", "import what this version has, or"),
        ("from lib.models import old, Net\nprint(Net)\n", "remove it, because nothing uses it, or"),
    ],
)
def test_what_to_import_instead_of_a_lost_name(text: str, hint: str, tmp_path: Path) -> None:
    (shown,) = [one for one in check(tmp_path, text) if one.check == "library-version"]
    assert str(shown.hint).startswith(hint)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("import lib.kinds as k\nk.gone(3)\n", "lib.kinds.gone"),
        ("import lib.kinds as k\nk.mel(rate=3)\n", ""),
        ("from lib import kinds\nif hasattr(kinds, 'gone'):\n    kinds.gone(3)\n", ""),
        ("import lib\nlib.made.anything()\nlib.unknown.x()\n", ""),
    ],
)
def test_a_function_that_a_module_of_a_library_has_lost(text: str, lost: str, tmp_path: Path) -> None:
    shown = [one.text for one in check(tmp_path, text) if one.check == "library-version"]
    assert shown == ([f"the nodes have lib 2.0, which has no {lost}"] if lost else [])


def test_models_of_a_registry_of_the_code_itself(tmp_path: Path) -> None:
    with_files(tmp_path / "site", TIMM)
    own = "def register_model(function):\n    return function\n"
    text = OF_TIMM.replace("import create_model, register_model", f"import create_model\n{own}")
    shown = check(tmp_path, text.replace("BODY", "return Own(**kwargs)").replace("CLASS", "a=1"))
    assert not [one for one in shown if one.check == "library-version"]


@pytest.mark.parametrize(
    "text",
    ["import lib.kinds as k\nk.own = print\nk.own()\n", "import lib.kinds as k\nsetattr(k, 'own', 1)\nk.own()\n"],
)
def test_what_the_program_gives_a_library_itself(text: str, tmp_path: Path) -> None:
    assert not [one for one in check(tmp_path, text) if one.check == "library-version"]


def test_what_a_module_has_lost_that_is_gone_itself(tmp_path: Path) -> None:
    (shown,) = check(tmp_path, "from lib._six import inf\nprint(inf)\n")
    assert "import what this version has" in str(shown.hint)
    with_files(tmp_path / "site", {"torch-2.9.0.dist-info/METADATA": "", "torch/__init__.py": "inf = 1\n"})
    (shown,) = check(tmp_path, "from torch._six import inf\nprint(inf)\n")
    assert str(shown.hint).startswith("use torch.inf, or")


@pytest.mark.parametrize(
    ("asked", "is_known"),
    [
        ("transformers\nfire\n", True),
        ("transformers>=4.28.1  # of the paper\n", True),
        ("transformers>=6\n", False),
        ("transformers==4.40\n", False),
        ("transformers\nlib==1.0\n", False),
        ("transformers\nlib<2\n", False),
        ("transformers @ git+https://example.com/transformers\n", False),
        ("transformers\n-r more.txt\n", False),
        ("fire\n", True),
    ],
)
def test_requirements_that_the_installed_version_fulfils(asked: str, is_known: bool, tmp_path: Path) -> None:
    found = check(tmp_path, "from transformers import AdamW\n", asked=asked, requirements="requirements.txt")
    assert ("library-version" in {one.check for one in found}) is is_known


SUBCLASS = """
from dataclasses import dataclass, field
import transformers
@dataclass
class TrainingArguments(transformers.TrainingArguments):
    cache_dir: str = field(default="cache")
parser = transformers.HfArgumentParser(TrainingArguments)
(args,) = parser.parse_args_into_dataclasses()
transformers.Trainer(args=args).train()
"""


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({}, ["each process would train alone"]),
        ({"use_cpu": {"flag": True}, "bf16": True}, []),
        ({"bf16": True}, ["each process would train alone", "--bf16 needs a GPU"]),
        ({"foo": 1}, ["each process would train alone", "does not accept --foo"]),
    ],
)
def test_a_class_of_the_program_that_is_based_on_training_arguments(
    given: dict[str, Any], texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setitem(
        INSTALLED,
        "transformers/training_args.py",
        INSTALLED["transformers/training_args.py"].replace(
            "bf16: bool", "use_cpu: bool = field(default=False)\n    bf16: bool"
        ),
    )
    resources = {"nodes": 2, "nproc_per_node": 2}
    errors = [
        one.text
        for one in check(tmp_path, SUBCLASS, resources=resources, hyperparameters=given)
        if one.check in ("no-init", "cuda-on-cpu", "argument-unknown")
    ]
    assert len(errors) == len(texts)
    assert all(any(text in one for one in errors) for text in texts)
