"""The commands: where each one is, what it does, and examples. None of them is loaded here."""

from __future__ import annotations

from typing import NamedTuple

ABOUT = "Submit PyTorch distributed training jobs, find mistakes before you pay for GPUs, and see why a job failed."
BEGIN = "Get started: jobsubmit init demo, then jobsubmit create demo/job.yaml --follow"


class Command(NamedTuple):
    """A command: its file in this folder, its function, a summary, examples, and related commands."""

    file: str
    function: str
    about: str
    examples: tuple[str, ...]
    see_also: tuple[str, ...]

    def epilog(self) -> list[str]:
        """Return the lines after the options in its help."""
        shown = [f"  jobsubmit {example}" for example in self.examples]
        return ["Examples:", *shown, "", f"See also: {', '.join(f'jobsubmit {name}' for name in self.see_also)}"]


GROUPS: dict[str, dict[str, Command]] = {
    "Submit": {
        "create": Command(
            "create",
            "create",
            "Submit a job and follow it.",
            ("create job.yaml --dry-run", "create job.yaml --nodes 2 --set hyperparameters.lr=0.1 --follow"),
            ("validate", "logs", "report"),
        ),
        "run": Command(
            "create",
            "run",
            "Submit a command as a job, without a job file.",
            (
                "run -- torchrun --nproc_per_node=2 train.py --lr 0.1",
                "run --nodes 2 --backend slurm --set backend.gpus_per_node=8 -- torchrun --nproc_per_node=8 train.py",
            ),
            ("init", "create"),
        ),
        "rerun": Command(
            "create",
            "rerun",
            "Submit an earlier job again, exactly as it was.",
            ("rerun my-job --resume", "rerun my-job-abc123 --set hyperparameters.lr=0.1"),
            ("list", "create"),
        ),
    },
    "Watch": {
        "status": Command(
            "status",
            "status",
            "Show the state of a job, and which process failed first.",
            ("status my-job", "status my-job-abc123 -o json"),
            ("describe", "logs", "report"),
        ),
        "logs": Command(
            "logs",
            "logs",
            "Print the output of nodes and ranks in chronological order.",
            ("logs my-job -f", "logs my-job --rank 3 --tail 50", "logs my-job --grep loss --since 10m"),
            ("status", "events"),
        ),
        "metrics": Command(
            "metrics",
            "metrics",
            "Show the curves that a training run prints: loss, learning rate, accuracy.",
            ("metrics my-job", "metrics my-job -o csv > curves.csv", "metrics my-job -f --rank 0"),
            ("logs", "report"),
        ),
        "report": Command(
            "report",
            "report",
            "Show where the time of a job went, its curves, and what it used.",
            ("report my-job --html report.html", "report my-job-abc123 my-job-def456"),
            ("create --profile-sync", "status"),
        ),
        "ui": Command(
            "ui",
            "ui",
            "Show all jobs on a live page: progress, curves, ranks, logs, failures.",
            ("ui", "ui my-job --open"),
            ("list", "report"),
        ),
        "list": Command(
            "list",
            "list_",
            "List the jobs submitted from this machine, newest first.",
            ("list --state FAILED --since 2d", "list -w"),
            ("status", "prune"),
        ),
        "describe": Command(
            "status",
            "describe",
            "Show everything that is known about a job.",
            ("describe my-job", "describe my-job -o json"),
            ("status", "events"),
        ),
        "events": Command(
            "status",
            "events",
            "Print the events of a job with their times: phases, processes, failures, restarts.",
            ("events my-job", "events my-job -o json"),
            ("logs", "report"),
        ),
        "wait": Command(
            "status",
            "wait",
            "Wait until a job ends.",
            ("wait my-job --timeout 2h", "wait my-job --propagate-exit-code"),
            ("status", "cancel"),
        ),
        "cancel": Command(
            "status",
            "cancel",
            "Cancel a job.",
            ("cancel my-job", "cancel my-job --grace 60"),
            ("delete", "rerun"),
        ),
        "delete": Command(
            "list",
            "delete",
            "Delete jobs that have ended, with their logs and records.",
            ("delete my-job-abc123", "delete my-job-abc123 my-job-def456 --force"),
            ("prune", "list"),
        ),
        "prune": Command(
            "list",
            "prune",
            "Delete old jobs that have ended, or empty the cache on SSH hosts.",
            ("prune --older-than 30d --state SUCCEEDED", "prune --hosts gpu1,gpu2"),
            ("delete", "list"),
        ),
    },
    "Before you pay": {
        "validate": Command(
            "create",
            "validate",
            "Check a job file and its code, and report errors.",
            ("validate job.yaml", "validate job.yaml --backend slurm --nodes 4"),
            ("render", "bundle", "doctor"),
        ),
        "render": Command(
            "render",
            "render",
            "Print the start script of a job.",
            ("render --mode torchrun", "render job.yaml --expand --node 1", "render job.yaml --hosts gpu1,gpu2"),
            ("validate", "create --dry-run"),
        ),
        "bundle": Command(
            "bundle",
            "bundle",
            "Show which files of the code directory would be uploaded.",
            ("bundle job.yaml --top 20", "bundle job.yaml --list -o json"),
            ("validate", "upload"),
        ),
        "doctor": Command(
            "doctor",
            "doctor",
            "Test what a submission needs: Python, tools, ports, store, backend.",
            ("doctor", "doctor job.yaml --backend slurm"),
            ("validate", "create"),
        ),
    },
    "Data": {
        "upload": Command(
            "app",
            "upload",
            "Upload a directory, or only what changed in it.",
            ("upload ./code s3://bucket/team/code", "upload ./code s3://bucket/team/code --delete --dry-run"),
            ("download", "bundle"),
        ),
        "download": Command(
            "app",
            "download",
            "Download a directory and verify each file.",
            (
                "download s3://bucket/team/code ./code",
                "download obs://bucket/results . --endpoint-url https://obs.cn-north-4.myhuaweicloud.com",
            ),
            ("upload", "logs --download"),
        ),
    },
    "Platforms": {
        "flavors": Command(
            "modelarts",
            "flavors",
            "List the machine types that ModelArts offers for training jobs.",
            ("flavors", "flavors job.yaml --set backend.region=cn-north-4"),
            ("engines", "validate"),
        ),
        "engines": Command(
            "modelarts",
            "engines",
            "List the preset frameworks that ModelArts offers for mode spawn.",
            ("engines", "engines job.yaml -o json"),
            ("flavors", "validate"),
        ),
        "import": Command(
            "import_",
            "import_",
            "Convert a job of ModelArts' own tools into a job file.",
            ("import job.json > job.yaml", "import ma-cli.yaml > job.yaml && jobsubmit validate"),
            ("init", "validate"),
        ),
    },
    "Set up": {
        "init": Command(
            "init",
            "init",
            "Write a job.yaml from your code, a command line or a sample.",
            (
                "init demo && jobsubmit create demo/job.yaml --follow",
                'init --from "torchrun --nnodes=2 --nproc_per_node=8 train.py --lr 0.1"',
                "init --sample manual_all_reduce try",
            ),
            ("run", "validate", "create"),
        ),
        "help": Command(
            "topics",
            "help_",
            "Explain a topic: the job file, exit codes, environment variables, backends.",
            ("help exit-codes", "help restarts", "help backend.slurm.partition"),
            ("schema", "doctor"),
        ),
        "docs": Command(
            "docs",
            "docs",
            "Show where the documentation is, or print the page for programs and assistants.",
            ("docs", "docs --for-assistants"),
            ("help", "schema"),
        ),
        "schema": Command(
            "schema",
            "schema",
            "Print the JSON Schema of a job file, or of a command's JSON output.",
            ("schema > job.schema.json", "schema --output status"),
            ("init", "validate"),
        ),
    },
}
ALIASES = {"submit": "create", "ls": "list", "stop": "cancel"}
COMMANDS: dict[str, Command] = {name: command for group in GROUPS.values() for name, command in group.items()}
COMMANDS |= {alias: COMMANDS[name] for alias, name in ALIASES.items()}
