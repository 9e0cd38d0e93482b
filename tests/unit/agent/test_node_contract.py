"""The table of the node contract decides what is refused, removed, shown and documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from node_contract_page import PAGE, page

from jobsubmit.agent import node_contract as contract
from jobsubmit.common.resources import TEMPLATES, starter_job
from jobsubmit.config import BUILT_IN
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.plan.processes import expand
from jobsubmit.spec.field_types import env_name_problem
from jobsubmit.spec.loader import load

SHELL_SCRIPTS = sorted(path for path in TEMPLATES.rglob("*") if path.suffix == ".sh" or path.name.endswith(".sh.j2"))
SHELL_SCRIPTS += sorted(TEMPLATES.rglob("*.sbatch.j2"))
NAMES = re.compile(r"\$\{?#?([A-Z][A-Z0-9_]+)|^\s*(?:export )?([A-Z][A-Z0-9_]+)=", re.MULTILINE)
NOT_OF_THE_CONTRACT = {"PATH", "IFS", "BASH_SOURCE"}


@pytest.mark.parametrize("file", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_a_template_uses_no_variable_but_those_of_the_table(file: Path) -> None:
    text = re.sub(r"^\s*#.*$", "", file.read_text(), flags=re.MULTILINE)
    used = {first or second for first, second in NAMES.findall(text)}
    unknown = {name for name in used - set(contract.TABLE) - NOT_OF_THE_CONTRACT if not name.startswith("SLURM_")}
    assert unknown == set()


@pytest.mark.parametrize("variable", contract.TABLE, ids=str)
def test_what_is_reserved_is_refused_in_a_job_file_and_removed_from_a_node(variable: contract.Variable) -> None:
    assert contract.is_reserved(variable) == variable.is_reserved
    assert bool(env_name_problem(variable)) == variable.is_reserved


@pytest.mark.parametrize("mode", ["spawn", "launch", "torchrun"])
def test_what_is_shown_of_each_process_is_in_the_table(mode: str) -> None:
    shown = expand(build_plan(load(starter_job(mode)).spec, BUILT_IN))
    names = set(shown.environment)
    for node in shown.nodes:
        names |= set(node.environment)
        for process in node.processes:
            names |= set(process.environment)
    assert names <= set(contract.TABLE)
    for variable in contract.TABLE:
        if not variable.same_on_all_nodes:
            assert variable not in shown.environment


def test_the_page_of_the_documentation_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/support/node_contract_page.py"


def test_no_variable_stands_twice() -> None:
    assert len(set(contract.TABLE)) == len(contract.TABLE)
