import argparse
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.distributions.normal import Normal

from envs import make_vector_env


def strtobool(val):
    val = val.lower()
    if val in ("y", "yes", "t", "true", "on", "1"):
        return 1
    if val in ("n", "no", "f", "false", "off", "0"):
        return 0
    raise ValueError(f"invalid truth value {val!r}")


def parse_args():
    # fmt: off
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp-name", type=str, default=os.path.basename(__file__).rstrip(".py"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--torch-deterministic", type=lambda x: bool(strtobool(x)), default=True, nargs="?", const=True)
    parser.add_argument("--cuda", type=lambda x: bool(strtobool(x)), default=True, nargs="?", const=True)
    parser.add_argument("--env-id", type=str, default="pendulum")
    parser.add_argument("--total-timesteps", type=int, default=1000000)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--num-steps", type=int, default=256)
    parser.add_argument("--anneal-lr", type=lambda x: bool(strtobool(x)), default=True, nargs="?", const=True)
    parser.add_argument("--backend", type=str, default="gloo", choices=["gloo", "nccl", "mpi"])
    args = parser.parse_args()
    # fmt: on
    args.batch_size = int(args.num_envs * args.num_steps)
    return args


class Agent(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.actor_mean = nn.Sequential(nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, act))
        self.actor_logstd = nn.Parameter(torch.zeros(1, act))

    def forward(self, x, action):
        mean = self.actor_mean(x)
        return Normal(mean, self.actor_logstd.expand_as(mean).exp()).log_prob(action).sum(1)


def main():
    args = parse_args()
    rank, world_size = int(os.getenv("RANK", "0")), int(os.getenv("WORLD_SIZE", "1"))
    distributed = world_size > 1
    if distributed:
        dist.init_process_group(args.backend, rank=rank, world_size=world_size)
    args.seed += rank
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(1)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")

    envs = make_vector_env(args.env_id, args.num_envs, args.seed)
    agent = Agent(envs.obs_size, envs.act_size).to(device)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    torch.manual_seed(args.seed)
    start, updates = time.time(), args.total_timesteps // (args.batch_size * world_size)
    for update in range(1, updates + 1):
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / updates) * args.learning_rate
        obs, actions, returns = envs.rollout(agent, args.num_steps, device)
        loss = -(agent(obs, actions) * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        if distributed:
            for p in agent.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
                p.grad /= world_size
        optimizer.step()
        stats = torch.tensor([returns.mean().item(), 1.0])
        if distributed:
            dist.all_reduce(stats)
        if rank == 0:
            print("SPS:", int(update * args.batch_size * world_size / (time.time() - start)), stats[0] / stats[1])
            torch.save(agent.state_dict(), f"{args.exp_name}.cleanrl_model")
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
