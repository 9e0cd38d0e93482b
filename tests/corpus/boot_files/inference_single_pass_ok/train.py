import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@torch.inference_mode()
def predict(model, loader, device):
    outs = []
    for (x,) in loader:
        outs.append(model(x.to(device)).argmax(-1))
    return torch.cat(outs)


def main():
    ap = argparse.ArgumentParser("embed")
    ap.add_argument("--weights", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--bs", type=int, default=128)
    a = ap.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    model = torch.nn.Linear(64, 10)
    model.load_state_dict(torch.load(a.weights, map_location="cuda:0"))
    model.to(device).eval()
    data = TensorDataset(torch.randn(4096, 64))
    loader = DataLoader(data, a.bs, sampler=DistributedSampler(data))
    pred = predict(model, loader, device)
    if dist.get_rank() == 0:
        bins = [torch.empty_like(pred) for _ in range(dist.get_world_size())]
    else:
        bins = None
    dist.gather(pred, gather_list=bins, dst=0)
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(torch.cat(bins).cpu(), os.path.join(a.out, "pred.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
