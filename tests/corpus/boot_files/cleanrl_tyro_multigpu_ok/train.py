# torchrun --standalone --nproc_per_node=2 train.py
import os
import random
import time
from dataclasses import dataclass, field
from typing import List, Literal, Optional

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
import tyro
from torch.distributions.categorical import Categorical


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    """the name of this experiment"""
    seed: int = 1
    """seed of the experiment"""
    cuda: bool = True
    """if toggled, cuda will be enabled by default"""
    track: bool = False
    env_id: str = "CartPole-v1"
    total_timesteps: int = 1000000
    learning_rate: float = 2.5e-4
    local_num_envs: int = 8
    """the number of parallel game environments (in the local rank)"""
    num_steps: int = 128
    gamma: float = 0.99
    num_minibatches: int = 4
    update_epochs: int = 4
    clip_coef: float = 0.1
    max_grad_norm: float = 0.5
    device_ids: List[int] = field(default_factory=lambda: [])
    """the device ids that subprocess workers will use"""
    backend: Literal["gloo", "nccl", "mpi"] = "nccl"
    """the backend for distributed training"""
    target_kl: Optional[float] = None

    # to be filled in runtime
    local_batch_size: int = 0
    local_minibatch_size: int = 0
    num_iterations: int = 0
    world_size: int = 0


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        size = int(np.prod(envs.single_observation_space.shape))
        self.network = nn.Sequential(layer_init(nn.Linear(size, 64)), nn.Tanh())
        self.actor = layer_init(nn.Linear(64, envs.single_action_space.n), std=0.01)
        self.critic = layer_init(nn.Linear(64, 1), std=1)

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


if __name__ == "__main__":
    local_rank = int(os.getenv("LOCAL_RANK", "0"))
    args = tyro.cli(Args)
    args.world_size = int(os.getenv("WORLD_SIZE", "1"))
    args.local_batch_size = int(args.local_num_envs * args.num_steps)
    args.local_minibatch_size = int(args.local_batch_size // args.num_minibatches)
    args.num_iterations = args.total_timesteps // (args.local_batch_size * args.world_size)

    rank = 0
    if args.world_size > 1:
        dist.init_process_group(args.backend, rank=int(os.getenv("RANK", "0")), world_size=args.world_size)
        rank = dist.get_rank()
    run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
    if rank == 0 and args.track:
        import wandb

        wandb.init(project="rl", config=vars(args), name=run_name)

    # CRUCIAL: note that we needed to pass a different seed for each data parallelism worker
    args.seed += rank
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed - rank)

    if len(args.device_ids) > 0:
        assert len(args.device_ids) == args.world_size, "you must specify the same number of device ids"
        device = torch.device(f"cuda:{args.device_ids[local_rank]}" if torch.cuda.is_available() and args.cuda else "cpu")
    else:
        device_count = torch.cuda.device_count()
        if device_count and args.cuda:
            device = torch.device(f"cuda:{local_rank % device_count}")
            torch.cuda.set_device(device)
        else:
            device = torch.device("cpu")

    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.env_id) for _ in range(args.local_num_envs)])
    agent = Agent(envs).to(device)
    torch.manual_seed(args.seed)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    next_obs, _ = envs.reset(seed=args.seed)

    for iteration in range(1, args.num_iterations + 1):
        obs, actions, logprobs, rewards, values = [], [], [], [], []
        for step in range(args.num_steps):
            x = torch.as_tensor(next_obs, dtype=torch.float32, device=device)
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(x)
            next_obs, reward, term, trunc, infos = envs.step(action.cpu().numpy())
            obs.append(x)
            actions.append(action)
            logprobs.append(logprob)
            values.append(value.flatten())
            rewards.append(torch.as_tensor(reward, dtype=torch.float32, device=device))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).flatten()
        b_obs, b_actions, b_logprobs = torch.cat(obs), torch.cat(actions), torch.cat(logprobs)
        b_advantages = returns - torch.stack(values).flatten()

        b_inds = np.arange(args.local_batch_size)
        for epoch in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for start in range(0, args.local_batch_size, args.local_minibatch_size):
                mb = b_inds[start : start + args.local_minibatch_size]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions[mb])
                ratio = (newlogprob - b_logprobs[mb]).exp()
                adv = b_advantages[mb]
                pg_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)).mean()
                loss = pg_loss + 0.5 * (newvalue.flatten() - returns[mb]).pow(2).mean() - 0.01 * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                if args.world_size > 1:
                    # batch allreduce ops
                    all_grads_list = [p.grad.view(-1) for p in agent.parameters() if p.grad is not None]
                    all_grads = torch.cat(all_grads_list)
                    dist.all_reduce(all_grads, op=dist.ReduceOp.SUM)
                    offset = 0
                    for param in agent.parameters():
                        if param.grad is not None:
                            param.grad.data.copy_(
                                all_grads[offset : offset + param.numel()].view_as(param.grad.data) / args.world_size
                            )
                            offset += param.numel()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        if rank == 0:
            print(f"iteration={iteration} return={returns.mean().item():.2f}")
    envs.close()
    if args.world_size > 1:
        dist.destroy_process_group()
