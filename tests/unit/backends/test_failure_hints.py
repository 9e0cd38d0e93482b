"""What a failure's last words mean; the texts are torch's own."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from jobsubmit.backends.shared.failure_hints import TABLE, diagnose

CORPUS = Path(__file__).parents[2] / "corpus"
SAID = {
    "jobsubmit: the code could not be fetched: t.py is not the file that was submitted": "differ from the upload",
    "jobsubmit: the code could not be fetched: [SSL: CERTIFICATE_VERIFY_FAILED]": "not trust the store's certificate",
    "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined.": "1 of 2",
    "wait timeout after 5000ms, keys: /default_pg/0//cpu//0/3": "rank 3 never joined",
    "Ping failed, invalid value returned from server. Expected: 42, Got: 1347703880": "HTTP server",
    "The server socket has failed to listen on any local network address. port: 29500, useIpv6: 0": "port",
    "RuntimeError: The server socket has failed to bind (errno: 98 - Address already in use).": "port",
    "The IPv6 network addresses of (no-such-host, 29500) cannot be retrieved (gai error: -2": "cannot be resolved",
    "The client socket has timed out after 5000ms while trying to connect to (10.0.0.1, 29500).": "at 10.0.0.1",
    "Gloo connectFullMesh failed with [x] timed out connecting: remote=[127.0.1.1]:1234": "loopback",
    "jobsubmit: the code could not be fetched: the start script in the store differs from the one": "from the upload",
    "RuntimeError: Distributed package doesn't have NCCL built in": "built for CPUs only",
    "AssertionError: Torch not compiled with CUDA enabled": "built for CPUs only",
    "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!": "needs a GPU",
    "RuntimeError: nccl2 requires at least one CUDA device": "needs a GPU",
    "ValueError: environment variable RANK expected, but not set": "reads RANK",
    "train.py: error: unrecognized arguments: --local-rank=0": "does not accept --local-rank",
    "train.py: error: the following arguments are required: --world_size, --rank": "requires --world_size",
    "torchrun: error: ambiguous option: --log=3 could match --log-dir, --log_dir, --logs-specs": "read --log=3, an",
    "train.py: error: unrecognized arguments: --lr=0.1": "the arguments --lr=0.1",
    "current process has finished its bootstrapping phase.": "as soon as it is imported",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "GPU ran out of memory",
    "ncclSystemError: Error while creating shared memory segment /dev/shm/nccl-Xy (size 5242976), No space left on "
    "device": "/dev/shm",
    "OSError: [Errno 28] No space left on device": "disk of the node is full",
    "jobsubmit: the setup ended with exit code 3": "exit code 3",
    "jobsubmit: the packages could not be installed": "a package of the job",
    "ModuleNotFoundError: No module named 'einops'": "the module einops",
    "op.preamble.length <= op.nbytes. 40 vs 20": "do not call the same collectives",
    "params[0] in this process with sizes [5, 10] appears not to match sizes": "different models",
    "RuntimeError: Expected to have finished reduction in the prior iteration before": "not used to compute the loss",
    "Timed out waiting 1800000ms for recv operation to complete": "that never answered",
    "ImportError: cannot import name 'Trainer' from 'utils' (/w/code/utils.py)": "utils has no Trainer",
    "_pickle.UnpicklingError: Weights only load failed. This file": "weights_only is the default",
    "RuntimeError: Error(s) in loading state_dict for ResNet:": "does not match the model",
    "KeyError: 'model_state_dict'": "no entry model_state_dict",
    "[rank3]: MemoryError": "asked for more memory",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data/x'": "data/x, or its folder, is not on the node",
    "Connection closed by peer [127.0.0.1]:4321": "usually to another process of the job",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered": "must not use",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "a GPU of the node is faulty",
}
# What ranks on a real GPU wrote to stderr (torch 2.11, NCCL 2.28), in tests/corpus/nccl.
RECORDED = {
    "assert": "a check in a GPU kernel failed",
    "cpu_tensor": "a tensor on the device cpu",
    "duplicate": "two processes of a node use the same GPU",
    "fork": "a forked process used the GPU",
    "ifname": "no network interface that it may use",
    "no_gpu": "the code needs a GPU, and this node has none",
    "oom": "a GPU ran out of memory",
    "ordinal": "selected a GPU that this node does not have",
    "peer_ended": "lost a connection: usually to another process",
    "timeout": "torch gave up on collective 6 (ALLREDUCE)",
}


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_rank_said_on_a_gpu_is_explained(name: str) -> None:
    found = diagnose((CORPUS / f"nccl/{name}.log").read_text().splitlines()[-400:], signal=signal.SIGABRT)
    assert found is not None
    assert RECORDED[name] in found.meaning


@pytest.mark.parametrize("said", SAID)
def test_last_words_are_explained(said: str) -> None:
    found = diagnose(["Traceback (most recent call last):", said, "  exitcode : 1"])
    assert found is not None
    assert SAID[said] in found.meaning
    assert found.hint


def test_every_row_is_tested_and_complete() -> None:
    texts = [*SAID, *((CORPUS / f"nccl/{name}.log").read_text() for name in RECORDED)]
    assert {next(row for row in TABLE if re.search(row.pattern, text)) for text in texts} == set(TABLE)


def test_a_cause_counts_more_than_what_it_does_to_others() -> None:
    lines = ["Connection closed by peer [10.0.0.2]:1", "ModuleNotFoundError: No module named 'einops'"]
    found = diagnose(lines)
    assert found is not None
    assert "einops" in found.meaning


def test_nothing_is_made_up() -> None:
    assert diagnose(["ValueError: the data is bad"]) is None
    assert diagnose([], signal=15) is None
    killed = diagnose([], signal=9)
    assert killed is not None
    assert "memory" in killed.meaning


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
        "RuntimeError: unable to write to file </torch_121_3021_5>: No space left on device (28)",
        "NCCL WARN Error: failed to extend /dev/shm/nccl-Xy to 9637892 bytes, No space left on device",
    ],
)
def test_a_full_shared_memory_is_not_a_full_disk(said: str) -> None:
    found = diagnose([said], signal=6)
    assert found
    assert "shared memory" in found.meaning
    assert "shm_size" in found.hint


def test_a_bus_error_is_about_shared_memory() -> None:
    found = diagnose(["Fatal Python error: Bus error"], signal=signal.SIGBUS)
    assert found
    assert "shared memory" in found.meaning


def test_a_server_that_has_no_address_need_not_be_a_node() -> None:
    found = diagnose(["Failed to resolve 'huggingface.co' ([Errno -2] Name or service not known)"])
    assert found
    assert "internet" in found.hint


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGILL])
def test_a_crash_in_compiled_code_is_explained(number: int) -> None:
    found = diagnose(["Fatal Python error: Segmentation fault"], signal=number)
    assert found
    assert "compiled code" in found.meaning


def test_nobody_is_told_to_pad_a_batch_where_a_collective_is_called_once_too_often() -> None:
    assert not any("pad" in row.hint.split() for row in TABLE)
