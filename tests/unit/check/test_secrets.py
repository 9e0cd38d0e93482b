"""Keys and tokens in a code directory are found before they are uploaded, and never shown."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from command import Command

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.secrets import check_secrets

LETTERS = string.ascii_letters + string.digits


def some(number: int, alphabet: str = LETTERS) -> str:
    """Return so many letters; a key that stood here whole would alarm everybody who looks at this file."""
    return "".join(alphabet[(7 * i + 3) % len(alphabet)] for i in range(number))


UPPER = string.ascii_uppercase + "234567"
HEX = string.hexdigits.lower()[:16]
PLANTED = {
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----\n" + some(64),
    "locked key": "-----BEGIN RSA " + "PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,0A\n\n" + some(64),
    "key in json": '"key": "-----BEGIN ' + "PRIVATE KEY-----\\n" + some(64) + '\\n"',
    "openssh key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n" + some(64),
    "aws access key": "key = 'AK" + "IA" + some(16, UPPER) + "'",
    "aws secret key": "aws_secret_" + "access_key = " + some(40),
    "obs secret key": 'secretKey: "' + some(40) + '"',
    "default of a variable": 'key = os.getenv("API_' + 'KEY", "' + some(25) + '7")',
    "default that is set": 'os.environ.setdefault("WANDB_API_' + 'KEY", "' + some(39, "abcdef0123456789") + '7")',
    "github token": "TOKEN = 'gh" + "p_" + some(36) + "'",
    "fine-grained github token": "github_" + "pat_" + some(60),
    "gitlab token": "gl" + "pat-" + some(20),
    "hugging face token": "login('h" + "f_" + some(34, string.ascii_letters) + "')",
    "openai key": "sk-" + some(20) + "T3Blbk" + "FJ" + some(20),
    "anthropic key": "sk-" + "ant-api03-" + some(60),
    "slack token": "xo" + "xb-" + some(30),
    "slack webhook": "https://hooks.slack"
    + ".com/services/T0"
    + some(8, UPPER)
    + "/B0"
    + some(8, UPPER)
    + "/"
    + some(24),
    "stripe key": "sk_" + "live_" + some(24),
    "google key": "AI" + "za" + some(35),
    "pypi token": "pypi-" + "AgEIcHlwaS5vcmc" + some(40),
    "npm token": "//registry.invalid/:_auth" + "Token=" + some(36),
    "docker token": "dckr_" + "pat_" + some(27),
    "azure key": "Account" + "Key=" + some(86) + "==",
    "web token": "ey" + "J" + some(20) + ".ey" + "J" + some(30) + "." + some(43),
    "kubeconfig": "    client-key-" + "data: " + some(80),
    "wandb key": 'os.environ["WANDB_API' + '_KEY"] = "' + some(40, HEX) + '"',
    "wandb key in a configuration": "config.wandb" + "_key = '" + some(40, HEX) + "'",
    "neptune token": "export NEPTUNE_API_TO" + 'KEN="ey' + "JhcGlfYWRkcmVzcyI6" + some(120) + '="',
    "token in a client's call": "Client(api_" + "token='" + some(31) + "7=')",
    "key of any service in YAML": "  api" + "_key: " + some(40, HEX),
    "password in an address": "postgres://admin:" + "s3cr3tPass" + "@db.internal/x",
    "api key": "api_" + "key = '" + some(32) + "'",
    "netrc": "machine host.internal login me pass" + "word " + some(12),
}
HARMLESS = """
password = os.environ["PASSWORD"]
api_key = "your-api-key-goes-here-0123456789"
model = os.getenv("TOKENIZER_KEY", "bert-base-uncased-tokenizer-2")
name = os.environ.get("SECRET_NAME", "training-runs-of-2024-and-2025")
key = os.environ.get("API_KEY", "")
token = get_token()  # hf_hub_download(repo)
url = "postgres://user:password@localhost/db"
parser.add_argument("--access_token", default=None)
checkpoint = "https://host.invalid/models/deit_base_distilled_patch16_224-df68dfff.pth"
sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
tokenizer_secret_key = None
AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY}
api_key = "OPENAI_API_KEY_V2_PRODUCTION"
password = "/run/secrets/db_password_v1_for_team"
remote = "https://x-access-token:%(token)s@host.invalid/repo"
proxy = "http://postgres:postgres@localhost"
line = f"machine host.invalid login me password {api_key}"
url = "https://b.invalid/x?X-Amz-Credential=AK«IAABCDEFGHIJKLMNOP%2F20260101&X-Amz-Signature=0a"
old = "https://b.invalid/x?AWSAccessKeyId=AK«IAABCDEFGHIJKLMNOP&Signature=0a"
pem = "-----BEGIN PRIVATE« KEY-----"
fixture = "-----BEGIN RSA PRIVATE« KEY-----\\nnot a key\\n-----END RSA PRIVATE KEY-----"
api_key = "replace-this-with-the-key-0123"
auth_token = "insert_the_token_of_2024_here"
cfg.MSG.TRAINING_PARAMETERS.LEARNING_RATE_SCHEDULE = 1
"""


def places(folder: Path, *allowed: str) -> list[str]:
    return [finding.where for finding in check_secrets(scan(folder), allowed)]


@pytest.mark.parametrize("kind", PLANTED)
def test_each_kind_is_found_with_its_line(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import os\n\n{PLANTED[kind]}\n")
    found = list(check_secrets(scan(tmp_path), ()))
    assert {finding.where for finding in found} == {"train.py:3"}
    assert PLANTED[kind].splitlines()[0] not in str(found)


def test_an_env_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "TOKENIZER_NAME=bert-base\nKEYBOARD=us-international\nHF_TOKEN=$MY_TOKEN\nWANDB_API_KEY=\nSEED=123456\n"
        "export DB_PASSWORD=hunter2hunter2\n"
        "OPENAI_API_KEY=sk-...\nPOSTGRES_PASSWORD='postgres'\n"
    )
    (tmp_path / ".env.example").write_text("DB_PASSWORD=hunter2hunter2\n")
    assert places(tmp_path) == [".env:6"]


def test_harmless_lines_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HARMLESS.replace("«", ""))
    (tmp_path / "weights.bin").write_bytes(b"\0" + PLANTED["github token"].encode())
    assert places(tmp_path) == []


def test_a_pattern_allows_a_file(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for name in ("tests/key.pem", "key.pem"):
        (tmp_path / name).write_text(PLANTED["private key"])
    assert places(tmp_path, "tests/") == ["key.pem:1"]
    assert places(tmp_path, "*.pem", "!/key.pem") == ["key.pem:1"]


def test_nothing_is_uploaded_and_nothing_is_shown(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for number, text in enumerate(PLANTED.values()):
        (tmp_path / "code" / f"file{number}.py").write_text(f"x = 1\n{text}\n")
    (tmp_path / "job.yaml").write_text(
        "name: leaky\nmode: spawn\ncode_dir: code\nboot_file: file0.py\nstore: {uri: store}\n"
    )
    outputs = [
        jobsubmit(*command, code=3)
        for command in (
            ("create", "job.yaml"),
            ("create", "job.yaml", "--no-check"),
            ("create", "job.yaml", "--dry-run"),
            ("validate", "job.yaml"),
            ("validate", "job.yaml", "-o", "json"),
            ("bundle", "job.yaml", "--list"),
            ("bundle", "job.yaml", "-o", "json"),
        )
    ]
    assert not (tmp_path / "store").exists()
    for done in outputs:
        for number, text in enumerate(PLANTED.values()):
            assert text.splitlines()[0] not in done.stdout + done.stderr
            assert f"file{number}.py:2" in done.stdout + done.stderr
    allowed = jobsubmit("bundle", "job.yaml", "--set", 'allow_secrets=["*.py"]')
    assert f"{len(PLANTED)} files" in allowed.stdout


def test_what_would_be_uploaded_is_shown(jobsubmit: Command, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "data").mkdir(parents=True)
    for name, size in (("train.py", 10), ("data/large.bin", 5000), ("small.txt", 1), ("notes.log", 7)):
        (code / name).write_text("x" * size)
    (code / ".jobignore").write_text("*.log\n")
    (tmp_path / "job.yaml").write_text("name: j\nmode: spawn\ncode_dir: code\nboot_file: train.py\n")
    lines = jobsubmit("bundle", "job.yaml", "--top", "1").stdout.splitlines()
    assert lines[0].endswith("code: 4 files, 5,017 bytes")
    assert lines[2].split() == ["5,000", "data/large.bin"]
    assert "3 smaller" in lines[3]
    assert lines[4] == "left out: notes.log (ignored by .jobignore line 1: *.log)"
    document = jobsubmit.json("bundle", "job.yaml", "--list")
    assert [file["path"] for file in document["largest"]] == ["data/large.bin", "train.py", ".jobignore", "small.txt"]
    assert document["digest"] == scan(code).digest


def test_what_was_found_clean_is_not_read_again(tmp_path: Path) -> None:
    for name in ("clean.py", "other.py"):
        (tmp_path / name).write_text(f"# {name}\n")
    bundle = scan(tmp_path)
    for name in ("clean.py", "other.py"):
        (tmp_path / name).write_text(PLANTED["github token"])
    clean = {file.sha256 for file in bundle.files if file.path == "clean.py"}
    assert [finding.where for finding in check_secrets(bundle, (), clean)] == ["other.py:1"]


def test_a_secret_is_found_after_a_submission_without_one(jobsubmit: Command, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    (code / "settings.txt").write_text("DB_PASSWORD=hunter2hunter2\n")
    (code / "allowed.pem").write_text(PLANTED["private key"])
    (tmp_path / "job.yaml").write_text(
        "name: later\nmode: spawn\ncode_dir: code\nboot_file: train.py\nstore: {uri: store}\nallow_secrets: ['*.pem']\n"
    )
    jobsubmit("create", "job.yaml", "--no-check")
    assert list((tmp_path / "state" / "transfer").glob("*.clean"))
    jobsubmit("create", "job.yaml", "--no-check", "--dry-run")
    (code / "settings.txt").rename(code / ".env")  # the same bytes, under a name that has other rules
    (code / "train.py").write_text(f"print(1)\n{PLANTED['github token']}\n")
    done = jobsubmit("create", "job.yaml", "--no-check", "--set", "allow_secrets=[]", code=3)
    for place in (".env:1", "train.py:2", "allowed.pem:1"):
        assert place in done.stderr


def test_many_secrets_of_a_kind_in_a_file_are_three_findings(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{PLANTED['stripe key']}\n" * 50 + f"{PLANTED['aws access key']}\n")
    found = list(check_secrets(scan(tmp_path), ()))
    assert [finding.where for finding in found] == ["train.py:1", "train.py:2", "train.py:3", "train.py:51"]
    assert "(and 47 more in this file)" in found[2].text
