"""A store whose certificate a private authority has signed: uploads, downloads, jobs, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import minio_server
import pytest
import trustme
from bucket import contents, make
from command import Command
from minio_server import Server
from pace import Pace

pytestmark = pytest.mark.needs("minio")
NAMES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
LARGE = 65 << 20  # in parts, by the other client


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a MinIO that speaks TLS, with a bucket."""
    certs = tmp_path_factory.mktemp("certs")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(certs / "private.key"))
    issued.cert_chain_pems[0].write_to_path(str(certs / "public.crt"))
    authority.cert_pem.write_to_path(str(certs / "authority.pem"))
    with minio_server.running(tmp_path_factory.mktemp("minio"), certs=certs) as running:
        client = boto3.client(
            "s3",
            endpoint_url=running.endpoint,
            region_name="us-east-1",
            aws_access_key_id=running.key,
            aws_secret_access_key=running.secret,
            verify=str(certs / "authority.pem"),
        )
        client.create_bucket(Bucket="secured")
        yield running


@pytest.fixture(autouse=True)
def authority_file(server: Server, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with the authority, which nothing names yet."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    return tmp_path / "authority.pem"


@pytest.mark.parametrize("way", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "profile", "option"])
def test_any_setting_is_enough_for_small_and_large_files(
    way: str, jobsubmit: Command, tmp_path: Path, authority_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = make(tmp_path / "code", files=5)
    (code / "larger.bin").write_bytes(bytes(LARGE))
    options = ("--ca-bundle", str(authority_file)) if way == "option" else ()
    if way == "profile":
        (tmp_path / "config").write_text(f"[default]\nca_bundle = {authority_file}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    elif way != "option":
        monkeypatch.setenv(way, str(authority_file))
    jobsubmit("upload", code, f"s3://secured/{way}", *options)
    jobsubmit("download", f"s3://secured/{way}", tmp_path / "back", *options)
    assert contents(tmp_path / "back") == contents(code)


def test_settings_with_other_authorities_stand_beside_it(
    jobsubmit: Command, tmp_path: Path, authority_file: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    code = make(tmp_path / "code", files=2)
    (code / "larger.bin").write_bytes(bytes(LARGE))
    both = {"AWS_CA_BUNDLE": str(tmp_path / "other.pem"), "SSL_CERT_FILE": str(authority_file)}
    jobsubmit("upload", code, "s3://secured/both", env=both)


def test_an_unknown_authority_is_named_at_once(jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    code = make(tmp_path / "code", files=2)
    began = time.monotonic()
    done = jobsubmit("upload", code, "s3://secured/never", code=4)
    assert time.monotonic() - began < pace.stretched(4)
    assert "the certificate of https://127.0.0.1" in done.stderr
    assert "is refused: it is signed by an unknown authority" in done.stderr
    assert "or AWS_CA_BUNDLE to the file of the authority" in done.stderr


def test_a_certificate_for_another_name(
    jobsubmit: Command, tmp_path: Path, authority_file: Path, server: Server, pace: Pace
) -> None:
    code = make(tmp_path / "code", files=2)
    other = server.endpoint.replace("127.0.0.1", "localhost")
    flags = ("--endpoint-url", other, "--ca-bundle", authority_file)
    began = time.monotonic()
    done = jobsubmit("upload", code, "s3://secured/never", *flags, code=4)
    assert time.monotonic() - began < pace.stretched(10)
    assert "is refused: it is for another name" in done.stderr


def test_plain_requests_and_tls_at_the_wrong_server(
    jobsubmit: Command, tmp_path: Path, server: Server, s3_server: Server, pace: Pace
) -> None:
    code = make(tmp_path / "code", files=2)
    plain = server.endpoint.replace("https:", "http:")
    done = jobsubmit("upload", code, "s3://secured/never", "--endpoint-url", plain, code=4)
    assert "use https:// in the server's address" in done.stderr
    encrypted = s3_server.endpoint.replace("http:", "https:")
    began = time.monotonic()
    done = jobsubmit("upload", code, "s3://secured/never", "--endpoint-url", encrypted, code=4)
    assert time.monotonic() - began < pace.stretched(4)
    assert "does not speak TLS" in done.stderr


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_bundle_that_is_none(text: str | None, jobsubmit: Command, tmp_path: Path) -> None:
    code, file = make(tmp_path / "code", files=2), tmp_path / "wrong.pem"
    if text is not None:
        file.write_text(text)
    done = jobsubmit("upload", code, "s3://secured/never", code=4, env={"AWS_CA_BUNDLE": str(file)})
    assert f"the CA bundle {file}" in done.stderr
    assert "correct AWS_CA_BUNDLE" in done.stderr


@pytest.mark.needs("torch")
def test_nodes_fetch_their_code_and_bring_their_outputs(
    jobsubmit: Command, tmp_path: Path, authority_file: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        "import os, sys\n"
        "folder = next(word for word in sys.argv if word.startswith('--out=')).partition('=')[2]\n"
        "open(os.path.join(folder, os.environ['RANK']), 'w').write('done')\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: secured\nmode: torchrun\ncode_dir: code\nboot_file: train.py\n"
        "resources: {nodes: 2, nproc_per_node: 1}\n"
        f"store: {{uri: s3://secured/jobs, ca_bundle: {authority_file.name}}}\n"
        "outputs: [{name: out, uri: s3://secured/outs}]\n"
    )
    jobsubmit("create", "job.yaml", "--follow")
    jobsubmit("download", "s3://secured/outs", tmp_path / "outs", "--ca-bundle", authority_file)
    assert sorted(path.name for path in (tmp_path / "outs").rglob("*") if path.is_file()) == ["0", "1"]
