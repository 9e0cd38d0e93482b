import os

import torch
import torch.distributed as dist
from absl import app, flags, logging

FLAGS = flags.FLAGS
flags.DEFINE_float("learning_rate", 0.01, "step size", lower_bound=0)
flags.DEFINE_integer("steps", 100, "number of steps")
flags.DEFINE_bool("use_bn", False, "batch norm")
flags.DEFINE_enum("opt", "sgd", ["sgd", "adam"], "optimizer")


def build(device):
    layers = [torch.nn.Linear(16, 16)]
    if FLAGS.use_bn:
        layers.append(torch.nn.BatchNorm1d(16))
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1)).to(device)
    if FLAGS.use_bn:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index])


def main(argv):
    del argv
    dist.init_process_group("nccl", init_method="env://")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = build(device)
    cls = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[FLAGS.opt]
    opt = cls(model.parameters(), lr=FLAGS.learning_rate)
    for step in range(FLAGS.steps):
        loss = model(torch.randn(32, 16, device=device)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                logging.info("step %d loss %.4f", step, mean.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    app.run(main)
