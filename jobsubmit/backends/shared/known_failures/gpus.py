"""Failures of GPUs: their driver, their memory, and tensors that are on the wrong device."""

from __future__ import annotations

from jobsubmit.backends.shared.known_failures.known_failure import KnownFailure

ROWS = (
    KnownFailure(
        r"have NCCL built in|not compiled with CUDA enabled",
        "the torch of the nodes is built for CPUs only",
        "install the build of torch for CUDA on the nodes, or use the gloo backend and the CPU where "
        "torch.cuda.is_available() is false",
    ),
    KnownFailure(
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "the GPU driver of the node is too old for this torch",
        "choose nodes with a newer driver, or install a torch that is built for an older CUDA version",
    ),
    KnownFailure(
        r"ProcessGroupNCCL is only supported with GPUs|requires at least one CUDA device"
        r"|Found no NVIDIA driver|Not enough GPUs available!|No CUDA GPUs"
        r"|There are currently no available devices found"
        r"|No supported gpu backend found|SyncBatchNorm layers only work with GPU modules",
        "the code needs a GPU, and this node has none",
        "request GPUs (Slurm: backend.gpus_per_node; Volcano: nvidia.com/gpu in backend.resources; "
        "ModelArts: resources.flavor; the local backend has those of this machine), or use the gloo backend and the "
        "CPU where torch.cuda.is_available() is false",
    ),
    KnownFailure(
        r"init_process_group device_id parameter must be a (?:device with a valid index|cuda device with an id)",
        "the device that init_process_group gets as device_id has no number",
        'pass device_id only on GPUs, with the local rank: torch.device("cuda", local_rank); else leave it out',
    ),
    KnownFailure(
        r"Operator ([\w.]+) does not have a sharding strategy registered",
        "DTensor cannot divide the operator {0}, which this device uses",
        "it may be one for CPUs only: train on GPUs, or compute that part without DTensor",
    ),
    KnownFailure(
        r"Duplicate GPU detected",
        "two processes of a node use the same GPU",
        'select the GPU before the first collective: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); and start '
        "no more processes on a node than it has GPUs (resources.nproc_per_node)",
    ),
    KnownFailure(
        r"Bootstrap : no socket interface found",
        "NCCL found no network interface that it may use",
        "correct NCCL_SOCKET_IFNAME, or remove it; this shows the interfaces of the node: ip address",
    ),
    KnownFailure(
        r"No backend type associated with device type (\w+)",
        "a collective got a tensor on the device {0}, which the backend of the process group does not serve",
        "move the tensor first: NCCL takes tensors on GPUs, and Gloo those on the CPU; for both kinds, use "
        'init_process_group("cpu:gloo,cuda:nccl")',
    ),
    KnownFailure(
        r"invalid device ordinal",
        "the code selected a GPU that this node does not have",
        "select the GPU by LOCAL_RANK, not by RANK, and start no more processes on a node than it has GPUs "
        "(resources.nproc_per_node)",
    ),
    KnownFailure(
        r"no kernel image is available for execution",
        "torch, or a package with GPU code, was not built for this type of GPU",
        "install a build for it; if you build the package yourself, set TORCH_CUDA_ARCH_LIST",
    ),
    KnownFailure(
        r"Assertion `([^`]+)` failed[\s\S]*device-side assert triggered",
        "a check in a GPU kernel failed: {0}",
        "mostly an index, a label or a token is out of range. The stack can be wrong; it is right with "
        'env: {CUDA_LAUNCH_BLOCKING: "1"}',
    ),
    KnownFailure(
        r"device-side assert triggered",
        "a check in a GPU kernel failed: mostly an index, a label or a token that is out of range",
        "see the lines with `Assertion` in the log of that rank. The stack can be wrong; it is right with "
        'env: {CUDA_LAUNCH_BLOCKING: "1"}',
    ),
    KnownFailure(
        r"CUDA error: an illegal memory access",
        "a GPU kernel used memory that it must not use",
        'the stack can be wrong; it is right with env: {CUDA_LAUNCH_BLOCKING: "1"}. Custom kernels and packages built '
        "for another CUDA version are common causes",
    ),
    KnownFailure(
        r"CUDA error: (misaligned address|operation not supported on global/shared address space"
        r"|invalid program counter|unspecified launch failure|warp illegal \w+|an illegal instruction was encountered)",
        "a GPU kernel failed: {0}",
        'the stack can be wrong; it is right with env: {CUDA_LAUNCH_BLOCKING: "1"}. Look for a custom kernel (CUDA, '
        "Triton) that computes a wrong address, or a package built for another CUDA version",
    ),
    KnownFailure(
        r"cudaErrorStreamCapture\w+|operation (?:not permitted when stream is capturing|failed due to a previous error "
        r"during capture)",
        "an operation inside the capture of a CUDA graph is not permitted there",
        "between capture begin and end, do not wait for the GPU (.item(), .cpu(), print of a tensor, synchronize) and "
        "do not use other streams; run some steps before the capture on a side stream",
    ),
    KnownFailure(
        r"accessing tensor output of CUDAGraphs that has been overwritten",
        'a result of a model compiled with mode="reduce-overhead" was used after the next run had overwritten it',
        "clone the result, or call torch.compiler.cudagraph_mark_step_begin() before each run",
    ),
    KnownFailure(
        r"OutOfResources: out of resource: ([\w ]+), Required: (\d+), Hardware limit: (\d+)",
        "a Triton kernel needs more {0} than this GPU has: {1} of {2}",
        "use smaller blocks or fewer stages (num_stages)",
    ),
    KnownFailure(
        r"uncorrectable ECC error|fallen off the bus",
        "a GPU of the node is faulty",
        "submit the job again without this node, and tell whoever runs the machines",
    ),
    KnownFailure(
        r"Cannot re-initialize CUDA in forked subprocess",
        "a forked process used the GPU",
        'do not use the GPU in a Dataset or a collate function, or pass multiprocessing_context="spawn" to DataLoader; '
        'start processes of your own with multiprocessing.get_context("spawn")',
    ),
    KnownFailure(
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|CUDNN_STATUS_ALLOC_FAILED",
        "a GPU ran out of memory",
        "reduce the batch size, or use GPUs with more memory; nvidia-smi shows whether another program "
        "uses the GPU as well",
    ),
    KnownFailure(
        r"at least two devices, (\S+) and (\w+(?::\d+)?)",
        "one operation got tensors on {0} and on {1}",
        "move them to one device, for example target.to(output.device); the stack shows where",
    ),
    KnownFailure(
        r"[Ii]nput type \((\S+?)\) and (?:weight|bias) type \((\S+?)\) should be the same",
        "a layer got an input of type {0}, and its weights are of type {1}",
        "move the batch to the device of the model; if only the precision differs, use torch.autocast",
    ),
    KnownFailure(
        r"must have the same dtype, but got (\w+) and (\w+)|expected scalar type (\w+) but found (\w+)",
        "an operation got tensors of different precision",
        "run the forward pass under torch.autocast, or convert model and input to the same dtype",
    ),
    KnownFailure(
        r"can't convert (\S+) device type tensor to numpy",
        "a tensor on {0} was converted to NumPy, which needs it on the CPU",
        "call tensor.detach().cpu().numpy()",
    ),
    KnownFailure(
        r"Expected a '(\w+)' device type for generator but found '(\w+)'",
        "a random generator is on the device {1}, and {0} is needed",
        'make it with torch.Generator(device="cpu"); torch.set_default_device("cuda") also changes the generators of '
        "DataLoader",
    ),
    KnownFailure(
        r"cannot pin '",
        "DataLoader with pin_memory got tensors that are already on the GPU",
        "leave pin_memory out, or keep the tensors of the Dataset on the CPU",
    ),
    KnownFailure(
        r"RuntimeError: No available kernel",
        "no implementation of scaled_dot_product_attention that the code permits can run with these tensors",
        "use bfloat16 or float16 for FlashAttention, or permit another one: sdpa_kernel([FLASH_ATTENTION, MATH]). The "
        "warnings above say why each was refused",
    ),
    KnownFailure(
        r"Expected attn_mask dtype to be bool or float .* attn_mask\.dtype: ([\w ]+?) and",
        "the attention mask is of type {0}, and bool or the type of the query is needed",
        "convert it: attention_mask.bool()",
    ),
    KnownFailure(
        r"unsupported ScalarType BFloat16",
        "a tensor in bfloat16 was converted to NumPy, which has no such type",
        "call tensor.float().cpu().numpy()",
    ),
    KnownFailure(
        r"(\w+) does not have a deterministic implementation",
        "{0} has no deterministic implementation, and the code demands one",
        "call torch.use_deterministic_algorithms(True, warn_only=True), or replace the operation",
    ),
    KnownFailure(
        r"Your setup doesn't support bf16/gpu|--tf32 requires Ampere",
        "Trainer is asked for a precision that needs a GPU, or a newer one",
        "leave out --bf16 and --tf32; on CPUs, bf16 works with use_cpu: {flag: true} in `hyperparameters`",
    ),
    KnownFailure(
        r"FlashAttention (?:only supports|forward only supports|is only supported)|only support fp16 and bf16",
        "FlashAttention does not support this GPU or this precision",
        "use bfloat16 or float16 on GPUs since Ampere, or torch's own scaled_dot_product_attention",
    ),
)
