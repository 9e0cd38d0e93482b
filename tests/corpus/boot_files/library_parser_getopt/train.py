import getopt
import os
import sys

import torch
import torch.distributed as dist

opts = {"epochs": "1", "log_dir": "."}
pairs, rest = getopt.getopt(sys.argv[1:], "e:", [k + "=" for k in opts])
for flag, value in pairs:
    opts["epochs" if flag == "-e" else flag.lstrip("-")] = value

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(int(opts["epochs"])):
    loss = model(torch.randn(16, 5, device="cuda")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        with open(os.path.join(opts["log_dir"], "log.txt"), "a") as f:
            f.write(f"{epoch} {loss.item()}\n")
