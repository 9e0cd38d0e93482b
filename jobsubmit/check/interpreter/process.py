"""One process of a job, with all that makes it different from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.operations import UNKNOWN, Several

OF_TORCH_DISTRIBUTED = frozenset(
    [
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "barrier"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "new_group", "reduce"),
        *("reduce_scatter", "scatter"),
    ]
)
COLLECTIVES = OF_TORCH_DISTRIBUTED | {
    *("all_to_all_single", "reduce_scatter_tensor", "consolidate_state_dict", "wait_for_everyone", "gather_for_metrics")
}
# Calls of libraries that are compared between processes, by the last parts of their names or an argument.
NOTED = COLLECTIVES | {
    *("init_process_group", "init_device_mesh", "destroy_process_group", "spawn", "set_device"),
    *("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "Accelerator", "from_pretrained"),
    *("init_distributed", "Fabric", "is_initialized"),
    *("DistributedSampler", "DataLoader", "BatchSampler", "set_epoch", "save", "load_state_dict", "backward"),
}
# By their whole names: what reads and writes files, `pathlib.Path` also as the owner of its methods.
READS = frozenset(
    [
        *("open", "pathlib.Path.open", "pathlib.Path.read_text", "pathlib.Path.read_bytes", "torch.load"),
        *("numpy.load", "numpy.loadtxt", "numpy.memmap", "pandas.read_csv", "pandas.read_json", "pandas.read_parquet"),
        *("pandas.read_pickle", "safetensors.torch.load_file"),
    ]
)
WRITES = frozenset(
    [
        *("open", "pathlib.Path.open", "pathlib.Path.write_text", "pathlib.Path.write_bytes", "torch.save"),
        *("numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt", "numpy.memmap"),
        *(
            "shutil.copy",
            "shutil.copy2",
            "shutil.copyfile",
            "shutil.move",
            "os.rename",
            "os.replace",
            "safetensors.torch.save_file",
        ),
    ]
)
WRITING_METHODS = frozenset(["to_csv", "to_json", "to_parquet", "to_pickle", "tofile", "savefig"])
NOTED_BY_ARGUMENT = frozenset(["download", "device_map"])


_ONLY_COLLECTIVES = ("barrier", "all_reduce", "all_gather", "wait_for_everyone", "gather_for_metrics")


def is_waiting(name: str) -> bool:
    """Return whether a call waits for all processes; `gather` may as well be that of a tensor."""
    last = name.rpartition(".")[2]
    return last in (COLLECTIVES if name.startswith("torch.distributed.") else _ONLY_COLLECTIVES)


def is_optimizer(name: str) -> bool:
    """Return whether a name is that of an optimizer of torch."""
    return name.startswith("torch.optim.") and name.rpartition(".")[2][:1].isupper() and "lr_scheduler" not in name


@dataclass(frozen=True)
class Process:
    """Its numbers: among all processes, on its node, and that of its node; and how many there are."""

    rank: int
    local_rank: int
    node: int
    world_size: int

    def facts(self, facts: Facts) -> Facts:
        """Return what this process gets from the job."""
        numbers: dict[str, int] = {
            **dict.fromkeys(map(str, (contract.RANK, contract.ROLE_RANK)), self.rank),
            str(contract.LOCAL_RANK): self.local_rank,
            **dict.fromkeys(map(str, (contract.NODE_INDEX, contract.NODE_RANK, contract.GROUP_RANK)), self.node),
        }
        environment: dict[str, Any] = {**facts.environment, **self._of_scheduler(facts)}
        for name, number in numbers.items():
            if environment.get(name) is not None:
                environment[name] = str(number)
        return replace(
            facts,
            environment=environment,
            argv=tuple(self._words(facts)),
            rank=self.rank if facts.has_launcher else UNKNOWN,
        )

    def _of_scheduler(self, facts: Facts) -> Mapping[str, Any]:
        """Return the variables of Slurm, which starts one task on each node; none in a job that has none."""
        values = {
            **dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID"), str(self.node)),
            "SLURM_LOCALID": "0",
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(facts.nodes)),
        }
        known = {name for name in values if facts.environment.get(name, None) is UNKNOWN}
        own = {"SLURM_PROCID": self.rank, "SLURM_LOCALID": self.local_rank}  # where srun starts each process
        tasks = {name: str(own[name]) for name in own if isinstance(facts.environment.get(name), Several)}
        return {name: value for name, value in values.items() if name in known} | tasks

    def _words(self, facts: Facts) -> list[str]:
        """Return the arguments of this node: in mode spawn `--rank` is its number, and so is what a command gives."""
        words = list(facts.argv)
        of_node = {**facts.options_of_node, **({"--rank": 1} if facts.mode == "spawn" else {})}
        for index, word in enumerate(words):
            name, sign, value = word.partition("=")
            if name in of_node and sign and value == "0":
                words[index] = f"{name}={self.node * of_node[name]}"
            elif name in of_node and not sign and words[index + 1 : index + 2] == ["0"]:
                words[index + 1] = str(self.node * of_node[name])
        return words


def numbers_of(process: Process) -> Mapping[str, Any]:
    """Return what an object of Accelerate or Fabric says of its process."""
    return {
        **dict.fromkeys(("process_index", "global_rank"), process.rank),
        **dict.fromkeys(("local_process_index", "local_rank"), process.local_rank),
        **dict.fromkeys(("num_processes", "world_size"), process.world_size),
        **dict.fromkeys(("is_main_process", "is_global_zero"), process.rank == 0),
        "is_local_main_process": process.local_rank == 0,
        "node_rank": process.node,
    }


def some_processes(nodes: int, each: int) -> list[Process]:
    """Return the first process, the next one, and the first of the second node."""
    count = nodes * each
    ranks = sorted({0, min(1, count - 1), min(each, count - 1)})
    return [Process(rank, rank % each, rank // each, count) for rank in ranks]
