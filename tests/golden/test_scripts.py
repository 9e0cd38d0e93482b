"""The rendered scripts: unchanged (golden files), clean (shellcheck) and right (run with a recorder for python)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile import HOSTILE

from jobsubmit.common.resources import SAMPLE_CODE, TEMPLATES, starter_job
from jobsubmit.config import load_settings
from jobsubmit.errors import SpecError
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.plan.script import build_paste_commands, render
from jobsubmit.spec.job_spec import JobSpec
from jobsubmit.spec.loader import load, load_mapping

GOLDEN = Path(__file__).parent
MODES = ("spawn", "launch", "torchrun")
SHELLCHECK = Path(sys.executable).parent / "shellcheck"

RECORDER = """\
#!{python} -IS
import json, os, sys
names = "NNODES NODE_RANK NPROC_PER_NODE NODE_ADDR MASTER_ADDR MASTER_PORT RDZV_ID RANK WORLD_SIZE DATA".split()
record = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": {{n: os.environ[n] for n in names if n in os.environ}}}}
open(os.environ["RECORD"], "w", encoding="utf-8").write(json.dumps(record))
"""


def job(mode: str, **fields: Any) -> JobSpec:
    return load_mapping({"name": "job", "mode": mode, "code_dir": ".", "boot_file": "train.py", **fields}).spec


def script_of(spec: JobSpec) -> str:
    return render(build_plan(spec, load_settings())).text


def run_nodes(text: str, folder: Path, nodes: int, code_name: str = "code", **extra: str) -> list[dict[str, Any]]:
    """Run a script once per node as a platform would, with a recorder in place of python."""
    (folder / "bin").mkdir(exist_ok=True)
    recorder = folder / "bin" / "python"
    recorder.write_text(RECORDER.format(python=sys.executable))
    recorder.chmod(0o755)
    (folder / "start.sh").write_bytes(text.encode())
    records = []
    for node in range(nodes):
        environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "RECORD": str(folder / f"record-{node}.json"),
            "VC_WORKER_HOSTS": ",".join(f"w-{i}" for i in range(nodes)),
            "VC_WORKER_NUM": str(nodes),
            "VC_TASK_INDEX": str(node),
            "MA_NUM_HOSTS": str(nodes),
            "MA_NUM_GPUS": "8",
            "MA_JOB_DIR": str(folder),
            "RANK": "99",
            "WORLD_SIZE": "99",
            "NODE_RANK": "99",
            "MASTER_ADDR": "stray",
            **extra,
        }
        subprocess.run(["bash", folder / "start.sh"], env=environment, check=True, timeout=20)
        records.append(json.loads((folder / f"record-{node}.json").read_text()))
    return records


def boot(folder: Path, path: str = "train.py") -> None:
    file = folder / "code" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


CASES: dict[str, JobSpec] = {
    "spawn-1-node": job("spawn", hyperparameters={"lr": 0.1}, resources={"nproc_per_node": 2}),
    "spawn-2-nodes": job("spawn", hyperparameters={"lr": 0.1}, resources={"nodes": 2}),
    "launch": job("launch", args=["in put", "$(id)"], resources={"nodes": 2, "nproc_per_node": 2}),
    "launch-argument": job("launch", local_rank="argument", resources={"nodes": 2, "nproc_per_node": 2}),
    "torchrun-static": job("torchrun", torch_version="2.1", resources={"nodes": 2}),
    "torchrun-c10d": job("torchrun", torch_version="2.9", hyperparameters={"lr": 0.1}, resources={"nodes": 2}),
    "everything": job(
        "torchrun",
        torch_version="2.9",
        hyperparameters={"lr": 0.1},
        args=["last"],
        requirements="requirements.txt",
        inputs=[{"name": "data_url", "uri": "s3://bucket/data"}, {"name": "DATA", "uri": "s3://bucket/x", "as": "env"}],
        outputs=[{"name": "train_url", "uri": "s3://bucket/out"}],
        checkpoint_dir="checkpoints",
        restarts=2,
        resources={"nodes": "1:3", "nproc_per_node": 2},
    ),
    "command": load_mapping(
        {"name": "job", "mode": "torchrun", "code_dir": ".", "command": ["bash", "run it.sh"], "args": ["x"]}
    ).spec,
}


@pytest.mark.parametrize("case", CASES)
def test_script_is_unchanged(case: str) -> None:
    golden = GOLDEN / f"{case}.sh"
    text = script_of(CASES[case])
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), "UPDATE_GOLDEN=1 writes the new text, if it is meant"


@pytest.mark.parametrize("case", CASES)
def test_shellcheck_finds_nothing(case: str) -> None:
    assert_clean(script_of(CASES[case]))


def test_shellcheck_finds_nothing_in_what_starts_a_node_on_modelarts() -> None:
    assert_clean((TEMPLATES / "modelarts/run.sh").read_text())


def assert_clean(script: str) -> None:
    command = [str(SHELLCHECK), "--enable=all", "--severity=style", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize("mode", MODES)
def test_shellcheck_finds_nothing_in_hostile_scripts_and_paste_commands(mode: str) -> None:
    spec = job(
        mode, hyperparameters={"x": "\n".join(HOSTILE[:-1])}, env={"E": "a'b"}, boot_file="a'; echo x/t $(id).py"
    )
    job_plan = build_plan(spec, load_settings())
    script = render(job_plan)
    for text in (script.text, "#!/bin/bash\n" + "".join(build_paste_commands(job_plan, script, ["a"], "id", 2000))):
        done = subprocess.run([SHELLCHECK, "--enable=all", "-"], input=text, capture_output=True, text=True)
        assert done.stdout == ""


@pytest.mark.parametrize("mode", ["launch", "torchrun"])
def test_the_sample_start_scripts_are_current(mode: str) -> None:
    sample = SAMPLE_CODE / {"launch": "torchlaunch.sh", "torchrun": "torchrun.sh"}[mode]
    text = script_of(load(starter_job(mode)).spec)
    if os.environ.get("UPDATE_GOLDEN"):
        sample.write_text(text)
    assert sample.read_text() == text


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_spawn_counts_nodes_in_world_size_and_rank(nodes: int, tmp_path: Path) -> None:
    boot(tmp_path)
    text = script_of(job("spawn", hyperparameters={"lr": 1}, resources={"nodes": nodes, "nproc_per_node": 2}))
    for node, record in enumerate(run_nodes(text, tmp_path, nodes, JOBSUBMIT_MASTER_PORT="2345")):
        file, *words = record["argv"]
        assert file == str(tmp_path / "code/train.py")
        assert sorted(words) == sorted(
            ["--lr=1", f"--world_size={nodes}", f"--rank={node}", "--init_method=tcp://w-0:2345"]
        )


@pytest.mark.parametrize("mode", ["launch", "torchrun"])
@pytest.mark.parametrize("version", ["2.1", "2.9"])
def test_the_launchers_get_what_the_node_knows(mode: str, version: str, tmp_path: Path) -> None:
    boot(tmp_path)
    text = script_of(job(mode, torch_version=version, hyperparameters={"lr": 1}, args=["p"], resources={"nodes": 2}))
    records = run_nodes(text, tmp_path, 2, JOBSUBMIT_JOB_ID="the-job", JOBSUBMIT_MASTER_PORT="2345")
    for node, record in enumerate(records):
        argv = record["argv"]
        assert argv[:2] == ["-m", "torch.distributed." + ("launch" if mode == "launch" else "run")]
        assert argv[-3:] == [str(tmp_path / "code/train.py"), "--lr=1", "p"]
        assert {f"--node_rank={node}", "--nnodes=2", "--nproc_per_node=8", "--rdzv_id=the-job"} < set(argv)
        assert record["cwd"] == str(tmp_path / "code")
        assert record["env"]["NODE_RANK"] == str(node)
        assert record["env"]["NODE_ADDR"] == f"w-{node}"
        assert "RANK" not in record["env"]
        assert "WORLD_SIZE" not in record["env"]
        if mode == "launch":
            assert {"--use_env", "--master_addr=w-0", "--master_port=2345"} < set(argv)
        elif version == "2.1":
            assert {"--rdzv_backend=static", "--rdzv_endpoint=w-0:2345"} < set(argv)
        else:
            assert {"--rdzv_backend=c10d", "--rdzv_endpoint=w-0:2345", f"--local_addr=w-{node}"} < set(argv)
            assert any(word.startswith(f"--rdzv_conf=is_host={int(node == 0)},join_timeout=") for word in argv)


@pytest.mark.parametrize("mode", MODES)
def test_hostile_values_arrive_unmodified(mode: str, tmp_path: Path) -> None:
    name = "a'; echo x $(id)\n日本 -f.py"
    boot(tmp_path, name)
    fields: dict[str, Any] = {"boot_file": name, "hyperparameters": {f"h{i}": v for i, v in enumerate(HOSTILE)}}
    if mode != "spawn":
        fields["args"] = list(HOSTILE)
    (record,) = run_nodes(script_of(job(mode, **fields)), tmp_path, 1)
    argv = record["argv"]
    start = argv.index(str(tmp_path / "code" / name)) + 1
    assert argv[start : start + len(HOSTILE)] == [f"--h{i}={value}" for i, value in enumerate(HOSTILE)]
    if mode != "spawn":
        assert argv[start + len(HOSTILE) :] == list(HOSTILE)
    assert len(HOSTILE) >= 30


def test_a_command_of_the_users_own_replaces_launcher_and_boot_file(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    spec = load_mapping(
        {"name": "j", "mode": "launch", "code_dir": ".", "command": "python -u own.py", "hyperparameters": {"a": 1}}
    ).spec
    (record,) = run_nodes(script_of(spec), tmp_path, 1)
    assert record["argv"] == ["-u", "own.py", "--a=1"]
    assert record["env"]["NNODES"] == "1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"VC_WORKER_HOSTS": ""}, "VC_WORKER_HOSTS"),
        ({"MA_NUM_HOSTS": "3"}, "VC_WORKER_HOSTS names 2 nodes, MA_NUM_HOSTS says 3"),
        ({"VC_TASK_INDEX": "2"}, "VC_TASK_INDEX is 2, but there are 2 nodes"),
        ({"VC_TASK_INDEX": "a[$(touch pwned)]"}, "not the index of a node"),
        ({"MA_NUM_GPUS": "0"}, "0 processes per node"),
        ({"MA_JOB_DIR": "/nowhere"}, "the code is not at /nowhere/code"),
    ],
)
def test_a_node_that_is_told_nonsense_says_so(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    boot(tmp_path)
    (tmp_path / "start.sh").write_text(script_of(job("torchrun", resources={"nodes": 2})))
    environment = {
        "PATH": os.environ["PATH"],
        "VC_WORKER_HOSTS": "a,b",
        "VC_TASK_INDEX": "0",
        "MA_NUM_HOSTS": "2",
        "MA_NUM_GPUS": "1",
        "MA_JOB_DIR": str(tmp_path),
        **changes,
    }
    done = subprocess.run(
        ["bash", tmp_path / "start.sh"], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode != 0
    assert message in done.stderr
    assert not (tmp_path / "pwned").exists()


def test_paste_commands_run_as_they_are(tmp_path: Path) -> None:
    boot(tmp_path)
    spec = job("torchrun", env={"E": "it's\n$HOME"}, resources={"nodes": 2, "nproc_per_node": 2})
    job_plan = build_plan(spec, load_settings())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(RECORDER.format(python=sys.executable).replace("NNODES", "E NNODES"))
    (tmp_path / "bin/python").chmod(0o755)
    commands = list(build_paste_commands(job_plan, render(job_plan), ["h0", "h1"], "the-job", 2345))
    for node, command in enumerate(commands):
        environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RECORD": str(tmp_path / "record.json")}
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True, timeout=20)
        record = json.loads((tmp_path / "record.json").read_text())
        assert f"--node_rank={node}" in record["argv"]
        assert "--rdzv_endpoint=h0:2345" in record["argv"]
        assert record["env"]["E"] == "it's\n$HOME"


def user_template(folder: Path, text: str) -> JobSpec:
    (folder / "mode").mkdir(parents=True)
    (folder / "mode/torchrun.sh.j2").write_text(text)
    return job("torchrun", templates=str(folder), hyperparameters={"x": "$(id)"})


def test_a_users_template_is_looked_up_first(tmp_path: Path) -> None:
    text = script_of(user_template(tmp_path, "start=(my-launcher {{ job.arguments | sh }})\n"))
    assert "start=(my-launcher '--x=$(id)')" in text
    assert text.startswith("#!/usr/bin/env bash\n# Start script of job job")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start=({{ job.boot_file }})\n", "without the filter `| sh`"),
        ("# fine\nstart=({{ job.arguments[0] }})\n", "without the filter `| sh`"),
        ("start=({{ job.boot_fil | sh }})\n", "boot_fil"),
        ("start=({{ job.boot_file | sh )\n", "torchrun.sh.j2:1"),
        ("{% include 'nowhere.j2' %}", "template `nowhere.j2` does not exist"),
    ],
)
def test_a_users_template_is_held_to_the_same_rule(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        script_of(user_template(tmp_path, text))
    assert message in caught.value.message
    if text.startswith("# fine"):
        assert "torchrun.sh.j2:2" in caught.value.message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("start=({{ job.boot_file }})\n", "add a filter to every value"),
        ("{% include 'nowhere.j2' %}", "correct the name: it is relative to the templates folder"),
        ("{% include '/etc/passwd' %}", "include a template that is inside the templates folder"),
    ],
)
def test_the_hint_fits_the_problem_of_a_template(text: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        script_of(user_template(tmp_path, text))
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "expression",
    [
        "job.__class__.__init__.__globals__['__builtins__']['open'](marker, 'w')",
        "job.rdzv.__init__.__globals__",
        "job.code_dir.parent",
        "job.backend.model_fields",
        "job.name.__class__.__mro__[1].__subclasses__()",
        "(job.name | attr('__class__')).__mro__",
        "'{0.__class__.__mro__}'.format(job)",
        "'%s' | format(job.__init__)",
        "lipsum.__globals__['os'].system('touch ' ~ marker)",
        "cycler.__init__.__globals__.os.system('touch ' ~ marker)",
        "self._TemplateReference__context.environment",
        "job.mounts.__class__",
        "job.update({'name': 'x'})",
        "job.hyperparameters.append(1)",
    ],
)
def test_a_strangers_template_runs_nothing(expression: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    text = f"{{% set marker = '{marker}' %}}\nstart=({{{{ ({expression}) | sh }}}})\n"
    with pytest.raises(SpecError) as caught:
        script_of(user_template(tmp_path / "templates", text))
    assert "torchrun.sh.j2" in caught.value.message
    assert not marker.exists()


@pytest.mark.parametrize("target", ["secret", "../secret", "/etc/hostname"])
def test_a_strangers_template_reads_no_file_outside_of_its_folder(target: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("abc-secret\n")
    job = user_template(tmp_path / "templates", f"start=(x)\n{{% include '{target}' ignore missing %}}\n")
    (tmp_path / "templates" / "secret").symlink_to(tmp_path / "secret")
    try:
        text = script_of(job)
    except SpecError as error:
        text = error.message
    assert "abc-secret" not in text
    assert Path("/etc/hostname").read_text().strip() not in text.splitlines()


def test_a_link_within_the_templates_folder_is_followed(tmp_path: Path) -> None:
    job = user_template(tmp_path, "{% include 'mode/shared.j2' %}\n")
    (tmp_path / "real.j2").write_text("start=(shared)\n")
    (tmp_path / "mode" / "shared.j2").symlink_to("../real.j2")
    assert "start=(shared)" in script_of(job)


def test_the_same_spec_renders_the_same_bytes_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = script_of(load(starter_job("torchrun")).spec)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOBSUBMIT_JOB_ID", "other")
    assert script_of(load(starter_job("torchrun")).spec) == first


@pytest.mark.parametrize(
    ("declared", "as_", "expected"),
    [
        ("parser.add_argument('--checkpoint_dir')", None, ["--checkpoint_dir=/c k"]),
        ('parser.add_argument(\n    "--checkpoint-dir", default=None)', None, ["--checkpoint-dir=/c k"]),
        ("# --checkpoint_dir is not for us", None, []),
        ("# parser.add_argument('--checkpoint_dir')", None, []),
        ("parser.add_argument('--checkpoint-dir', '--checkpoint_dir')", None, ["--checkpoint-dir=/c k"]),
        ("", None, []),
        ("", "hyperparameter", ["--checkpoint_dir=/c k"]),
        ("parser.add_argument('--checkpoint_dir')", "env", []),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_checkpoint_directory_is_an_argument_if_the_boot_file_declares_it(
    mode: str, declared: str, as_: str | None, expected: list[str], tmp_path: Path
) -> None:
    boot(tmp_path)
    (tmp_path / "code/train.py").write_text(declared)
    spec = job(mode, checkpoint_dir={"uri": "kept", **({"as": as_} if as_ else {})}, hyperparameters={"lr": 1})
    (record,) = run_nodes(script_of(spec), tmp_path, 1, JOBSUBMIT_CHECKPOINT_DIR="/c k")
    found = [word for word in record["argv"] if word.startswith("--checkpoint")]
    assert found == expected
    assert "--lr=1" in record["argv"]


def test_a_checkpoint_name_with_a_dash_is_found(tmp_path: Path) -> None:
    boot(tmp_path)
    (tmp_path / "code/train.py").write_text("parser.add_argument('--ckpt_dir-x')")
    spec = job("launch", checkpoint_dir={"uri": "kept", "name": "ckpt-dir-x"})
    (record,) = run_nodes(script_of(spec), tmp_path, 1, JOBSUBMIT_CHECKPOINT_DIR="/c")
    assert record["argv"][-1] == "--ckpt_dir-x=/c"


def test_data_reaches_the_program_as_arguments_and_variables(tmp_path: Path) -> None:
    boot(tmp_path)
    inputs = [{"name": "data_url", "uri": "s3://bucket/x"}, {"name": "DATA", "uri": "s3://bucket/y", "as": "env"}]
    spec = job("torchrun", inputs=inputs, hyperparameters={"lr": 1}, args=["last"])
    paths = {"JOBSUBMIT_INPUT_data_url": "/in put", "JOBSUBMIT_INPUT_DATA": "/d"}
    (record,) = run_nodes(script_of(spec), tmp_path, 1, **paths)
    assert record["argv"][-3:] == ["--data_url=/in put", "--lr=1", "last"]
    assert record["env"]["DATA"] == "/d"
    with pytest.raises(subprocess.CalledProcessError):
        run_nodes(script_of(spec), tmp_path, 1)
