import copy
import os

import torch as th
import torch.distributed as dist
from torch.nn.parallel.distributed import DistributedDataParallel as DDP
from torch.optim import AdamW

from . import dist_util, logger


class TrainLoop:
    def __init__(self, *, model, diffusion, data, batch_size, microbatch, lr, ema_rate, log_interval, save_interval,
                 resume_checkpoint, lr_anneal_steps):
        self.model, self.diffusion, self.data = model, diffusion, data
        self.microbatch = microbatch if microbatch > 0 else batch_size
        self.lr, self.lr_anneal_steps = lr, lr_anneal_steps
        self.ema_rate = [ema_rate] if isinstance(ema_rate, float) else [float(x) for x in ema_rate.split(",")]
        self.log_interval, self.save_interval = log_interval, save_interval
        self.step, self.resume_step = 0, 0
        self.global_batch = batch_size * dist.get_world_size()

        if resume_checkpoint:
            self.resume_step = parse_resume_step_from_filename(resume_checkpoint)
            model.load_state_dict(dist_util.load_state_dict(resume_checkpoint, map_location=dist_util.dev()))
        dist_util.sync_params(self.model.parameters())
        self.opt = AdamW(model.parameters(), lr=lr)
        self.ema_params = [copy.deepcopy(list(model.parameters())) for _ in self.ema_rate]

        if th.cuda.is_available():
            self.use_ddp = True
            self.ddp_model = DDP(self.model, device_ids=[th.cuda.current_device()], broadcast_buffers=False,
                                 bucket_cap_mb=128, find_unused_parameters=False)
        else:
            if dist.get_world_size() > 1:
                logger.log("Distributed training requires CUDA. Gradients will not be synchronized properly!")
            self.use_ddp = False
            self.ddp_model = self.model

    def run_loop(self):
        while not self.lr_anneal_steps or self.step + self.resume_step < self.lr_anneal_steps:
            batch, cond = next(self.data)
            self.run_step(batch, cond)
            if self.step % self.log_interval == 0:
                logger.dumpkvs()
            if self.step % self.save_interval == 0:
                self.save()
            self.step += 1
        if (self.step - 1) % self.save_interval != 0:
            self.save()

    def run_step(self, batch, cond):
        self.opt.zero_grad()
        for i in range(0, batch.shape[0], self.microbatch):
            micro = batch[i : i + self.microbatch].to(dist_util.dev())
            last_batch = (i + self.microbatch) >= batch.shape[0]
            if last_batch or not self.use_ddp:
                loss = self.diffusion.training_loss(self.ddp_model, micro)
            else:
                with self.ddp_model.no_sync():
                    loss = self.diffusion.training_loss(self.ddp_model, micro)
            loss.backward()
            logger.logkv_mean("loss", loss.item())
        self.opt.step()
        for rate, params in zip(self.ema_rate, self.ema_params):
            for target, source in zip(params, self.model.parameters()):
                target.detach().mul_(rate).add_(source.detach(), alpha=1 - rate)

    def save(self):
        if dist.get_rank() == 0:
            logger.log("saving model...")
            path = os.path.join(logger.get_dir(), f"model{self.step + self.resume_step:06d}.pt")
            th.save(self.model.state_dict(), path)
        dist.barrier()


def parse_resume_step_from_filename(filename):
    split = filename.split("model")
    if len(split) < 2:
        return 0
    try:
        return int(split[-1].split(".")[0])
    except ValueError:
        return 0
