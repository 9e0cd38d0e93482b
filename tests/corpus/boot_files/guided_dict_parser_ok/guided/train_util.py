import copy
import os

import torch as th
import torch.distributed as dist
from torch.nn.parallel.distributed import DistributedDataParallel as DDP

from . import dist_util


class TrainLoop:
    def __init__(self, *, model, betas, data, batch_size, microbatch, lr, ema_rate, log_interval, save_interval,
                 resume_checkpoint, weight_decay=0.0, max_steps=0):
        self.model, self.data = model, data
        self.alphas = th.cumprod(1 - betas, 0).to(dist_util.dev())
        self.batch_size = batch_size
        self.microbatch = microbatch if microbatch > 0 else batch_size
        self.ema_rate = [float(x) for x in str(ema_rate).split(",")]
        self.log_interval, self.save_interval, self.max_steps = log_interval, save_interval, max_steps
        self.step = 0
        if resume_checkpoint:
            if dist.get_rank() == 0:
                state = dist_util.load_state_dict(resume_checkpoint, map_location=dist_util.dev())
                self.model.load_state_dict(state)
        dist_util.sync_params(self.model.parameters())
        self.opt = th.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=weight_decay)
        self.ema = [copy.deepcopy(list(self.model.parameters())) for _ in self.ema_rate]
        if th.cuda.is_available():
            self.use_ddp = True
            self.ddp_model = DDP(self.model, device_ids=[dist_util.dev()], output_device=dist_util.dev(),
                                 broadcast_buffers=False, bucket_cap_mb=128, find_unused_parameters=False)
        else:
            self.use_ddp = False
            self.ddp_model = DDP(self.model)

    def run_loop(self):
        while not self.max_steps or self.step < self.max_steps:
            batch, cond = next(self.data)
            self.run_step(batch, cond)
            if self.step % self.log_interval == 0 and dist.get_rank() == 0:
                print("step", self.step)
            if self.step % self.save_interval == 0 and self.step:
                self.save()
            self.step += 1

    def run_step(self, batch, cond):
        self.opt.zero_grad()
        for i in range(0, batch.shape[0], self.microbatch):
            micro = batch[i: i + self.microbatch].to(dist_util.dev())
            micro_cond = {k: v[i: i + self.microbatch].to(dist_util.dev()) for k, v in cond.items()}
            last_batch = (i + self.microbatch) >= batch.shape[0]
            t = th.randint(len(self.alphas), (len(micro),), device=dist_util.dev())
            if last_batch or not self.use_ddp:
                self.losses(micro, t, micro_cond).backward()
            else:
                with self.ddp_model.no_sync():
                    self.losses(micro, t, micro_cond).backward()
        self.opt.step()
        for rate, params in zip(self.ema_rate, self.ema):
            for target, source in zip(params, self.model.parameters()):
                target.detach().mul_(rate).add_(source.detach(), alpha=1 - rate)

    def losses(self, x, t, cond):
        noise = th.randn_like(x)
        a = self.alphas[t][:, None, None, None]
        return (self.ddp_model(a.sqrt() * x + (1 - a).sqrt() * noise, t, **cond) - noise).pow(2).mean()

    def save(self):
        if dist.get_rank() == 0:
            folder = os.environ.get("OPENAI_LOGDIR", "/tmp/guided")
            os.makedirs(folder, exist_ok=True)
            th.save(self.model.state_dict(), os.path.join(folder, f"model{self.step:06d}.pt"))
        dist.barrier()
