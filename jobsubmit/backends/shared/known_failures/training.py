"""Failures of the training code: models, gradients, data, checkpoints."""

from __future__ import annotations

from jobsubmit.backends.shared.known_failures.known_failure import KnownFailure

ROWS = (
    KnownFailure(
        r"Weights only load failed",
        "torch.load refuses a checkpoint that contains more than tensors: weights_only is the default since torch 2.6",
        "pass weights_only=False if you trust the file, or save only the state dict",
    ),
    KnownFailure(
        r"(?:_open_zipfile_reader|PyTorchFileReader)[\s\S]*OSError: \[Errno 22\] Invalid argument",
        "a file that torch.load reads is not complete",
        "an earlier job may have ended while it wrote: load an older checkpoint, and write under a temporary name, "
        "then os.replace() it",
    ),
    KnownFailure(
        r"RuntimeError: Missing key in checkpoint state_dict: (\S+)\.",
        "the distributed checkpoint has no entry {0}",
        "load what it has: DefaultLoadPlanner(allow_partial_load=True); or build the model as it was when the "
        "checkpoint was saved",
    ),
    KnownFailure(
        r"Attempting to deserialize object on (?:a )?CUDA device",
        "the checkpoint was saved from a GPU that this process does not have",
        'pass map_location="cpu" to torch.load',
    ),
    KnownFailure(
        r"PytorchStreamReader failed|unexpected EOF, expected \d+ more bytes|EOFError: Ran out of input",
        "a file that the code loads is not complete",
        "another process may still write it, or a job ended while it did: write under a temporary name, "
        "then os.replace() it",
    ),
    KnownFailure(
        r"got mixed torch\.Tensor and DTensor",
        "an operation got sharded parameters (DTensor) and ordinary tensors",
        "load with torch.distributed.checkpoint.state_dict.set_model_state_dict, and convert with "
        "distribute_tensor or full_tensor()",
    ),
    KnownFailure(
        r"Error\(s\) in loading state_dict for (\w+)",
        "the checkpoint does not match the model: its keys or shapes differ from those of {0}",
        "build the model as it was when the checkpoint was saved; if the keys begin with `module.`, they come from "
        "DistributedDataParallel: save and load model.module",
    ),
    KnownFailure(
        r"KeyError: '([\w.]*state_dict|(?:module|model|optimizer|state)[\w.]*)'",
        "the checkpoint has no entry {0}",
        "print its keys: torch.load(path, map_location='cpu').keys(); another version of the code may have written it",
    ),
    KnownFailure(
        r"device_ids and output_device arguments only work with .*device\(type='cpu'\)",
        "DistributedDataParallel got device_ids, and the model is on the CPU",
        "move the model to its GPU first: model.to(local_rank); on nodes without GPUs, leave device_ids out",
    ),
    KnownFailure(
        r"SyncBatchNorm expected input tensor to be on",
        "SyncBatchNorm works only on GPUs",
        "convert the model only if torch.cuda.is_available()",
    ),
    KnownFailure(
        r"unexpectedly has parameters on cpu",
        "a model under FullyShardedDataParallel is on the CPU",
        "pass device_id=torch.cuda.current_device() to it",
    ),
    KnownFailure(
        r"doesn't have any parameters? that requires? a gradient",
        "DistributedDataParallel got a model without parameters that are trained",
        "wrap only models that are trained; unfreeze parameters before you wrap",
    ),
    KnownFailure(
        r"Expected to mark a variable ready only once",
        "DistributedDataParallel got the gradient of a parameter twice in one backward pass",
        "pass use_reentrant=False to activation checkpointing; if each step uses the same parameters, "
        "static_graph=True to DistributedDataParallel",
    ),
    KnownFailure(
        r"unscale_\(\) has already been called",
        "GradScaler.unscale_() was called twice before one update()",
        "call it once per optimizer and step; with gradient accumulation, only in the steps that update the parameters",
    ),
    KnownFailure(
        r"Attempting to unscale FP16 gradients",
        "GradScaler got gradients in float16: the parameters of the model are float16",
        "keep the parameters in float32 and run the forward pass under torch.autocast; or use bfloat16 without "
        "GradScaler",
    ),
    KnownFailure(
        r"are unsafe to autocast",
        "binary_cross_entropy was called under torch.autocast, where float16 would overflow",
        "return logits from the model, and use BCEWithLogitsLoss",
    ),
    KnownFailure(
        r"Function '(\w+)' returned nan values",
        "the gradient of an operation is not a number: {0}",
        "the first stack of the log shows the operation: a square root or a norm of 0, a logarithm of 0 or a division "
        "by 0 needs a small number added",
    ),
    KnownFailure(
        r"view size is not compatible with input tensor's size and stride",
        "view() got a tensor whose values are not in one block of memory, as after transpose() or in channels_last",
        "use reshape(), or call contiguous() before",
    ),
    KnownFailure(
        r"Tried to step (\d+) times\. The specified number of total steps is (\d+)",
        "the scheduler was made for {1} steps, and the training takes more",
        "compute total_steps from the length of the loader of this job, and the accumulation of gradients; after a "
        "resume, a scheduler keeps the number of the earlier job",
    ),
    KnownFailure(
        r"No inf checks were recorded for this optimizer",
        "GradScaler found no gradients of the parameters of this optimizer",
        "make the optimizer from the parameters of the model that is trained, and call "
        "scaler.scale(loss).backward() first",
    ),
    KnownFailure(
        r"Trying to backward through the graph a second time",
        "backward() used the same graph twice",
        "detach what is kept from one step to the next (.detach()), or add up losses before one backward()",
    ),
    KnownFailure(
        r"modified by an inplace operation",
        "a tensor that backward() needs was changed in place",
        "torch.autograd.set_detect_anomaly(True) shows which operation; with two forward passes of "
        "DistributedDataParallel before one backward(), pass broadcast_buffers=False",
    ),
    KnownFailure(
        r"does not require grad and does not have a grad_fn",
        "the loss does not depend on a parameter that is trained",
        "look for no_grad(), detach(), item() or frozen parameters between the model and the loss",
    ),
    KnownFailure(
        r"Expected more than 1 value per channel when training",
        "a batch had a single sample, which batch normalisation cannot use",
        "pass drop_last=True to the DataLoader of the training",
    ),
    KnownFailure(
        r"Trying to resize storage that is not resizable",
        "the samples of a batch have different sizes",
        "bring them to one size in the Dataset (also the number of channels: image.convert('RGB')), or pass a "
        "collate_fn to DataLoader",
    ),
    KnownFailure(
        r"image file is truncated|cannot identify image file|Unrecognized data stream contents",
        "an image is damaged, or is none",
        "the stack does not show which: catch OSError in the Dataset and print the path; copy the file again",
    ),
    KnownFailure(
        r"DataLoader timed out after (\S+) seconds",
        "the workers of a DataLoader gave no batch for {0} s, which is its timeout",
        "look for slow storage or for a worker that waits for a lock; raise timeout, or use more workers",
    ),
    KnownFailure(
        r"device_count\(\)[^\n]*\n(?:[^\n]*[~^][^\n]*\n)?[^\n]*ZeroDivisionError",
        "a division by the number of GPUs, which is 0 on this node",
        "use the local rank, or divide by max(torch.cuda.device_count(), 1)",
    ),
    KnownFailure(
        r"state_dict\(\)[\s\S]{0,300}KeyError: 'scale'",
        "the state_dict() of a GradScaler is empty without GPUs",
        'use scaler.get_scale(), or state_dict().get("scale", 1.0)',
    ),
    KnownFailure(
        r"Work::getFuture not implemented",
        "this backend gives no future for that collective, as NCCL does",
        "on CPUs, where gloo exchanges the data, call wait() on what the collective returns instead of get_future()",
    ),
    KnownFailure(
        r"ZeroDivisionError",
        "a division by zero",
        "often the number of batches is 0 on this rank: compare the size of the data with batch size and processes, "
        "and look for drop_last=True with few samples",
    ),
    KnownFailure(
        r"stack expects each tensor to be equal size",
        "the samples of a batch have different sizes",
        "bring them to one size in the Dataset, or pass a collate_fn to DataLoader",
    ),
    KnownFailure(
        r"IndexError: Target (-?\d+) is out of bounds|index out of range in self",
        "a label or a token is out of range",
        "compare the labels with the number of classes of the model, and the tokens with the size of its vocabulary",
    ),
    KnownFailure(
        r"Check batch related parameters",
        "the batch sizes in the DeepSpeed configuration do not fit the number of processes",
        "train_batch_size must be micro batch * accumulation steps * processes: leave it out, or use auto "
        "with transformers",
    ),
    KnownFailure(
        r"Can't pickle |[Cc]annot pickle ",
        "an object cannot be sent to another process",
        "mp.spawn and spawned data workers need functions of a module (no lambda, no inner function), and "
        "no open files or locks",
    ),
    KnownFailure(
        r"(?m)^(?:\[rank\d+\]: )?(?:numpy\S*\.)?_?(?:Array)?MemoryError|\[Errno 12\] Cannot allocate memory",
        "the process asked for more memory than its machine or container has",
        "reduce the batch size, use fewer data workers, or read the data in chunks",
    ),
)
