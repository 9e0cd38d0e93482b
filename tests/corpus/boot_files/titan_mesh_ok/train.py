import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.elastic.multiprocessing.errors import record

from titan.config_manager import JobConfig
from titan.datasets import build_dataloader
from titan.model import Transformer, parallelize
from titan.parallel_dims import ParallelDims

VOCABULARY = 32000


def init_distributed():
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    dist.init_process_group("nccl")


def dist_mean(x, mesh):
    return dist.all_reduce(x, op=dist.ReduceOp.AVG, group=mesh.get_group())


@record
def main(job_config):
    world_size = int(os.environ["WORLD_SIZE"])
    dims = ParallelDims(
        dp_shard=job_config.parallelism.data_parallel_shard_degree,
        tp=job_config.parallelism.tensor_parallel_degree,
        world_size=world_size,
    )
    device = torch.device(f"cuda:{int(os.environ['LOCAL_RANK'])}")
    torch.cuda.set_device(device)
    init_distributed()
    mesh = dims.build_mesh(device_type="cuda")
    dp_mesh = mesh["dp_shard"]

    loader = build_dataloader(VOCABULARY, job_config.training.seq_len, job_config.training.batch_size,
                              dp_mesh.get_local_rank(), dp_mesh.size())
    with torch.device("meta"):
        model = Transformer(job_config.model.dim, job_config.model.n_layers, VOCABULARY)
    model = parallelize(model, mesh, job_config.training.compile)
    model.to_empty(device="cuda")
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    cls = getattr(torch.optim, job_config.optimizer.name)
    optimizer = cls(model.parameters(), lr=job_config.optimizer.lr, foreach=False)

    folder = os.path.join(job_config.job.dump_folder, job_config.checkpoint.folder)
    if os.path.isdir(folder):
        state = get_model_state_dict(model)
        dcp.load(state, checkpoint_id=folder)
        set_model_state_dict(model, state)

    batches = iter(loader)
    began = time.perf_counter()
    for step in range(1, job_config.training.steps + 1):
        inputs, labels = (t.to(device) for t in next(batches))
        logits = model(inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            shown = loss.detach()
            dist_mean(shown, dp_mesh)
            if dist.get_rank() == 0:
                print(f"step {step}: {shown.item():.4f}, {time.perf_counter() - began:.1f} s")
        if step % job_config.checkpoint.interval == 0:
            dcp.save(get_model_state_dict(model), checkpoint_id=folder)
    if dist.get_rank() == 0:
        print("Sleeping for other ranks to complete")
        time.sleep(2)
    dist.destroy_process_group()


if __name__ == "__main__":
    config = JobConfig()
    config.parse_args()
    main(config)
