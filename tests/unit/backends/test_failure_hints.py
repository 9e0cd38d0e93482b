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
    "RuntimeError: [enforce fail at third_party/gloo/gloo/context.cc:23] rank < size. 3 vs 2": "group of only 2",
    "ValueError: You set `devices=1` and `num_nodes=2` in Lightning, but the product (1 * 2) does not match the world "
    "size (4).": "devices=1 on each of 2 nodes, but the job has 4",
    "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--train_fil', 'x']": "--train_fil",
    "FileNotFoundError: Couldn't find a module script at code/accuracy.py. Module 'accuracy' doesn't exist on the "
    "Hugging Face Hub either.": "a download failed",
    "FileNotFoundError: Can't read the file 'data/x.bin'": "the file data/x.bin",
    "ModuleNotFoundError: Requirement 'jsonargparse[signatures]>=4.27.7' not met.": "package jsonargparse is not",
    "ValueError: init_process_group device_id parameter must be a device with a valid index, e.g. cpu:0 or cuda:0": (
        "has no number"
    ),
    "NotImplementedError: Operator aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding "
    "strategy registered.": "cannot divide the operator aten._scaled",
    "    gpu = args.rank % torch.cuda.device_count()\n          ~~~~~~~~~~^~~~~~~~~~~~~~~\nZeroDivisionError: integer "
    "modulo by zero": "by the number of GPUs",
    "    scale = loss_scaler.state_dict()['scale']\n            ~~~~~^^^^\nKeyError: 'scale'": "GradScaler is empty",
    "FileNotFoundError: [Errno 2] No such file or directory: b'/data/x'": "the file /data/x",
    "RuntimeError: Work::getFuture not implemented": "no future",
    "RuntimeError: TensorBoardCallback requires tensorboard to be installed. Either update": "package tensorboard",
    "ImportError: DeepSpeed is not installed => run `pip install deepspeed`": "package DeepSpeed",
    "[rank1]: TypeError: LambdaLR.__init__() got an unexpected keyword argument 'verbose'": "LambdaLR has no argument",
    "ModuleNotFoundError: No module named 'torch._six'": "the installed torch has no module torch._six",
    '  File "/usr/lib/python3.11/subprocess.py", line 1955, in _execute_child\n    raise child_error(number)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'numactl'": "the program numactl is not installed",
    "TypeError: mel() takes 0 positional arguments but 5 were given": "mel takes at most 0 of its arguments",
    "TypeError: Net.forward() got an unexpected keyword argument 'mask'": "forward has no argument mask",
    "RuntimeError: stft requires the return_complex parameter be given for real inputs": "torch 2 refuses torch.stft",
    "AttributeError: type object 'DistributedType' has no attribute 'TPU'": "class DistributedType has no TPU",
    '  File "/usr/lib/python3.11/enum.py", line 784, in __getattr__\n    raise AttributeError(name) from None\n'
    "AttributeError: TPU": "no member TPU",
    "AttributeError: module 'torch.distributed' has no attribute 'algorithms'": "torch.distributed has no algorithms",
    "RuntimeError: There are currently no available devices found, must be one of 'XPU', 'CUDA', 'MLU'": "needs a GPU",
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
    "MisconfigurationException: No supported gpu backend found!": "this node has none",
    "ValueError: SyncBatchNorm layers only work with GPU modules": "this node has none",
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
    "RuntimeError: CUDA error: device-side assert triggered": "mostly an index, a label or a token",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": "not built for this type",
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).": "too old for this torch",
    "ImportError: FlashAttention only supports Ampere GPUs or newer.": "FlashAttention does not support",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded "
    "with url: /gpt2 (Caused by NameResolutionError: Name or service not known)": "does not reach the server",
    "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo": "Hugging Face refused access",
    "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login": "wandb needs a key",
    "wandb.errors.errors.UsageError: No API key configured. Use `wandb login` to log in.": "wandb needs a key",
    "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if": "a precision that needs a GPU",
    "ValueError: --tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7": "a precision that needs a GPU",
    "EOFError: EOF when reading a line": "asks for input",
    "/jobs/a-1/start.sh: line 91: exec: pyhton: not found": "a program that the command starts",
    "run.sh: line 3: nvcc: command not found": "a program that the command starts",
    "/jobs/a-1/start.sh: line 91: ./run.sh: Permission denied": "./run.sh may not be executed",
    "/opt/env/bin/python: No module named missing": "the module missing was not found",
    "OSError: [Errno 24] Too many open files: '/data/1.png'": "too many files open",
    "RuntimeError: received 0 items of ancdata": "too many files open",
    "RuntimeError: can't start new thread": "no more threads",
    "UnicodeDecodeError: 'ascii' codec can't decode byte 0xc3 in position 3: ordinal not in range(128)": "as ASCII",
    "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi": "does not fit the installed torch",
    "ImportError: libGL.so.1: cannot open shared object file: No such file or directory": "the library libGL.so.1",
    "ValueError: numpy.dtype size changed, may indicate binary incompatibility.": "another version of NumPy",
    "AttributeError: module 'numpy' has no attribute 'float'.": "np.float, which NumPy 1.24 removed",
    "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.": "no CUDA compiler",
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory": "not complete",
    "RuntimeError: Expected to mark a variable ready only once.": "twice in one backward pass",
    "IndexError: Target 10 is out of bounds.": "a label or a token is out of range",
    "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
    "gradient_acc_step * world_size 64 != 4 * 1 * 8": "do not fit the number of processes",
    "FileExistsError: [Errno 17] File exists: 'runs/1'": "runs/1 exists already",
    "PermissionError: [Errno 13] Permission denied: '/data/out'": "may not use /data/out",
    "OSError: [Errno 30] Read-only file system: '/data/log.txt'": "read-only",
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error, NCCL version 2.28.9\n"
    "ncclSystemError: System call (e.g. socket, malloc) failed": "NCCL failed: ncclSystemError",
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
    "all_frozen": "without parameters that are trained",
    "backward_twice": "backward() used the same graph twice",
    "checkpoint_device": "saved from a GPU that this process does not have",
    "collate": "different sizes",
    "cublas": "a GPU ran out of memory",
    "different_models": "the ranks have different models",
    "dtensor": "sharded parameters",
    "float16_parameters": "the parameters of the model are float16",
    "fsdp_on_cpu": "FullyShardedDataParallel is on the CPU",
    "generator": "on the device cuda, and cpu is needed",
    "half_input": "tensors of different precision",
    "init_twice": "init_process_group was called twice",
    "inplace": "that backward() needs was changed in place",
    "input_on_cpu": "an input of type torch.FloatTensor, and its weights are of type torch.cuda.FloatTensor",
    "label": "a check in a GPU kernel failed: t >= 0 && t < n_classes",
    "model_on_cpu": "got device_ids, and the model is on the CPU",
    "no_compiler": "needs a C compiler",
    "no_grad": "does not depend on a parameter",
    "no_group": "before init_process_group",
    "no_memory_left": "a GPU ran out of memory",
    "numpy": "a tensor on cuda:0 was converted to NumPy",
    "one_sample": "a single sample",
    "other_parameters": "no gradients of the parameters of this optimizer",
    "pickle": "cannot be sent to another process",
    "pinned": "already on the GPU",
    "sync_batchnorm": "SyncBatchNorm works only on GPUs",
    "two_devices": "got tensors on cuda:0 and on cpu",
    "unscaled_twice": "called twice before one update()",
    "worker_ended": "a worker process of a DataLoader",
    "bfloat16_numpy": "a tensor in bfloat16 was converted to NumPy",
    "channels": "different sizes",
    "checkpoint_truncated": "a file that torch.load reads is not complete",
    "dcp_key": "no entry model.aux_head.weight",
    "deterministic": "adaptive_avg_pool2d_backward_cuda has no deterministic implementation",
    "foreign_rank": "names rank 0, which is not in its group",
    "graph_capture": "inside the capture of a CUDA graph",
    "graph_overwritten": "the next run had overwritten it",
    "image_truncated": "an image is damaged",
    "loader_timeout": "gave no batch for 6 s",
    "mask": "the attention mask is of type long int",
    "monitored_barrier": "rank 1 did not come to monitored_barrier in time",
    "nan_gradient": "not a number: SqrtBackward0",
    "no_kernel": "no implementation of scaled_dot_product_attention",
    "scheduler": "the scheduler was made for 60 steps",
    "triton_address": "a GPU kernel failed: operation not supported on global/shared address space",
    "triton_resources": "more shared memory than this GPU has: 393216 of 232448",
    "unsafe_autocast": "binary_cross_entropy was called under torch.autocast",
    "view": "view() got a tensor",
    "zero_division": "a division by zero",
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


