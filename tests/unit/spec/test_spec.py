"""What a good job file means."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from ruamel.yaml import YAML

from jobsubmit.backends.volcano.spec import TolerationSpec, VolumeSpec
from jobsubmit.common.resources import STARTER_JOBS
from jobsubmit.config import BUILT_IN
from jobsubmit.errors import SpecError
from jobsubmit.plan.arguments import build_arguments
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.spec import yaml_document as documents
from jobsubmit.spec.backend_registry import backend_kinds, find_spec
from jobsubmit.spec.hyperparameter import Flag
from jobsubmit.spec.job_spec import (
    SPECS,
    CheckpointSpec,
    FrameworkSpec,
    InputSpec,
    OutputSpec,
    ResourcesSpec,
    RestartsSpec,
    StoreSpec,
    TorchrunSpec,
)
from jobsubmit.spec.json_schema import json_schema
from jobsubmit.spec.loader import Override, load, load_mapping
from jobsubmit.spec.modes import Mode
from jobsubmit.spec.yaml_document import parse_document


def write(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (">-\n  one\n  two\n\n  three\n", "one two\nthree"),
        (">\n  one\n  two\n", "one two\n"),
        (">-\n  one\n    deeper\n  two\n", "one\n  deeper\ntwo"),
        ("|-\n  one\n  two\n", "one\ntwo"),
        ("|+\n  one\n\n", "one\n\n"),
        ("'one\n  two'\n", "one two"),
    ],
)
def test_text_over_several_lines_is_what_yaml_says(block: str, text: str) -> None:
    assert parse_document(f"x: {block}", "f").values == {"x": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000", 1000),
        ("0", 0),
        ("1e5", 1e5),
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ('"no"', "no"),
        ("'on'", "on"),
        ('"2026-01-31"', "2026-01-31"),
        ("nothing", "nothing"),
        ("9223372036854775807", 2**63 - 1),
        ('"99999999999999999999"', "99999999999999999999"),
        ("[1, a, null]", [1, "a", None]),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_yaml_values(text: str, value: object) -> None:
    document = parse_document(f"x: {text}", "f")
    assert document.problems == []
    assert document.values["x"] == value
    assert isinstance(document.values["x"], type(value))
    assert isinstance(document.values["x"], bool) == isinstance(value, bool)


def test_anchors_may_be_used(tmp_path: Path) -> None:
    spec = load(
        write(
            tmp_path,
            "name: a\nmode: launch\ncode_dir: .\nboot_file: t.py\nenv: &e {A: x}\nhyperparameters: {a: &v 1, b: *v}\n",
        )
    ).spec
    assert spec.hyperparameters == {"a": 1, "b": 1}


def test_the_python_of_a_virtual_environment_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to("/usr/bin/python3")
    text = (
        "name: a\nmode: launch\ncode_dir: .\nboot_file: t.py\nbackend: {kind: local, python: env/../env/bin/python}\n"
    )
    backend: Any = load(write(tmp_path, text)).spec.backend
    assert backend.python == str(tmp_path / "env/bin/python")


def test_relative_paths_resolve_against_the_job_file(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    text = "name: a\nmode: launch\ncode_dir: ../src\nboot_file: ./x/../x/t.py\n"
    with pytest.raises(SpecError):
        load(write(folder, text))
    spec = load(
        write(
            folder,
            "name: a\nmode: launch\ncode_dir: ../src\nboot_file: ./x//t.py\ntemplates: t\nstore: {uri: file://store}\n",
        )
    ).spec
    assert spec.code_dir == str(tmp_path / "src")
    assert spec.templates == str(folder / "t")
    assert spec.store.uri == str(folder / "store")
    assert spec.boot_file == "x/t.py"


def test_overrides_win_in_order_and_keep_dots_of_the_users_own_names(tmp_path: Path) -> None:
    file = write(tmp_path, "name: a\nmode: torchrun\ncode_dir: .\nboot_file: t.py\nhyperparameters: {lr: 1}\n")
    changes = [
        Override.from_assignment("hyperparameters.lr=0.5"),
        Override.from_assignment("hyperparameters.model.depth=3"),
        Override.from_assignment("hyperparameters.text='no'"),
        Override.from_assignment("resources.nodes=4"),
        Override("--nodes", ("resources", "nodes"), 2),
    ]
    spec = load(file, changes).spec
    assert spec.hyperparameters == {"lr": 0.5, "model.depth": 3, "text": "no"}
    assert spec.resources.nodes == 2


def test_another_kind_of_backend_leaves_all_of_the_old_one_behind(tmp_path: Path) -> None:
    """A Python of the cluster is none of this machine."""
    backend = "backend:\n  kind: slurm\n  partition: gpu\n  python: /cluster/env\n"
    file = write(tmp_path, f"name: a\nmode: torchrun\ncode_dir: .\nboot_file: t.py\n{backend}")
    loaded = load(file, [Override("--backend", ("backend", "kind"), "local")])
    assert loaded.spec.backend == load(write(tmp_path, file.read_text().partition("backend")[0])).spec.backend
    assert [note.partition("  ")[2] for note in loaded.notes] == [
        "backend.partition: dropped, it belongs to slurm",
        "backend.python: dropped, it belongs to slurm",
    ]
    kept = load(write(tmp_path, file.read_text() + backend), [Override("--backend", ("backend", "kind"), "slurm")])
    assert kept.notes == ()


def test_fields_without_a_kind_are_those_of_the_backend_that_is_chosen(tmp_path: Path) -> None:
    fields = "backend: {partition: gpu, shared_dir: /shared, queue: q}\n"
    file = write(tmp_path, f"name: a\nmode: torchrun\ncode_dir: .\nboot_file: t.py\n{fields}")
    loaded = load(file, [Override("--backend", ("backend", "kind"), "slurm")])
    assert vars(loaded.spec.backend)["partition"] == "gpu"
    assert [note.partition("  ")[2] for note in loaded.notes] == ["backend.queue: dropped, slurm has no such field"]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("12h", 43200), ("2d", 172800)])
def test_timeouts(text: str, seconds: int, tmp_path: Path) -> None:
    file = write(tmp_path, f"name: a\nmode: launch\ncode_dir: .\nboot_file: t.py\ntimeout: {text}\n")
    assert load(file).spec.timeout == seconds


@pytest.mark.parametrize(("old", "new"), [("torchrun", "spawn"), ("spawn", "torchrun"), ("torchrun", "launch")])
def test_switching_the_mode_drops_and_names_the_fields_of_the_old_one(old: Mode, new: Mode, tmp_path: Path) -> None:
    own = {"torchrun": "image: x\nrdzv_backend: c10d\n", "spawn": "framework: {name: PyTorch, version: v}\n"}[old]
    file = write(tmp_path, f"name: a\nmode: {old}\ncode_dir: .\nboot_file: t.py\n{own}")
    loaded = load(file, mode=new)
    dropped = {note.split("  ")[1].split(":")[0] for note in loaded.notes}
    expected = {
        ("torchrun", "spawn"): {"image", "rdzv_backend"},
        ("spawn", "torchrun"): {"framework"},
        ("torchrun", "launch"): {"rdzv_backend"},
    }
    assert loaded.spec.mode == new
    assert dropped == expected[old, new]
    assert all(f"{file}:" in note for note in loaded.notes)


def test_a_python_mapping_is_validated_like_a_file(tmp_path: Path) -> None:
    spec = load_mapping(
        {"name": "a", "mode": "torchrun", "code_dir": "src", "boot_file": "t.py"}, directory=tmp_path
    ).spec
    assert isinstance(spec, TorchrunSpec)
    assert spec.code_dir == str(tmp_path / "src")
    with pytest.raises(SpecError, match="did you mean `nodes`"):
        load_mapping({"name": "a", "mode": "launch", "code_dir": ".", "boot_file": "t.py", "resources": {"node": 1}})


def test_a_spec_cannot_be_changed() -> None:
    spec = load_mapping({"name": "a", "mode": "launch", "code_dir": ".", "boot_file": "t.py"}).spec
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "b"  # type: ignore[misc]


MODELS = [
    (model, field)
    for model in (
        *SPECS.values(),
        *map(find_spec, backend_kinds()),
        Flag,
        ResourcesSpec,
        FrameworkSpec,
        StoreSpec,
        InputSpec,
        OutputSpec,
        CheckpointSpec,
        RestartsSpec,
        TolerationSpec,
        VolumeSpec,
    )
    for field in model.model_fields
]
# What each model wants beside the field in question.
REST: dict[type[BaseModel], dict[str, Any]] = {
    FrameworkSpec: {"name": "PyTorch", "version": "2.1"},
    InputSpec: {"name": "data", "uri": "data"},
    OutputSpec: {"name": "out", "uri": "out"},
    CheckpointSpec: {"uri": "kept"},
    RestartsSpec: {"max": 1},
    VolumeSpec: {"path": "/data"},
    **{find_spec(name): {"kind": name} for name in backend_kinds()},
    find_spec("ssh"): {"kind": "ssh", "hosts": ["gpu1", "gpu2"]},
    **{spec: {"mode": mode, "name": "a", "code_dir": ".", "boot_file": "t.py"} for mode, spec in SPECS.items()},
    SPECS["command"]: {"name": "a", "code_dir": ".", "command": "python t.py"},
}


@pytest.mark.parametrize(("model", "field"), MODELS, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_says_what_it_is_with_an_example_that_is_valid(model: type[BaseModel], field: str) -> None:
    schema = json_schema()
    name = model.model_fields[field].alias or field
    definition = schema["$defs"].get(model.__name__, Flag.model_json_schema())
    described = definition["properties"][name]
    assert definition["description"]
    assert described["description"]
    assert described["examples"]
    rest = {key: value for key, value in REST.get(model, {}).items() if not {name, key} <= {"boot_file", "command"}}
    for example in described["examples"]:
        values = {**rest, name: example}
        if model is VolumeSpec and not {"claim", "host_path"} & set(values):
            values["claim"] = "c"
        if name == "endpoint_url":
            values["uri"] = "s3://bucket/jobs"
        model.model_validate(values)
        assert list(Draft202012Validator({"$defs": schema["$defs"], **definition}).iter_errors(values)) == []


def test_the_schema_accepts_every_starter_and_no_unknown_field() -> None:
    validator = Draft202012Validator(json_schema())
    Draft202012Validator.check_schema(json_schema())
    for file in STARTER_JOBS.glob("*.yaml"):
        document = YAML(typ="safe", pure=True).load(file.read_text())
        assert list(validator.iter_errors(document)) == []
        assert list(validator.iter_errors({**document, "hyperparamters": {}})) != []


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        ("spawn", {"resources": {"nodes": "2:2"}}),
        ("spawn", {"hyperparameters": {"world_size": 1, "rank": "0"}}),
        ("spawn", {"inputs": [{"name": "rank", "uri": "b", "as": "env"}]}),
        ("torchrun", {"resources": {"nodes": "02:007"}}),
        ("torchrun", {"boot_file": None, "command": "python run.py --fast"}),
        ("torchrun", {"boot_file": "./a/./b.py", "command": None}),
        ("torchrun", {"boot_file": "..b/c...py"}),
        ("torchrun", {"requirements": "a b/ü.txt"}),
        ("torchrun", {"code_dir": "~/src/../x"}),
        ("torchrun", {"code_dir": "s3://bucket/a/b/"}),
        ("torchrun", {"code_dir": "s3://bucket/a", "layout": "tree"}),
        ("torchrun", {"code_dir": "a:b"}),
        ("torchrun", {"store": {"uri": "file:///x"}}),
        ("torchrun", {"store": {"uri": "s3://bucket", "endpoint_url": "http://[::1]:9000", "addressing": None}}),
        ("torchrun", {"store": {"uri": "obs://bucket/", "endpoint_url": "https://obs.example.com/a/b"}}),
        ("torchrun", {"store": {"endpoint_url": "http://127.0.0.1:9000"}}),
        ("torchrun", {"store": {"uri": "some folder", "region": None}}),
        ("torchrun", {"timeout": "007s", "hang_after": "0s", "restarts": {"max": 0, "backoff": 0}}),
        ("torchrun", {"restarts": {"max": 1, "on": ["exit:007", "exit:255", "log:/a\nb/", "hang"]}}),
        ("torchrun", {"env": {"MASTER": "x\ny", "_MA": 1.5, "RANKS": 1, "PATH": "/x"}}),
        ("torchrun", {"hyperparameters": {"0.a-b": 2**63 - 1, "b": [1, [None, "x"]], "c": None, "d": {"flag": False}}}),
        ("torchrun", {"hyperparameters": {"a": 1e30, "b": -1e300, "c": [9.3e18]}}),
        ("torchrun", {"code_dir": "a\nb", "boot_file": "c\nd/...", "requirements": "..."}),
        ("torchrun", {"store": {"uri": "s3://bucket", "endpoint_url": "HTTP://[FE80::1]:9000"}}),
        ("torchrun", {"rdzv_backend": "static", "resources": {"nodes": 4}}),
        ("torchrun", {"torch_version": "2.10.1+cu128", "resources": {"nodes": "1:2"}}),
        ("torchrun", {"checkpoint_dir": {"uri": "s3://bucket/x", "name": "a.b"}}),
        ("launch", {"backend": {"kind": "slurm", "extra_sbatch": ["--no-kill", "-w node[1-2]", "--nice"]}}),
        ("launch", {"backend": {"kind": "slurm", "gpus_per_node": 8, "mem": "0", "shared_dir": "/a b/ü"}}),
        ("launch", {"backend": {"kind": "volcano", "resources": {"cpu": 0.5, "memory": "1.5Gi"}}}),
        ("launch", {"backend": {"volumes": [{"path": "/d/", "claim": "a.b", "host_path": None}], "kind": "volcano"}}),
        ("launch", {"backend": {}}),
    ],
)
def test_the_schema_accepts_what_jobsubmit_accepts(mode: str, fields: dict[str, Any]) -> None:
    job = {"name": "a", "mode": mode, "code_dir": ".", "boot_file": "t.py", **fields}
    load_mapping(job)
    assert [error.message for error in Draft202012Validator(json_schema()).iter_errors(job)] == []


def test_numbers_keep_their_spelling(tmp_path: Path) -> None:
    text = "name: a\nmode: launch\ncode_dir: .\nboot_file: t.py\n"
    spec = load(write(tmp_path, text + "env: {PY: 3.10}\nhyperparameters: {lr: 1e-3}\nargs: [1.50]\n")).spec
    assert build_arguments(spec) == ("--lr=1e-3", "1.50")
    assert spec.env == {"PY": "3.10"}
    changed = load_mapping(
        {"name": "a", "mode": "spawn", "code_dir": ".", "boot_file": "t.py"},
        [Override.from_assignment("hyperparameters.lr=2.50")],
    )
    assert build_arguments(changed.spec)[0] == "--lr=2.50"
    assert "lr: 2.50" in changed.document.text


def test_an_override_repairs_what_the_file_has_wrong(tmp_path: Path) -> None:
    file = write(tmp_path, "name: 2024-01-01\nmode: launch\ncode_dir: .\nboot_file: t.py\n")
    assert load(file, [Override.from_assignment("name=fine")]).spec.name == "fine"


@pytest.mark.parametrize("text", ["hyperparameters.color=#fff", "hyperparameters.m=a #b"])
def test_a_comment_in_an_assignment_is_not_dropped_in_silence(text: str) -> None:
    with pytest.raises(SpecError, match="starts a comment"):
        Override.from_assignment(text)
    quoted = Override.from_assignment("hyperparameters.color='#fff'")
    assert quoted.value == "#fff"


@pytest.mark.parametrize("value", [{1, 2}, [{1}], 2**70, [2**70], float("inf"), object(), "\ud800", ["\ud800"]])
def test_a_mapping_may_only_hold_what_a_file_may(value: object) -> None:
    with pytest.raises(SpecError):
        load_mapping(
            {"name": "a", "mode": "spawn", "code_dir": ".", "boot_file": "t.py", "hyperparameters": {"x": value}}
        )


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 2000 + "]" * 2000,
        "a: " + "{b: " * 2000 + "}" * 2000,
        "- " * 2000 + "x",
        "".join(" " * depth + "a:\n" for depth in range(1400)),
        "[" * 500_000,
        "? " * 3000,
    ],
    ids=["lists", "mappings", "items", "blocks", "never closed", "keys"],
)
def test_what_is_nested_deeply_is_refused_at_once(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(SpecError, match="is nested deeper than 40 levels"):
        load(tmp_path / "job.yaml")
    assert time.process_time() - began < 3


def test_a_job_file_may_be_a_pipe_and_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_READ_SECONDS", 0.3)
    with pytest.raises(SpecError, match="is larger than"):
        load(Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="nothing was written to it"):
        load(tmp_path / "pipe")
    (tmp_path / "code").mkdir()
    text = "name: j\nmode: torchrun\nimage: i\ncode_dir: code\nboot_file: a.py\n"
    monkeypatch.setattr(documents, "_READ_SECONDS", 20.0)
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(text))
    writer.start()
    assert load(tmp_path / "pipe").spec.name == "j"
    writer.join()


def test_a_command_needs_no_mode(tmp_path: Path) -> None:
    spec = load(write(tmp_path, "name: a\ncode_dir: .\ncommand: python -u train.py --lr 1\nargs: [x]\n")).spec
    assert (spec.mode, spec.boot_file) == ("command", None)
    with pytest.raises(SpecError, match=r"mode.*is required.*or give `command`"):
        load(write(tmp_path, "name: a\ncode_dir: .\n"))
    with pytest.raises(SpecError, match="boot_file"):
        load(write(tmp_path, "name: a\ncode_dir: .\ncommand: x\nboot_file: y.py\n"))


@pytest.mark.parametrize(
    ("text", "version"), [("2.10", "2.10"), ("2.1", "2.1"), ("'2.9.1'", "2.9.1"), ("2.10.1", "2.10.1")]
)
def test_a_version_is_taken_as_it_is_written(text: str, version: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"name: a\nmode: torchrun\ncode_dir: .\nboot_file: t.py\ntorch_version: {text}\n")
    assert load(file).spec.torch_version == version
    changed = load(file, [Override.from_assignment(f"torch_version={text}")])
    assert changed.spec.torch_version == version
    assert (build_plan(changed.spec, BUILT_IN).rdzv or pytest.fail()).backend == (
        "static" if version == "2.1" else "c10d"
    )


def test_a_mode_beside_a_command_stays(tmp_path: Path) -> None:
    file = write(tmp_path, "name: a\nmode: launch\ncode_dir: .\ncommand: [bash, run.sh]\n")
    assert load(file).spec.mode == "launch"
    assert build_plan(load(file).spec, BUILT_IN).start == "command"
    assert load(write(tmp_path, "name: a\ncode_dir: .\ncommand: x\n"), mode="torchrun").spec.mode == "torchrun"
