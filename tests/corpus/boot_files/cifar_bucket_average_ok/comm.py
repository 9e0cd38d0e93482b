import torch
import torch.distributed as dist


def broadcast_parameters(model, src=0):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src)


def _buckets(params, size_mb):
    bucket, used = [], 0
    for p in params:
        bucket.append(p)
        used += p.numel() * p.element_size()
        if used >= size_mb * 2 ** 20:
            yield bucket
            bucket, used = [], 0
    if bucket:
        yield bucket


def average_gradients(model, bucket_mb=25, half=False):
    world_size = float(dist.get_world_size())
    params = [p for p in model.parameters() if p.grad is not None]
    for bucket in _buckets(params, bucket_mb):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket])
        wire = flat.half() if half else flat
        dist.all_reduce(wire, op=dist.ReduceOp.SUM)
        flat = wire.float().div_(world_size)
        offset = 0
        for p in bucket:
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