LACKS = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'onnx'"


@pytest.mark.parametrize(
    ("text", "is_missing"),
    [
        (
            "Unable to import onnx.  No module named 'onnx'\nTypeError: f() got an unexpected keyword argument 'x'",
            False,
        ),
        (f"{LACKS}\ngoing on without it\nTraceback (most recent call last):\nKeyError: 'x'", False),
        (LACKS, True),
        (
            f"{LACKS}\n\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\nRuntimeError: please install onnx",
            True,
        ),
    ],
)
def test_a_module_that_the_program_does_without_is_no_cause(text: str, is_missing: bool) -> None:
    found = diagnose(text.splitlines())
    assert (found is not None and "the module onnx" in found.meaning) is is_missing


def test_a_hint_names_what_the_message_names_and_keeps_other_braces() -> None:
    found = diagnose(["TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'"])
    assert found is not None
    assert found.hint.startswith("if Trainer belongs to a library")
    found = diagnose(["UnicodeDecodeError: 'ascii' codec can't decode byte 0xc3"])
    assert found is not None
    assert 'env: {PYTHONUTF8: "1"}' in found.hint


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


def test_a_process_that_aborts_is_explained() -> None:
    found = diagnose(["Fatal Python error: Aborted"], signal=signal.SIGABRT)
    assert found
    assert "ended itself" in found.meaning


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGILL])
def test_a_crash_in_compiled_code_is_explained(number: int) -> None:
    found = diagnose(["Fatal Python error: Segmentation fault"], signal=number)
    assert found
    assert "compiled code" in found.meaning


def test_nobody_is_told_to_pad_a_batch_where_a_collective_is_called_once_too_often() -> None:
    assert not any("pad" in row.hint.split() for row in TABLE)
