import os

import torch

from . import get_args, initialize_megatron, mpu, print_rank_0


def allreduce_gradients(model):
    """Average gradients over the data parallel group, one flat tensor per dtype."""
    buckets = {}
    for param in model.parameters():
        if param.requires_grad and param.grad is not None:
            buckets.setdefault(param.data.type(), []).append(param)
    for params in buckets.values():
        grads = [param.grad.data for param in params]
        coalesced = torch._utils._flatten_dense_tensors(grads)
        coalesced /= mpu.get_data_parallel_world_size()
        torch.distributed.all_reduce(coalesced, group=mpu.get_data_parallel_group())
        for buf, synced in zip(grads, torch._utils._unflatten_dense_tensors(coalesced, grads)):
            buf.copy_(synced)


def average_losses_across_data_parallel_group(losses):
    averaged = torch.cat([loss.clone().detach().view(1) for loss in losses])
    torch.distributed.all_reduce(averaged, group=mpu.get_data_parallel_group())
    return averaged / torch.distributed.get_world_size(group=mpu.get_data_parallel_group())


def save_checkpoint(iteration, model, optimizer):
    args = get_args()
    if mpu.get_data_parallel_rank() == 0:
        folder = os.path.join(args.save, f"iter_{iteration:07d}")
        os.makedirs(folder, exist_ok=True)
        name = os.path.join(folder, f"mp_rank_{mpu.get_tensor_model_parallel_rank():02d}.pt")
        torch.save({"iteration": iteration, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, name)
    torch.distributed.barrier()


def load_checkpoint(model, optimizer):
    args = get_args()
    name = os.path.join(args.load, f"mp_rank_{mpu.get_tensor_model_parallel_rank():02d}.pt")
    if not os.path.isfile(name):
        return 0
    state = torch.load(name, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["iteration"]


def pretrain(batches_provider, model_provider, forward_step_func, extra_args_provider=None, args_defaults=None):
    initialize_megatron(extra_args_provider=extra_args_provider, args_defaults=args_defaults)
    args = get_args()
    model = model_provider().cuda(torch.cuda.current_device()).to(args.params_dtype)
    for param in model.parameters():
        torch.distributed.broadcast(param.data, src=mpu.get_tensor_model_parallel_rank(),
                                    group=mpu.get_data_parallel_group())
    cls = torch.optim.SGD if args.optimizer == "sgd" else torch.optim.AdamW
    optimizer = cls(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    iteration = load_checkpoint(model, optimizer) if args.load else 0
    batches = batches_provider()
    while iteration < args.train_iters:
        optimizer.zero_grad()
        loss = forward_step_func(next(batches), model)
        loss.backward()
        allreduce_gradients(model)
        if args.clip_grad > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        iteration += 1
        if iteration % args.log_interval == 0:
            reduced = average_losses_across_data_parallel_group([loss])
            print_rank_0(f" iteration {iteration:8d}/{args.train_iters:8d} | lm loss: {reduced[0].item():.6E}")
        if args.save and args.save_interval and iteration % args.save_interval == 0:
            save_checkpoint(iteration, model, optimizer)
    mpu.destroy_model_parallel()
    torch.distributed.destroy_process_group()
