"""What a good job file means."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from jobsubmit.assets import STARTER_JOBS
from jobsubmit.errors import SpecError
from jobsubmit.launch import arguments
from jobsubmit.spec import Override, json_schema, load, load_mapping
from jobsubmit.spec.document import parse_document
from jobsubmit.spec.model import Mode, TorchrunSpec


def write(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text)
    return file


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


def test_schema_describes_every_field_and_accepts_every_starter() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    for definition in schema["$defs"].values():
        assert definition.get("description"), definition
        for name, field in definition.get("properties", {}).items():
            assert field.get("description") or "$ref" in field, name
    validator = Draft202012Validator(schema)
    for file in STARTER_JOBS.glob("*.yaml"):
        document = YAML(typ="safe", pure=True).load(file.read_text())
        assert list(validator.iter_errors(document)) == []
        assert list(validator.iter_errors({**document, "hyperparamters": {}})) != []


def test_numbers_keep_their_spelling(tmp_path: Path) -> None:
    text = "name: a\nmode: launch\ncode_dir: .\nboot_file: t.py\n"
    spec = load(write(tmp_path, text + "env: {PY: 3.10}\nhyperparameters: {lr: 1e-3}\nargs: [1.50]\n")).spec
    assert arguments(spec) == ("--lr=1e-3", "1.50")
    assert spec.env == {"PY": "3.10"}
    changed = load_mapping(
        {"name": "a", "mode": "spawn", "code_dir": ".", "boot_file": "t.py"},
        [Override.from_assignment("hyperparameters.lr=2.50")],
    )
    assert arguments(changed.spec)[0] == "--lr=2.50"
    assert "lr: 2.50" in changed.document.text


def test_an_override_repairs_what_the_file_has_wrong(tmp_path: Path) -> None:
    file = write(tmp_path, "name: 2024-01-01\nmode: launch\ncode_dir: .\nboot_file: t.py\n")
    assert load(file, [Override.from_assignment("name=fine")]).spec.name == "fine"


@pytest.mark.parametrize("text", ["hyperparameters.color=#fff", "hyperparameters.m=a #b"])
def test_a_comment_in_an_assignment_is_not_dropped_in_silence(text: str) -> None:
    with pytest.raises(SpecError, match="begins a comment"):
        Override.from_assignment(text)
    quoted = Override.from_assignment("hyperparameters.color='#fff'")
    assert quoted.value == "#fff"


@pytest.mark.parametrize("value", [{1, 2}, [{1}], 2**70, [2**70], float("inf"), object(), "\ud800", ["\ud800"]])
def test_a_mapping_may_only_hold_what_a_file_may(value: object) -> None:
    with pytest.raises(SpecError):
        load_mapping(
            {"name": "a", "mode": "spawn", "code_dir": ".", "boot_file": "t.py", "hyperparameters": {"x": value}}
        )
