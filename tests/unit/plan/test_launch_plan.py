"""What is injected, and how values are spelled on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from jobsubmit.errors import SpecError
from jobsubmit.plan.arguments import build_arguments
from jobsubmit.plan.rendezvous import choose_rendezvous, rendezvous_notes
from jobsubmit.spec.job_spec import JobSpec
from jobsubmit.spec.loader import load_mapping


def spec(mode: str, **fields: Any) -> JobSpec:
    return load_mapping({"name": "a", "mode": mode, "code_dir": ".", "boot_file": "t.py", **fields}).spec


def test_preset_mode_on_one_node_gets_world_size_1_and_rank_0() -> None:
    assert build_arguments(spec("spawn", hyperparameters={"lr": 0.1})) == ("--lr=0.1", "--world_size=1", "--rank=0")


@pytest.mark.parametrize("values", [{"world_size": 1}, {"rank": 0}, {"world_size": "1", "rank": "0"}])
def test_equal_values_of_the_user_are_fine(values: dict[str, Any]) -> None:
    assert sorted(build_arguments(spec("spawn", hyperparameters=values))) == ["--rank=0", "--world_size=1"]


def test_preset_mode_on_several_nodes_leaves_the_ranks_to_the_platform() -> None:
    assert build_arguments(spec("spawn", resources={"nodes": 2}, hyperparameters={"lr": 1})) == ("--lr=1",)


@pytest.mark.parametrize("name", ["world_size", "rank"])
def test_ranks_given_for_several_nodes_are_an_error_that_explains(name: str) -> None:
    with pytest.raises(SpecError, match="per node"):
        spec("spawn", resources={"nodes": 2}, hyperparameters={name: 1})


@pytest.mark.parametrize("mode", ["launch", "torchrun"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_launchers_get_no_injected_hyperparameters(mode: str, nodes: int) -> None:
    job = spec(mode, resources={"nodes": nodes}, hyperparameters={"world_size": 7}, args=["in", 3])
    assert build_arguments(job) == ("--world_size=7", "in", "3")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("text", ["--x=text"]),
        ("", ["--x="]),
        (3, ["--x=3"]),
        (1e-05, ["--x=1e-05"]),
        (True, ["--x=true"]),
        (False, ["--x=false"]),
        (None, []),
        ({"flag": True}, ["--x"]),
        ({"flag": False}, []),
        ([1, "a b", None, True, "日"], ['--x=[1, "a b", null, true, "日"]']),
        ([], ["--x=[]"]),
    ],
)
def test_each_kind_of_value_has_one_spelling(value: object, words: list[str]) -> None:
    assert list(build_arguments(spec("torchrun", hyperparameters={"x": value}))) == words


@pytest.mark.parametrize(
    ("version", "chosen", "backend"),
    [
        (None, None, "static"),
        ("2.1", None, "static"),
        ("2.1.2+cpu", None, "static"),
        ("2.10", None, "c10d"),
        ("2.9", None, "c10d"),
        ("2.9", "static", "static"),
        ("2.1", "c10d", "c10d"),
    ],
)
def test_the_rendezvous_follows_the_torch_version(version: str | None, chosen: str | None, backend: str) -> None:
    fields = {"torch_version": version, "rdzv_backend": chosen}
    job = spec("torchrun", **{name: value for name, value in fields.items() if value})
    chosen_rendezvous = choose_rendezvous(job)
    assert chosen_rendezvous is not None
    assert chosen_rendezvous.backend == backend
    assert bool(rendezvous_notes(job)) == (version == "2.1" and chosen == "c10d")
