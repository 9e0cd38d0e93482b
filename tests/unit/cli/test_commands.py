"""The command line: what it prints where, what it does not touch, and what it does not load."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import Command

from jobsubmit.cli.commands import ALIASES, COMMANDS as ALL, GROUPS
from jobsubmit.common.resources import SAMPLE_CODE, starter_job

RECORDS = Path(__file__).parents[2] / "corpus/records"
MODES = ("spawn", "launch", "torchrun")
COMMANDS = [
    "create",
    "render",
    "validate",
    "upload",
    "download",
    "status",
    "logs",
    "list",
    "wait",
    "cancel",
    "init",
    "schema",
]

# Fails when a socket is made, and prints what was loaded at the end.
GUARD = """
import sys
def guard(event, args):
    if event.startswith("socket.") and event != "socket.gethostname":
        raise SystemExit("a socket was used: " + event)
sys.addaudithook(guard)
sys.argv[0] = "jobsubmit"
from jobsubmit.cli.main import main
try:
    main()
finally:
    print("LOADED", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def guarded(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", "-c", GUARD, *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=60
    )


def snapshot(root: Path) -> dict[str, tuple[int, str]]:
    return {
        str(file): (file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "")
        for file in root.rglob("*")
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("store", ["s3://some-bucket/x", None])
def test_render_and_dry_run_touch_nothing(mode: str, store: str | None, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    code_before = snapshot(SAMPLE_CODE)
    rendered = guarded("render", starter_job(mode), cwd=tmp_path)
    flags = ["--store", store] if store else []
    dry = guarded("create", starter_job(mode), "--dry-run", "-o", "json", *flags, cwd=tmp_path)
    for done in (rendered, dry):
        assert done.returncode == 0, done.stderr
        loaded = done.stderr.rpartition("LOADED")[2].split()
        assert not {"boto3", "botocore", "torch", "kubernetes"} & set(loaded)
    assert snapshot(tmp_path) == before
    assert snapshot(SAMPLE_CODE) == code_before
    document = json.loads(dry.stdout)
    assert document["script"]["text"] == rendered.stdout
    assert document["script"]["sha256"] == hashlib.sha256(rendered.stdout.encode()).hexdigest()


def test_dry_run_prints_bundle_script_and_request(jobsubmit: Command) -> None:
    flags = (starter_job("torchrun"), "--job-id", "fixed", "-e", "A=b c")
    done = jobsubmit("create", "--dryrun", *flags)
    assert '"torch_ddp.py"' in done.stdout
    assert jobsubmit("render", starter_job("torchrun")).stdout in done.stdout
    request = json.loads(done.stdout.rpartition("request local.json\n")[2].partition("# ── digest")[0])
    assert request["job_id"] == "fixed"
    assert request["env"] == {"A": "b c"}
    assert (
        jobsubmit("create", starter_job("torchrun"), "--dry-run", "--job-id", "fixed", "-e", "A=b c").stdout
        == done.stdout
    )


@pytest.mark.parametrize("args", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_is_quick_to_load_and_tells_what_to_type_next(args: list[str], tmp_path: Path) -> None:
    done = guarded(*args, cwd=tmp_path)
    assert done.returncode == 0
    loaded = done.stderr.rpartition("LOADED")[2].split()
    assert not {"boto3", "botocore", "torch", "kubernetes"} & set(loaded)
    assert "See also: jobsubmit" in done.stdout or "Get started: jobsubmit" in done.stdout


def test_render_without_a_file_takes_job_yaml_then_the_starter(jobsubmit: Command, tmp_path: Path) -> None:
    starter = jobsubmit("render", "--mode", "launch").stdout
    assert starter == jobsubmit("render", starter_job("launch")).stdout
    assert "give a job file, or a mode" in jobsubmit("render", code=2).stderr
    (tmp_path / "job.yaml").write_text("name: mine\nmode: launch\ncode_dir: nowhere\nboot_file: t.py\n")
    assert "job mine" in jobsubmit("render").stdout


def test_render_in_another_mode_names_what_it_drops(jobsubmit: Command) -> None:
    done = jobsubmit("render", starter_job("torchrun"), "--mode", "spawn")
    assert "mode spawn" in done.stdout
    assert "torchrun.yaml:5  image: dropped, mode spawn does not use it" in done.stderr


def test_render_for_hosts_prints_a_command_per_machine(jobsubmit: Command) -> None:
    commands = jobsubmit.json("render", starter_job("torchrun"), "--hosts", "gpu1,gpu2,gpu3")
    assert [command["host"] for command in commands] == ["gpu1", "gpu2", "gpu3"]
    script = jobsubmit("render", starter_job("torchrun"), "--nodes", "3").stdout
    ids = set()
    for node, command in enumerate(commands):
        assert f"VC_TASK_INDEX={node}" in command["command"]
        assert script in command["command"]
        ids.add(command["command"].partition("JOBSUBMIT_JOB_ID=")[2].split()[0])
    assert len(ids) == 1
    assert "paste on gpu2" in jobsubmit("render", starter_job("torchrun"), "--hosts", "gpu1,gpu2").stdout
    assert "names or addresses" in jobsubmit("render", starter_job("torchrun"), "--hosts", "a,,b", code=2).stderr


def test_errors_are_json_for_programs(jobsubmit: Command) -> None:
    error = jobsubmit.json("status", "nobody", code=102)
    assert set(error) == {"code", "message", "hint", "where"}
    assert error["code"] == 102
    error = jobsubmit.json("validate", "nowhere.yaml", code=2)
    assert error["where"] == "nowhere.yaml"
    assert "--nope" in jobsubmit.json("validate", "--nope", code=2)["message"]


def test_an_error_of_ours_has_a_traceback_only_with_debug(jobsubmit: Command) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jobsubmit", "status", "nobody", "--debug"], capture_output=True, text=True, timeout=30
    )
    assert "Traceback" in done.stderr
    assert "Traceback" not in jobsubmit("status", "nobody", code=102).stderr


def test_validate_finds_what_the_code_lacks(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/other.py").write_text("pass\n")
    (tmp_path / "code/broken.py").write_text("def f(:\n")
    (tmp_path / "code/hidden.py").write_text("pass\n")
    (tmp_path / "code/.jobignore").write_text("hidden.py\n")
    text = "name: a\nmode: launch\ncode_dir: code\nboot_file: {}\n"
    (tmp_path / "job.yaml").write_text(text.format("x.py").replace("code_dir: code", "code_dir: src"))
    assert "job.yaml:3  code_dir: " in jobsubmit("validate", code=2).stderr
    for boot, message in (
        ("nowhere.py", "job.yaml:4  boot_file: nowhere.py is not in"),
        ("nowhere.py", "such as broken.py, other.py"),
        ("broken.py", "broken.py:1  is not valid Python"),
        ("hidden.py", "hidden.py is ignored by .jobignore"),
    ):
        (tmp_path / "job.yaml").write_text(text.format(boot))
        assert message in jobsubmit("validate", code=3).stderr
        assert message in jobsubmit("create", "--dry-run", code=3).stderr
    (tmp_path / "job.yaml").write_text(text.format("other.py"))
    done = jobsubmit("validate")
    assert "job.yaml is valid" in done.stdout
    assert jobsubmit.json("validate")["valid"] is True


def test_what_the_backend_ignores_is_said_once(jobsubmit: Command) -> None:
    done = jobsubmit("validate", starter_job("torchrun"))
    assert done.stderr.count("image: ignored by the local backend") == 1


@pytest.mark.parametrize("mode", MODES)
def test_init_writes_a_job_that_is_valid(mode: str, jobsubmit: Command, tmp_path: Path) -> None:
    assert jobsubmit("init", "demo", "--mode", mode).stdout == "demo/job.yaml\n"
    jobsubmit("validate", "demo/job.yaml")
    assert "already exists" in jobsubmit("init", "demo", code=2).stderr
    assert jobsubmit("render", "demo/job.yaml").stdout == jobsubmit("render", starter_job(mode)).stdout


def test_init_keeps_the_users_own_code(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/mine.py").write_text("pass\n")
    jobsubmit("init", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["code"]
    jobsubmit("init", "--with-code")
    assert (tmp_path / "code/mine.py").read_text() == "pass\n"
    assert jobsubmit.json("validate", "job.yaml")["valid"]
    (tmp_path / "code/torch_ddp.py").write_text("mine, too\n")
    (tmp_path / "job.yaml").unlink()
    assert "already exists, and differs from the sample" in jobsubmit("init", "--with-code", code=2).stderr


def test_schema_is_json(jobsubmit: Command) -> None:
    assert json.loads(jobsubmit("schema").stdout)["title"] == "jobsubmit job file"


def test_the_configuration_file_gives_defaults(
    jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    monkeypatch.setenv("JOBSUBMIT_CONFIG", str(config))
    config.write_text("store: {uri: s3://ours/jobs, endpoint_url: http://127.0.0.1:9, profile: work}\n")
    shown = jobsubmit.json("create", starter_job("torchrun"), "--dry-run")
    assert shown["code"]["uri"].startswith("s3://ours/jobs/ddp-toy/")
    shown = jobsubmit.json("create", starter_job("torchrun"), "--dry-run", "--store", "here")
    assert shown["code"]["uri"].startswith(str(tmp_path / "here"))
    config.write_text("store: {uri: s3://ours}\nbackends: {}\n")
    assert f"{config}:2  backends: is not a field; did you mean `backend`" in jobsubmit("list", code=2).stderr


def test_no_jobs_yet(jobsubmit: Command) -> None:
    assert "no jobs yet" in jobsubmit("list").stderr
    assert jobsubmit.json("list") == []


def test_upload_of_a_directory_to_a_folder(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("1\n")
    sent = jobsubmit.json("upload", "src", "out/code")
    assert sent["files"] == 1
    unchanged = [jobsubmit.json("upload", "src", place) for place in ("out/code", str(tmp_path / "out/code"))]
    assert [(done["files"], done["skipped"], done["digest"]) for done in unchanged] == [(0, 1, sent["digest"])] * 2
    (tmp_path / "src/a.py").write_text("2\n")
    assert jobsubmit.json("upload", "src", "out/code")["files"] == 1
    assert (tmp_path / "out/code/a.py").read_text() == "2\n"
    assert "must name a folder in the bucket" in jobsubmit("upload", "src", "s3://bucket", code=2).stderr
    assert "does not exist" in jobsubmit("upload", "nowhere", "out/x", code=2).stderr


def test_upload_refuses_what_is_no_store(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").touch()
    assert "unknown scheme `gs://`" in jobsubmit("upload", "src", "gs://bucket/code", code=2).stderr
    assert (
        "a folder takes no server options"
        in jobsubmit("upload", "src", "out", "--endpoint-url", "http://x", code=2).stderr
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["src"]


def test_a_state_directory_that_cannot_be_written(jobsubmit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBSUBMIT_STATE_DIR", "/dev/null/x")
    done = jobsubmit("create", starter_job("spawn"), "--store", "here", code=5)
    assert "/dev/null/x" in done.stderr
    assert "JOBSUBMIT_STATE_DIR" in done.stderr


def test_a_terminal_that_cannot_show_a_sign_does_not_hide_the_exit_code(tmp_path: Path) -> None:
    done = Command(tmp_path)(
        "create", starter_job("spawn"), "--set", "boot_file=日.py", code=3, env={"PYTHONIOENCODING": "ascii"}
    )
    assert "is not in" in done.stderr


def test_render_needs_no_configuration(jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("nonsense: 1\n")
    monkeypatch.setenv("JOBSUBMIT_CONFIG", str(tmp_path / "config.yaml"))
    jobsubmit("render", starter_job("torchrun"))
    monkeypatch.setenv("JOBSUBMIT_CONFIG", "")
    jobsubmit("list")


@pytest.mark.parametrize("command", ["status", "cancel", "wait", "logs"])
def test_an_empty_name_is_no_job(command: str, jobsubmit: Command) -> None:
    jobsubmit(command, "", code=102)


def test_a_dry_run_checks_the_id_too(jobsubmit: Command) -> None:
    assert (
        "must be at most 80 letters"
        in jobsubmit("create", starter_job("spawn"), "--dry-run", "--job-id", "../x", code=2).stderr
    )


def test_without_a_command_it_shows_what_there_is(jobsubmit: Command) -> None:
    done = jobsubmit()
    assert "create" in done.stdout
    assert done.stderr == ""


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    for name, (file, function, about, *_) in ALL.items():
        command = getattr(importlib.import_module(f"jobsubmit.cli.{file}"), function)
        assert (inspect.getdoc(command) or "").split("\n\n")[0].replace("\n", " ") == about, name


def test_what_is_only_shown_is_not_loaded() -> None:
    code = "import sys; from jobsubmit.cli.help import show_help; show_help(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for module in ("typer", "pydantic", "ruamel.yaml", "jinja2", "rich", "boto3", "torch", "jobsubmit.spec"):
        assert module not in loaded


@pytest.mark.parametrize("name", sorted({*ALL} - {"upload", "download"}))
def test_the_help_of_a_command_loads_nothing_of_what_it_does(name: str) -> None:
    loaded = modules_of(name, "--help")
    assert not loaded & {"pydantic", "jinja2", "ruamel.yaml", "rich", "obstore", "botocore"}
    assert not loaded & {"jobsubmit.spec.job_spec", "jobsubmit.check.run", "jobsubmit.bundle.model"}


def test_the_list_loads_no_reader_of_metrics() -> None:
    assert not modules_of("list") & {"jobsubmit.metrics.reader", "jobsubmit.spec.job_spec", "jobsubmit.check.run"}


@pytest.mark.parametrize("words", [["list", "--name", "a*"], ["status"], ["logs"], ["metrics"], ["report"]])
def test_a_job_is_shown_without_pydantic(words: list[str], tmp_path: Path) -> None:
    state = shutil.copytree(next(RECORDS.glob("*/local")), tmp_path / "state")
    which = [] if words[0] == "list" else ["failed-aaaaaa"]
    assert "pydantic" not in modules_of(*words, *which, state=state)


def test_what_is_no_plain_text_is_still_checked(jobsubmit: Command) -> None:
    for words, problem in (
        (("list", "-n", "-1"), "greater than or equal to 0"),
        (("list", "-o", "xml"), "'xml' is not one of 'text', 'json'"),
        (("list", "--state", "gone"), "'gone' is not one of"),
        (("status",), "Missing argument 'JOB'"),
        (("render", "--mode", "mpi"), "'mpi' is not one of"),
    ):
        assert problem in jobsubmit(*words, code=2).stderr


def test_a_script_is_rendered_without_the_checks(tmp_path: Path) -> None:
    loaded = modules_of("render", str(starter_job("torchrun")))
    assert not loaded & {"rich", "obstore", "botocore", "jobsubmit.check.run", "jobsubmit.jobs.prepare"}
    assert not loaded & {f"jobsubmit.backends.{kind}.spec" for kind in ("slurm", "volcano", "modelarts")}


def test_only_the_models_that_a_job_needs_are_built() -> None:
    code = (
        "import jobsubmit; from jobsubmit.spec.job_spec import SPECS; "
        f"jobsubmit.load({str(starter_job('torchrun'))!r}); "
        "print(*(mode for mode, spec in SPECS.items() if spec.__pydantic_complete__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torchrun"]


def modules_of(*words: str, state: Path | None = None) -> set[str]:
    """Return what a command has loaded when it ends, in a pipe."""
    environment = {**os.environ, **({"JOBSUBMIT_STATE_DIR": str(state)} if state else {})}
    code = "import sys; from jobsubmit.cli import app\ntry: app.run(sys.argv[1:])\nfinally: print('', *sys.modules)"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("\n ")[2].split())


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_list_of_commands_is_in_groups_and_names_each_once(words: list[str], jobsubmit: Command) -> None:
    shown = jobsubmit(*words).stdout
    for group, commands in GROUPS.items():
        section = shown.partition(f"\n{group}:\n")[2].partition("\n\n")[0]
        names = [line.split()[0].rstrip(",") for line in section.splitlines()]
        assert names == list(commands)
    for alias, name in ALIASES.items():
        assert f"  {name}, {alias} " in shown


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_help_ends_with_examples_and_related_commands(name: str, jobsubmit: Command) -> None:
    examples, see_also = ALL[name].examples, ALL[name].see_also
    assert len(examples) >= 2
    assert all(related.partition(" ")[0] in ALL for related in see_also)
    lines = [line.strip() for line in jobsubmit(name, "--help").stdout.splitlines()]
    assert all(f"jobsubmit {example}" in lines for example in examples)
    assert lines[-1] == f"See also: {', '.join(f'jobsubmit {related}' for related in see_also)}"


def test_help_explains_topics_fields_and_exit_codes(jobsubmit: Command) -> None:
    topics = [line.split()[0] for line in jobsubmit("help").stdout.partition("\n\n")[0].splitlines()[1:]]
    assert topics == ["job-file", "backends", "modes", "environment", "exit-codes"]
    job_file = jobsubmit("help", "job-file").stdout.splitlines()
    for fields in jobsubmit.json("schema")["$defs"]["TorchrunSpec"]["properties"]:
        assert f"  {fields}" in job_file
    assert "stopped waiting" in jobsubmit("help", "101").stdout
    assert "MA_NUM_HOSTS" in jobsubmit("help", "environment").stdout
    assert "Pause before the first restart" in jobsubmit("help", "restarts").stdout
    for spelling in ("backend.slurm.partition", "backend.partition", "slurm.partition", "partition"):
        assert jobsubmit("help", spelling).stdout.splitlines()[0] == "  backend.slurm.partition"
    assert "  partition" in jobsubmit("help", "backends").stdout.splitlines()
    assert jobsubmit("help", "wait").stdout == jobsubmit("wait", "--help").stdout
    assert "did you mean `restarts`?" in jobsubmit("help", "restart", code=2).stderr


@pytest.mark.parametrize("option", [("--backend", "slurm"), ("--store", "s3://a/b"), ("--set", "name=a")])
def test_options_of_doctor_need_a_job_file(option: tuple[str, str], jobsubmit: Command) -> None:
    refused = jobsubmit("doctor", *option, code=2).stderr
    assert refused.startswith(f"error: {option[0]}")
    assert "changes a job file, and there is no job.yaml here" in refused


def test_only_what_a_dry_run_showed_is_submitted(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('hello')\n")
    (tmp_path / "job.yaml").write_text("name: seen\nmode: spawn\ncode_dir: code\nboot_file: train.py\n")
    dry = ("create", "job.yaml", "--dry-run")
    digest = jobsubmit.json(*dry)["digest"]
    assert jobsubmit.json(*dry)["digest"] == digest  # whatever the job's id
    assert f"# ── digest {digest};" in jobsubmit(*dry, "--expect", digest[:12]).stdout
    for change in (["--set", "env.X=1"], ["--nodes", "2"], ["--set", "timeout=60"], ["--fault", "delay node 0 by 1s"]):
        refused = jobsubmit(*dry, "--expect", digest, *change, code=3).stderr
        assert "this submission has the digest" in refused
        assert digest not in refused.partition("has the digest")[2]
    assert "first 12 characters" in jobsubmit(*dry, "--expect", digest[:11], code=2).stderr
    (tmp_path / "code/train.py").write_text("print('other')\n")
    jobsubmit(*dry, "--expect", digest, code=3)


def test_words_after_two_dashes_are_no_options_of_the_program(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(
        "import argparse, os\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--module', required=True)\n"
        "parser.add_argument('rest', nargs=argparse.REMAINDER)\n"
        "print(parser.parse_args(), os.environ['NODE_RANK'])\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: own\ncode_dir: .\ncommand: python start.py --module tasks --\nargs: [--steps, 6, --noise=0.2]\n"
    )
    assert "does not accept" not in jobsubmit("validate").stdout


def test_a_command_that_needs_a_launcher_gets_a_hint_that_starts_one(jobsubmit: Command, tmp_path: Path) -> None:
    """`mode: torchrun` beside `command` would only silence the check: the command replaces the launcher."""
    (tmp_path / "train.py").write_text("import os\nimport torch.distributed as dist\nprint(int(os.environ['RANK']))\n")
    (tmp_path / "job.yaml").write_text(
        "name: own\ncode_dir: .\ncommand: python train.py\nresources: {nodes: 2, nproc_per_node: 2}\n"
    )
    said = jobsubmit("validate", code=3)
    assert "RANK is read from the environment" in said.stdout + said.stderr
    assert "jobsubmit run -- torchrun --nproc_per_node=N FILE" in said.stdout + said.stderr
    assert "use mode: torchrun, or" not in said.stdout + said.stderr


def test_code_that_was_judged_is_not_judged_again(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(
        "import os, torch.distributed as dist\nos.environ['MASTER_PORT'] = '1'\ndist.init_process_group('gloo')\n"
    )
    (tmp_path / "job.yaml").write_text("name: a\nmode: torchrun\ncode_dir: code\nboot_file: train.py\n")
    state = tmp_path / "state"

    def kept() -> list[str]:
        return sorted(path.name for path in state.rglob("findings/*"))

    jobsubmit("create", "job.yaml", env={"JOBSUBMIT_STATE_DIR": str(state)}, code=3)
    assert kept() == []
    jobsubmit("validate", "job.yaml", env={"JOBSUBMIT_STATE_DIR": str(state)}, code=3)
    (found,) = kept()
    jobsubmit("validate", "job.yaml", env={"JOBSUBMIT_STATE_DIR": str(state)}, code=3)
    assert kept() == [found]
