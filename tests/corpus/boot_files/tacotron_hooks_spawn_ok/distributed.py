import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def reduce_tensor(tensor, n_gpus):
    rt = tensor.clone()
    dist.all_reduce(rt, op=dist.ReduceOp.SUM)
    rt /= n_gpus
    return rt


def apply_gradient_allreduce(module):
    """Parameters of rank 0 for all; gradients are averaged by a hook, once per backward pass."""
    for p in module.state_dict().values():
        if torch.is_tensor(p):
            dist.broadcast(p, 0)

    def allreduce_params():
        if not module.needs_reduction:
            return
        module.needs_reduction = False
        buckets = {}
        for param in module.parameters():
            if param.requires_grad and param.grad is not None:
                buckets.setdefault(param.dtype, []).append(param)
        for bucket in buckets.values():
            grads = [param.grad.data for param in bucket]
            coalesced = _flatten_dense_tensors(grads)
            dist.all_reduce(coalesced)
            coalesced /= dist.get_world_size()
            for buf, synced in zip(grads, _unflatten_dense_tensors(coalesced, grads)):
                buf.copy_(synced)

    for param in list(module.parameters()):

        def allreduce_hook(*unused):
            param._execution_engine.queue_callback(allreduce_params)

        if param.requires_grad:
            param._execution_engine = torch.autograd.Variable._execution_engine
            param.register_hook(allreduce_hook)

    def set_needs_reduction(self, input, output):
        self.needs_reduction = True

    module.register_forward_hook(set_needs_reduction)
    return module
