"""What programs read: schemas of every JSON output, and the page for assistants."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from command import Command

from jobsubmit.cli.commands import ALIASES, COMMANDS
from jobsubmit.cli.documents.schemas import DOCUMENTS
from jobsubmit.common.resources import FOR_ASSISTANTS
from jobsubmit.errors import EXIT_CODES


@pytest.mark.parametrize("name", [*COMMANDS, "error"])
def test_each_command_has_a_schema(name: str, jobsubmit: Command) -> None:
    schema = jobsubmit.json("schema", "--output", name)
    jsonschema.Draft202012Validator.check_schema(schema)


def test_commands_and_documents_are_the_same() -> None:
    assert set(DOCUMENTS) == {*COMMANDS, "error"} - set(ALIASES)


def test_what_a_command_prints_fits_its_schema(jobsubmit: Command) -> None:
    jobsubmit("init", "demo")
    for arguments in (
        ["validate", "demo/job.yaml"],
        ["render", "demo/job.yaml"],
        ["render", "demo/job.yaml", "--expand"],
        ["render", "demo/job.yaml", "--hosts", "a,b"],
        ["bundle", "demo/job.yaml"],
        ["create", "demo/job.yaml", "--dry-run"],
        ["list"],
        ["help"],
        ["help", "restarts"],
        ["help", "create"],
        ["docs"],
        ["docs", "--for-assistants"],
        ["init", "--list"],
    ):
        schema = jobsubmit.json("schema", "--output", arguments[0])
        jsonschema.validate(jobsubmit.json(*arguments), schema)


def test_a_schema_of_nothing(jobsubmit: Command) -> None:
    done = jobsubmit("schema", "--output", "statos", code=2)
    assert "did you mean `status`" in done.stderr


@pytest.mark.parametrize("words", [["-o", "json"], ["-ojson"], ["--output", "json"], ["--output=json"]])
def test_every_error_is_a_document(words: list[str], jobsubmit: Command) -> None:
    schema = jobsubmit.json("schema", "--output", "error")
    for arguments in (["status", "nothing"], ["status"], ["nothing"], ["status", "x", "--nope"], ["upload", "--nope"]):
        done = jobsubmit(*arguments, *words, code=None)
        assert done.returncode
        document = json.loads(done.stdout)
        jsonschema.validate(document, schema)
        assert document["code"] == done.returncode


def test_the_page_for_assistants_has_every_exit_code_and_names_commands_that_exist(jobsubmit: Command) -> None:
    page = jobsubmit("docs", "--for-assistants").stdout
    assert page.rstrip() == FOR_ASSISTANTS.read_text(encoding="utf-8").rstrip()
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page
    for name in re.findall(r"`jobsubmit ([a-z]+)", page):
        assert name in COMMANDS


def test_docs_says_where_they_are(jobsubmit: Command) -> None:
    assert re.fullmatch(r"https://\S+/docs\n", jobsubmit("docs").stdout)
