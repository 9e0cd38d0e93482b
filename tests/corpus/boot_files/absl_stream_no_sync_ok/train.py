import contextlib
import os

import torch
import torch.distributed as dist
from absl import app, flags, logging
from torch.nn.parallel import DistributedDataParallel

import input_pipeline

FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size", 128, "per process and micro step")
flags.DEFINE_integer("micro_steps", 4, "steps that are accumulated")
flags.DEFINE_integer("epochs", 2, "passes")
flags.DEFINE_bool("use_wandb", False, "log there, too")
flags.DEFINE_string("workdir", None, "folder of checkpoints")
flags.mark_flag_as_required("workdir")


def train_epoch(model, optimizer, loader, device):
    for number, (x, y) in enumerate(loader):
        is_last = number % FLAGS.micro_steps == FLAGS.micro_steps - 1
        context = contextlib.nullcontext() if is_last else model.no_sync()
        with context:
            loss = torch.nn.functional.soft_margin_loss(model(x.to(device)).squeeze(-1), y.to(device))
            (loss / FLAGS.micro_steps).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return loss.detach()


def main(_):
    dist.init_process_group("nccl")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    if FLAGS.use_wandb and rank == 0:
        import wandb
        wandb.init(project="signs", config=FLAGS.flag_values_dict())
    net = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
    model = DistributedDataParallel(net, device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    path = os.path.join(FLAGS.workdir, "state.pt")
    start = 0
    if os.path.exists(path):
        state = torch.load(path, map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"] + 1
    dist.barrier()

    dataset, loader = input_pipeline.make_loader(FLAGS.batch_size)
    for epoch in range(start, FLAGS.epochs):
        dataset.epoch = epoch
        loss = train_epoch(model, optimizer, loader, device)
        if rank == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
            dist.reduce(loss, dst=0, op=dist.ReduceOp.AVG)
            logging.info("epoch %d loss %.4f", epoch, loss.item())
        else:
            dist.reduce(loss, dst=0, op=dist.ReduceOp.AVG)
    dist.destroy_process_group()


if __name__ == "__main__":
    app.run(main)
