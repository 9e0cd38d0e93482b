"""absl flags and mp.spawn: the values travel, the flags do not (a spawned process has parsed none)."""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from absl import app, flags, logging
from torch.utils.data import DataLoader, TensorDataset

FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "tensor file", required=True)
flags.DEFINE_string("workdir", "/out", "where checkpoints go")
flags.DEFINE_integer("batch_size", 64, "per process")
flags.DEFINE_integer("num_epochs", 3, "epochs", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.1, "step size")
flags.DEFINE_enum("loss", "mse", ["mse", "l1"], "what is minimized")
flags.DEFINE_string("init_method", "tcp://127.0.0.1:10001", "given by the platform")
flags.DEFINE_integer("world_size", 1, "number of nodes")
flags.DEFINE_integer("rank", 0, "this node")


def reduce_gradients(model, world_size):
    """Our own data parallelism: mean of the gradients."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad.div_(world_size)


def run(local_rank, per_node, settings):
    rank = settings["rank"] * per_node + local_rank
    world_size = settings["world_size"] * per_node
    dist.init_process_group("nccl", init_method=settings["init_method"], rank=rank, world_size=world_size)
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    torch.manual_seed(17)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["learning_rate"])
    criterion = {"mse": torch.nn.MSELoss, "l1": torch.nn.L1Loss}[settings["loss"]]()
    x, y = torch.load(settings["data"], map_location="cpu")
    part = slice(rank, len(x) // world_size * world_size, world_size)
    loader = DataLoader(TensorDataset(x[part], y[part]), batch_size=settings["batch_size"], shuffle=True)
    for epoch in range(settings["num_epochs"]):
        for a, b in loader:
            loss = criterion(model(a.to(device)), b.to(device))
            optimizer.zero_grad()
            loss.backward()
            reduce_gradients(model, world_size)
            optimizer.step()
        if rank == 0:
            logging.info("epoch %d: %.4f", epoch, loss.item())
            torch.save(model.state_dict(), os.path.join(settings["workdir"], "model.pt"))
    dist.destroy_process_group()


def main(argv):
    if len(argv) > 1:
        raise app.UsageError("Too many command-line arguments.")
    per_node = torch.cuda.device_count()
    mp.spawn(run, args=(per_node, FLAGS.flag_values_dict()), nprocs=per_node, join=True)


if __name__ == "__main__":
    app.run(main)
