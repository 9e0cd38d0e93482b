"""Every bad job file gives one clear error with its line, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from jobsubmit.cli.main import main
from jobsubmit.errors import SpecError
from jobsubmit.spec.json_schema import json_schema
from jobsubmit.spec.loader import load

GOOD = """\
name: ok
mode: torchrun
code_dir: .
boot_file: train.py
"""
SPAWN = GOOD.replace("torchrun", "spawn")

# (text, the line of the problem or None, what the message must say)
BAD: dict[str, tuple[str | bytes, int | None, str]] = {
    "empty file": ("", None, "is empty"),
    "only a comment": ("# nothing\n", None, "is empty"),
    "a list": ("- name: x\n", 1, "must be a mapping"),
    "a word": ("hello\n", 1, "must be a mapping"),
    "a number": ("42\n", 1, "must be a mapping"),
    "tab indentation": (GOOD + "resources:\n\tnodes: 2\n", 6, "is not YAML"),
    "unclosed bracket": (GOOD + "args: [1, 2\n", 5, "is not YAML"),
    "a line too far to the left": ("name: ok\nhyperparameters:\n  lr: 0.1\n wd: 0.2\n", 4, "is not YAML"),
    "a line too far to the right": (GOOD + "env:\n  A: a\n   B: b\n", 7, "is not YAML"),
    "too many hosts": (
        GOOD + f"backend: {{kind: ssh, hosts: [{', '.join(f'h{n}' for n in range(65))}]}}\n",
        5,
        "at most 64 entries",
    ),
    "ssh without hosts": (GOOD + "backend: {kind: ssh}\n", 5, "backend.hosts: is required, like `[gpu1, gpu2]`"),
    "secrets as a list": (GOOD + "secrets: [WANDB]\n", 5, "must be a mapping, like `{WANDB_API_KEY: "),
    "unclosed quote": ('name: "ok\nmode: torchrun\n', None, "is not YAML"),
    "colon in plain text": (GOOD + "image: a: b\n", 5, "is not YAML"),
    "bad escape": (GOOD + 'image: "\\q"\n', 5, "is not YAML"),
    "two documents": (GOOD + "---\nname: second\n", 5, "is not YAML"),
    "unknown alias": (GOOD + "env: *base\n", 5, "undefined alias"),
    "alias of itself": (GOOD + "args: &a [*a]\n", 5, "contains itself"),
    "alias bomb": (
        GOOD
        + "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{n}: &{n} [{','.join(['*' + p] * 10)}]\n" for p, n in zip("abcdef", "bcdefg", strict=True)),
        None,
        "values (aliases expanded)",
    ),
    "nested too deep": (GOOD + "args: " + "[" * 60 + "]" * 60 + "\n", 5, "nested deeper"),
    "nested absurdly deep": ("[" * 20000, None, "nested deeper"),
    "not UTF-8": (GOOD.encode() + b"image: caf\xe9\n", 5, "is not UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), 1, "is not UTF-8"),
    "control character": (GOOD + "image: a\x00b\n", 5, "is not YAML"),
    "too large": ("#" * (1 << 20) + "\n", None, "is larger than"),
    "duplicate key": (GOOD + "name: again\n", 5, "is given twice (first at"),
    "duplicate nested key": (GOOD + "resources:\n  nodes: 1\n  nodes: 2\n", 7, "is given twice"),
    "merge key": (GOOD + "x: &x {nodes: 1}\nresources:\n  <<: *x\n", 7, "merge keys"),
    "list as key": (GOOD + "? [1]\n: 2\n", 5, "must be plain text"),
    "unknown tag": (GOOD + "image: !custom x\n", 5, "tag"),
    "YAML 1.1 no": (GOOD + "hyperparameters:\n  shuffle: no\n", 6, "`no` is true or false to some"),
    "YAML 1.1 on": (GOOD + "hyperparameters:\n  amp: on\n", 6, "`on` is true or false to some"),
    "YAML 1.1 Yes": (GOOD + "env: {X: Yes}\n", 5, "`Yes` is true or false to some"),
    "restarts as text": (GOOD + "restarts: many\n", 5, "must be a number, or {max, on, backoff}"),
    "the other name of `as`": (GOOD + "inputs: [{name: PATH, uri: ., passed_as: env}]\n", 5, "is not a field"),
    "more nodes than there are": (GOOD + "resources: {nodes: 100001}\n", 5, "must be ≤ 100,000"),
    "digits of another script": (GOOD + "timeout: \uff15m\n", 5, "must be a whole number of seconds"),
    "ranks of two nodes": (SPAWN + 'resources: {nodes: "2:2"}\nhyperparameters: {rank: 0}\n', 6, "same for every node"),
    "negative restarts": (GOOD + "restarts: -1\n", 5, "must be ≥ 0"),
    "restarts without max": (GOOD + "restarts: {backoff: 5s}\n", 5, "is required"),
    "unknown restart field": (GOOD + "restarts: {max: 1, bakoff: 1}\n", 5, "did you mean `backoff`"),
    "unknown restart condition": (GOOD + "restarts: {max: 1, on: [always]}\n", 5, "must be one of failure"),
    "checkpoint_dir as a number": (GOOD + "checkpoint_dir: 5\n", 5, "must be a path, or {uri, as, name}"),
    "no restart condition": (GOOD + "restarts: {max: 1, on: []}\n", 5, "at least one condition"),
    "input as the shell's path": (GOOD + "inputs: [{name: PATH, uri: b, as: env}]\n", 5, "the shell's own"),
    "input as world_size": (SPAWN + "inputs: [{name: world_size, uri: b}]\n", 5, "the platform passes --world_size"),
    "restart at exit 0": (GOOD + 'restarts: {max: 1, on: ["exit:0"]}\n', 5, "1 to 255"),
    "bad pattern": (GOOD + 'restarts: {max: 1, on: ["log:/(/"]}\n', 5, "not a regular expression"),
    "slow pattern": (GOOD + 'restarts: {max: 1, on: ["log:/(a+)+b/"]}\n', 5, "exponential time"),
    "slow pattern of a metric": (GOOD + "metrics: {loss: '(a+)+b'}\n", 5, "exponential time"),
    "log without slashes": (GOOD + 'restarts: {max: 1, on: ["log:x"]}\n', 5, "must look like `log:/"),
    "hang_after as text": (GOOD + "hang_after: soon\n", 5, "whole number of seconds"),
    "negative hang_after": (GOOD + "hang_after: -5\n", 5, "must not be negative"),
    "timeout of nothing": (GOOD + "timeout: 0\n", 5, "at least 1 second"),
    "inputs as mapping": (GOOD + "inputs: {a: b}\n", 5, "must be a list"),
    "input without uri": (GOOD + "inputs: [{name: a}]\n", 5, "inputs[0].uri: is required"),
    "input with unknown field": (GOOD + "inputs: [{name: a, uri: b, url: c}]\n", 5, "did you mean `uri`"),
    "input passed oddly": (GOOD + "inputs: [{name: a, uri: b, as: file}]\n", 5, "must be `hyperparameter` or `env`"),
    "input name with a dot": (GOOD + "inputs: [{name: a.b, uri: b}]\n", 5, "letters, digits, `_` and `-`"),
    "variable with a dash": (
        GOOD + "inputs: [{name: a-b, uri: b, as: env}]\n",
        5,
        "cannot be called `a-b`: write `a_b`",
    ),
    "two outputs that differ in a dash": (
        GOOD + "outputs: [{name: a-b, uri: b}, {name: a_b, uri: c}]\n",
        5,
        "`a_b` is given twice",
    ),
    "input as reserved variable": (GOOD + "inputs: [{name: RANK, uri: b, as: env}]\n", 5, "set by the launcher"),
    "two inputs of one name": (
        GOOD + "inputs:\n- {name: a, uri: b, as: env}\n- {name: a, uri: c}\n",
        7,
        "`a` is given twice",
    ),
    "input named as a hyperparameter": (
        GOOD + "hyperparameters: {data: 1}\ninputs: [{name: data, uri: b}]\n",
        6,
        "`data` is given twice",
    ),
    "bucketless output": (GOOD + "outputs: [{name: a, uri: s3://x}]\n", 5, "must name a bucket"),
    "unknown checkpoint field": (GOOD + "checkpoint_dir: {uri: x, nmae: y}\n", 5, "did you mean `name`"),
    "checkpoint name as list": (GOOD + "checkpoint_dir: {uri: x, name: [a]}\n", 5, "must be text"),
    "checkpoint beside hyperparameter": (
        GOOD + "hyperparameters: {checkpoint_dir: /x}\ncheckpoint_dir: y\n",
        6,
        "`checkpoint_dir` is given twice",
    ),
    "requirements outside": (GOOD + "requirements: ../r.txt\n", 5, "inside code_dir"),
    "elastic the wrong way round": (GOOD + 'resources: {nodes: "3:1"}\n', 5, "1 ≤ fewest ≤ most"),
    "elastic from nothing": (GOOD + 'resources: {nodes: "0:2"}\n', 5, "1 ≤ fewest ≤ most"),
    "elastic in spawn mode": (SPAWN + 'resources: {nodes: "1:2"}\n', 5, "only torchrun can lose and gain nodes"),
    "elastic and static": (GOOD + 'rdzv_backend: static\nresources: {nodes: "1:2"}\n', 5, "must be c10d"),
    "elastic with torch 2.1": (GOOD + 'torch_version: "2.1"\nresources: {nodes: "1:2"}\n', 6, "cannot be elastic"),
    "date": (GOOD + "hyperparameters:\n  day: 2026-01-31\n", 6, "dates are not supported"),
    "timestamp": (GOOD + "hyperparameters:\n  at: 2026-01-31T10:00:00Z\n", 6, "dates are not supported"),
    "big int": (GOOD + "hyperparameters:\n  seed: 99999999999999999999\n", 6, "too big for a 64-bit"),
    "absurdly big int": (GOOD + "hyperparameters:\n  seed: " + "9" * 6000 + "\n", 6, "too big for a 64-bit"),
    "YAML 1.1 directive": ("%YAML 1.1\n---\n" + GOOD + "hyperparameters: {amp: yes}\n", 7, "only some YAML readers"),
    "a tag that changes the meaning": (GOOD + "hyperparameters: {amp: !!bool yes}\n", 5, "only some YAML readers"),
    "half a hex number": (GOOD + "hyperparameters: {a: 0x_}\n", 5, "not a finite number"),
    "half a character": (GOOD + 'hyperparameters: {a: "\\ud800"}\n', 5, "lone surrogate"),
    "half a character in plain text": (GOOD + 'image: "\\ud800"\n', 5, "lone surrogate"),
    "boot_file is a folder": (GOOD.replace("train.py", "."), 4, "inside code_dir"),
    "code_dir climbs out": (GOOD.replace("code_dir: .", "code_dir: s3://bucket/a/.."), 3, "a folder named"),
    "endpoint is broken": (
        GOOD + 'store: {uri: "s3://bucket", endpoint_url: "http://[oops"}\n',
        5,
        "must be an address",
    ),
    "env of our script": (GOOD + "env: {jobsubmit_code: x}\n", 5, "reserved"),
    "leading zero": (GOOD + "hyperparameters:\n  fold: 007\n", 6, "starts with a zero"),
    "infinity": (GOOD + "hyperparameters:\n  lr: .inf\n", 6, "not a finite number"),
    "not a number": (GOOD + "hyperparameters:\n  lr: .nan\n", 6, "not a finite number"),
    "overflowing float": (GOOD + "hyperparameters:\n  lr: 1e999\n", 6, "not a finite number"),
    "missing name": (GOOD.replace("name: ok\n", ""), 1, "name: is required"),
    "missing mode": (GOOD.replace("mode: torchrun\n", ""), 1, "mode: is required"),
    "missing code_dir": (GOOD.replace("code_dir: .\n", ""), 1, "code_dir: is required"),
    "nothing to start": (GOOD.replace("boot_file: train.py\n", ""), 1, "boot_file: is required"),
    "spawn without boot_file": (SPAWN.replace("boot_file: train.py\n", ""), 1, "boot_file: is required"),
    "boot_file and command": (GOOD + "command: [bash, run.sh]\n", 5, "cannot be combined with `boot_file`"),
    "misspelled mode": (GOOD.replace("torchrun", "torch_run"), 2, "did you mean `torchrun`"),
    "mode is null": (GOOD.replace("torchrun", ""), 2, "must be one of"),
    "mode is a list": (GOOD.replace("torchrun", "[torchrun]"), 2, "must be one of"),
    "misspelled field": (GOOD + "hyperparamters: {lr: 1}\n", 5, "did you mean `hyperparameters`"),
    "misspelled nested field": (GOOD + "resources:\n  node: 2\n", 6, "did you mean `nodes`"),
    "unknown field": (GOOD + "zzz: 1\n", 5, "is not a field"),
    "nodes at the top": (GOOD + "nodes: 2\n", 5, "did you mean `resources.nodes`"),
    "image in spawn": (SPAWN + "image: x\n", 5, "is a field of the modes launch and torchrun only"),
    "args in spawn": (SPAWN + "args: [x]\n", 5, "is a field of the modes launch and torchrun only"),
    "framework in torchrun": (GOOD + "framework: {name: PyTorch, version: x}\n", 5, "is a field of mode spawn only"),
    "rdzv_backend in launch": (
        GOOD.replace("torchrun", "launch") + "rdzv_backend: c10d\n",
        5,
        "is a field of mode torchrun only",
    ),
    "unknown rdzv_backend": (GOOD + "rdzv_backend: etcd\n", 5, "`static` or `c10d`"),
    "name with a space": (GOOD.replace("ok", "my job"), 1, "letters, digits"),
    "name too long": (GOOD.replace("ok", "x" * 65), 1, "1 to 64"),
    "name with a slash": (GOOD.replace("ok", "a/b"), 1, "letters, digits"),
    "name starts with a dash": (GOOD.replace("ok", "-a"), 1, "not starting with `-`"),
    "GPUs as a field": (GOOD + "gpus: 8\n", 5, "set the processes per node with `resources.nproc_per_node`"),
    "GPUs of resources": (GOOD + "resources: {gpus: 8}\n", 5, "request GPUs with the backend's own field"),
    "a name that is like no field": (GOOD + "conda: env\n", 5, "known fields: "),
    "requirements as a list": (GOOD + "requirements: [numpy]\n", 5, "write it without brackets"),
    "backend as a word": (GOOD + "backend: slurm\n", 5, "must be a mapping, like `{kind: slurm, partition: gpu}`"),
    "store as a word": (GOOD + "store: s3://b/jobs\n", 5, "must be a mapping, like `{uri: s3://bucket/jobs}`"),
    "inputs as a word": (GOOD + "inputs: s3://b/x\n", 5, "like `[{name: data, uri: s3://bucket/data}]`"),
    "name is a number": (GOOD.replace("ok", "42"), 1, "quote it"),
    "nodes is zero": (GOOD + "resources: {nodes: 0}\n", 5, "resources.nodes: must be ≥ 1"),
    "nodes is text": (GOOD + 'resources: {nodes: "2"}\n', 5, "must be a whole number"),
    "nodes is a float": (GOOD + "resources: {nodes: 2.5}\n", 5, "must be a whole number"),
    "nodes is true": (GOOD + "resources: {nodes: true}\n", 5, "must be a whole number"),
    "nproc is negative": (GOOD + "resources: {nproc_per_node: -1}\n", 5, "must be ≥ 1"),
    "resources is a list": (GOOD + "resources: [2]\n", 5, "must be a mapping"),
    "torch_version a word": (GOOD + "torch_version: latest\n", 5, 'must look like "2.9"'),
    "code_dir is a bucket": (GOOD.replace("code_dir: .", "code_dir: s3://bucket"), 3, "must name a folder in a bucket"),
    "code_dir on the web": (GOOD.replace("code_dir: .", "code_dir: https://x/y"), 3, "unknown scheme"),
    "boot_file absolute": (GOOD.replace("train.py", "/train.py"), 4, "inside code_dir"),
    "boot_file climbs out": (GOOD.replace("train.py", "../train.py"), 4, "without `..`"),
    "hyperparameter is a mapping": (GOOD + "hyperparameters: {a: {b: 1}}\n", 5, "store-true flag"),
    "hyperparameter name with a space": (GOOD + 'hyperparameters: {"a b": 1}\n', 5, "letters, digits"),
    "hyperparameter name with a dash first": (GOOD + "hyperparameters: {--lr: 1}\n", 5, "not starting with `-`"),
    "hyperparameters is a list": (GOOD + "hyperparameters: [lr]\n", 5, "must be a mapping"),
    "NUL in a value": (GOOD + 'hyperparameters: {a: "x\\0y"}\n', 5, "NUL"),
    "world_size wrong on one node": (SPAWN + "hyperparameters: {world_size: 8}\n", 5, "on one node it must be 1"),
    "rank wrong on one node": (SPAWN + "hyperparameters: {rank: 1}\n", 5, "on one node it must be 0"),
    "rank true on one node": (SPAWN + "hyperparameters: {rank: false}\n", 5, "on one node it must be 0"),
    "world_size on two nodes": (
        SPAWN + "resources: {nodes: 2}\nhyperparameters: {world_size: 2}\n",
        6,
        "the platform appends --world_size per node",
    ),
    "init_method in spawn": (SPAWN + "hyperparameters: {init_method: x}\n", 5, "appends --init_method"),
    "reserved env": (GOOD + "env: {MA_JOB_DIR: /x}\n", 5, "reserved for the platform"),
    "torchrun's options as env": (GOOD + "env: {PET_STANDALONE: 1}\n", 5, "options of the launcher"),
    "torchrun's own env": (GOOD + "env: {TORCHELASTIC_RUN_ID: x}\n", 5, "options of the launcher"),
    "the shell's functions as env": (GOOD + "env: {BASH_FUNC_x: y}\n", 5, "belongs to the shell"),
    "password in the endpoint": (
        GOOD + "store: {uri: 's3://bucket/x', endpoint_url: 'http://me:pass@host:9000'}\n",
        5,
        "must not contain a user name or password",
    ),
    "signature in the store": (
        GOOD + "store: {uri: 's3://bucket/x?X-Amz-Signature=abc'}\n",
        5,
        "must not contain a signature",
    ),
    "signature in the endpoint": (
        GOOD + "store: {uri: 's3://bucket/x', endpoint_url: 'https://h/?X-Amz-Signature=a'}\n",
        5,
        "must not contain a signature",
    ),
    "launcher's env": (GOOD + "env: {WORLD_SIZE: 4}\n", 5, "set by the launcher"),
    "shell's env": (GOOD + "env: {UID: 0}\n", 5, "belongs to the shell"),
    "env name with a dash": (GOOD + "env: {A-B: 1}\n", 5, "letters, digits and `_`"),
    "env is a boolean": (GOOD + "env: {DEBUG: true}\n", 5, 'write "true"'),
    "secret is a value": (GOOD + "secrets: {TOKEN: abc123}\n", 5, "must be a reference like `env:"),
    "secret is also env": (GOOD + "env: {T: x}\nsecrets: {T: env:T}\n", 6, "is also in `env`"),
    "timeout without unit": (GOOD + "timeout: soon\n", 5, "whole number of seconds"),
    "timeout zero": (GOOD + "timeout: 0s\n", 5, "at least 1 second"),
    "store scheme": (GOOD + "store: {uri: gs://bucket}\n", 5, "unknown scheme `gs://`"),
    "store without bucket": (GOOD + 'store: {uri: "s3://"}\n', 5, "must name a bucket of 3"),
    "folder store with endpoint": (
        GOOD + "store: {uri: ./s, endpoint_url: http://x}\n",
        5,
        "does not apply to a folder",
    ),
    "endpoint without scheme": (GOOD + "store: {uri: s3://bucket, endpoint_url: x:9000}\n", 5, "must be an address"),
    "unknown backend": (GOOD + "backend: {kind: kubernetes}\n", 5, "must be one of local, ssh, slurm, volcano"),
    "no kind": (GOOD + "backend: {kind: null}\n", 5, "must be one of local, ssh, slurm, volcano"),
    "backend field of another kind": (
        GOOD + "backend: {kind: slurm, queue: q}\n",
        5,
        "backend.queue: is a field of kind volcano only",
    ),
    "backend field misspelt": (GOOD + "backend: {kind: slurm, partitoin: q}\n", 5, "did you mean `partition`"),
    "local backend with fields": (
        GOOD + "backend: {partition: q}\n",
        5,
        "backend.partition: is a field of kind slurm only",
    ),
    "partition of two words": (GOOD + "backend: {kind: slurm, partition: a b}\n", 5, "one word"),
    "option that ends a line": (
        GOOD + 'backend: {kind: slurm, extra_sbatch: ["--x=1\\n#SBATCH -J y"]}\n',
        5,
        "on one line",
    ),
    "option that is ours": (GOOD + "backend: {kind: slurm, extra_sbatch: [--nodes=9]}\n", 5, "jobsubmit sets it"),
    "too many processes of a node": (GOOD + "resources: {nproc_per_node: 99999999}\n", 5, "must be ≤ 1024"),
    "number that is too large": (
        GOOD + "backend: {kind: modelarts, auto_stop_hours: 100}\n",
        5,
        "must be ≤ 72",
    ),
    "text that is too long": (
        GOOD + f"backend: {{kind: modelarts, description: {'x' * 300}}}\n",
        5,
        "must have at most 256 characters",
    ),
    "array of jobs": (GOOD + "backend: {kind: slurm, extra_sbatch: [-a1-3]}\n", 5, "is not supported"),
    "option by its beginning": (GOOD + "backend: {kind: slurm, extra_sbatch: [--arr=1-3]}\n", 5, "is not supported"),
    "another cluster": (GOOD + "backend: {kind: slurm, extra_sbatch: [-Mother]}\n", 5, "is not supported"),
    "gpus without a number": (GOOD + "backend: {kind: slurm, gpus_per_node: a100}\n", 5, "`a100:8`"),
    "namespace in capitals": (GOOD + "backend: {kind: volcano, namespace: Team}\n", 5, "a Kubernetes name"),
    "memory without a unit": (GOOD + "backend: {kind: volcano, resources: {memory: 64 GB}}\n", 5, "`64Gi`"),
    "volume on a relative path": (
        GOOD + "backend: {kind: volcano, volumes: [{claim: c, path: d}]}\n",
        5,
        "absolute path",
    ),
    "volume of nothing": (GOOD + "backend: {kind: volcano, volumes: [{path: /d}]}\n", 5, "claim or host_path"),
    "volume of two things": (
        GOOD + "backend: {kind: volcano, volumes: [{path: /d, claim: c, host_path: /d}]}\n",
        5,
        "claim or host_path",
    ),
    "placement of no kind": (GOOD + "backend: {kind: volcano, placement: near}\n", 5, "`spread` or `pack`"),
    "backend is a word": (GOOD + "backend: local\n", 5, "must be a mapping"),
    "unknown layout": (GOOD + "layout: zip\n", 5, "`tree` or `archive`"),
    "archive of uploaded code": (
        GOOD.replace("code_dir: .", "code_dir: s3://b/c") + "layout: archive\n",
        5,
        "is always a tree",
    ),
    "args is text": (GOOD + "args: --fast\n", 5, "must be a list"),
    "args holds a mapping": (GOOD + "args: [{a: 1}]\n", 5, "must be text"),
    "command needs a shell": (GOOD.replace("boot_file: train.py", "command: a && b"), 4, "is not run by a shell"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_spec_is_one_clear_error(case: str, tmp_path: Path) -> None:
    text, line, message = BAD[case]
    file = tmp_path / "job.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        load(file)
    assert message in caught.value.message
    assert caught.value.code == 2
    if line is not None:
        assert f"{file}:{line}  " in caught.value.message


# Of what YAML can read: a schema sees no spelling, no two fields at once that must differ, and JSON has no NaN.
ONLY_JOBSUBMIT_CAN = {
    "UTF-16",
    "YAML 1.1 no",
    "YAML 1.1 on",
    "YAML 1.1 Yes",
    "YAML 1.1 directive",
    "a tag that changes the meaning",
    "half a character",
    "half a character in plain text",
    "leading zero",
    "not a number",
    "bad pattern",
    "slow pattern",
    "slow pattern of a metric",
    "two inputs of one name",
    "two outputs that differ in a dash",
    "input named as a hyperparameter",
    "checkpoint beside hyperparameter",
    "secret is also env",
    "elastic the wrong way round",
    "big int",
}


@pytest.mark.parametrize("case", BAD)
def test_the_schema_rejects_what_a_schema_can(case: str) -> None:
    try:
        document = YAML(typ="safe", pure=True).load(BAD[case][0])
        is_valid = Draft202012Validator(json_schema()).is_valid(document)
    except (YAMLError, RecursionError, ValueError):
        return  # an editor shows that by itself
    assert is_valid == (case in ONLY_JOBSUBMIT_CAN)


def test_the_good_ones_are_good(tmp_path: Path) -> None:
    for text in (GOOD, SPAWN):
        (tmp_path / "job.yaml").write_text(text)
        assert load(tmp_path / "job.yaml").spec.name == "ok"


def test_the_corpus_is_large() -> None:
    assert len(BAD) >= 60


def test_all_errors_are_shown_at_once_in_file_order(tmp_path: Path, jobsubmit: Command) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: a b\nmode: spawn\ncode_dir: .\nboot_file: /x\nimage: y\nresources: {nodes: 0}\n"
        "hyperparameters: {world_size: 3}\nenv: {MA_X: 1}\n"
    )
    done = jobsubmit("validate", "job.yaml", code=2)
    lines = [line.removeprefix("error: ").split("  ")[0] for line in done.stderr.splitlines() if "job.yaml:" in line]
    assert lines == [f"job.yaml:{n}" for n in (1, 4, 5, 6, 7, 8)]


@pytest.mark.parametrize("case", BAD)
def test_the_command_line_exits_2_without_a_traceback(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text, _, message = BAD[case]
    file = tmp_path / "job.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setattr("sys.argv", ["jobsubmit", "create", str(file), "--detach"])
    with pytest.raises(SystemExit) as done:
        main()
    said = capfd.readouterr()
    assert done.value.code == 2
    assert message in said.err
    assert said.out == ""
    assert "Traceback" not in said.err
    assert "bug" not in said.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--set", "resources.nodes=0"), "--set resources.nodes  resources.nodes: must be ≥ 1"),
        (("--set", "nodes"), "must look like field=value"),
        (("--set", "name.x=1"), "has no fields to set"),
        (("--set", "a=[1"), "is not YAML"),
        (("--set", "env.FLAG=true"), """hint: keep these quotes from the shell: --set 'env.FLAG="VALUE"'"""),
        (("--set", "args=[true]"), """put single quotes around FIELD=VALUE, as in --set 'args=["true"]'"""),
        (("--set", 'args=["true"]', "--nodes", "0"), "--nodes  resources"),
        (("--dry-run", "--backend", "slurm", "--fault", "delay node 0 by 3s"), "--fault is supported only by"),
        (("--nodes", "0"), "--nodes  resources.nodes: must be ≥ 1"),
        (("--nodes", "two"), "must be a whole number"),
        (("--mode", "mpi"), "mpi"),
        (("--backend", "kubernetes"), "--backend  backend.kind: must be one of local, ssh, slurm, volcano"),
        (("--store", "gs://x"), "--store  store.uri: has the unknown scheme"),
        (("-e", "NOVALUE"), "must look like NAME=VALUE"),
        (("-e", "RANK=1"), "-e RANK  env.RANK: is set by the launcher"),
        (("--bogus", "2"), "--bogus"),
    ],
)
def test_bad_flags_are_validated_like_the_file(
    flags: tuple[str, ...], message: str, tmp_path: Path, jobsubmit: Command
) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    done = jobsubmit("create", "job.yaml", *flags, code=2)
    assert message in done.stderr


def test_the_job_file_in_a_folder_is_named(tmp_path: Path, jobsubmit: Command) -> None:
    (tmp_path / "demo").mkdir()
    assert "hint: check the path" in jobsubmit("create", "demo", code=2).stderr
    (tmp_path / "demo" / "job.yaml").write_text("name: demo\n")
    assert "hint: name the file: demo/job.yaml" in jobsubmit("create", "demo", code=2).stderr


def test_a_script_is_no_job_file(tmp_path: Path, jobsubmit: Command) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint('x: y')\n")
    done = jobsubmit("validate", "train.py", code=2)
    assert "train.py  is a script, not a job file" in done.stderr
    assert "jobsubmit run -- python train.py" in done.stderr


def test_a_list_with_a_wrong_entry_is_not_called_empty(tmp_path: Path, jobsubmit: Command) -> None:
    (tmp_path / "job.yaml").write_text(GOOD + "restarts: {max: 2, on: [exit]}\n")
    assert "must not be empty" not in jobsubmit("validate", "job.yaml", code=2).stderr


def test_a_missing_file_says_what_to_do(jobsubmit: Command) -> None:
    done = jobsubmit("create", "nowhere.yaml", code=2)
    assert "nowhere.yaml" in done.stderr
    assert "jobsubmit init" in done.stderr
