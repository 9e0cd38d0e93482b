"""Actors and a learner that talk by RPC; every process is one of them."""
import argparse
import os
from collections import deque

import torch
import torch.distributed.rpc as rpc
import torch.nn as nn
from torch.distributed.rpc import RRef, remote, rpc_async

LEARNER = "learner"
ACTOR = "actor{}"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 128), nn.Dropout(p=0.6), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, x):
        return self.body(x).softmax(-1)


class Actor:
    def __init__(self, seed):
        self.id = rpc.get_worker_info().id
        self.gen = torch.Generator().manual_seed(seed + self.id)

    def run_episode(self, learner_rref, n_steps):
        state, rewards = torch.randn(4, generator=self.gen), []
        for _ in range(n_steps):
            action = learner_rref.rpc_sync().select_action(self.id, state)
            state = 0.9 * state + 0.1 * action
            rewards.append(float(-state.abs().sum()))
        learner_rref.rpc_sync().report(self.id, rewards)


class Learner:
    def __init__(self, world_size, args):
        self.rref, self.args = RRef(self), args
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=args.lr)
        self.actors = [remote(rpc.get_worker_info(ACTOR.format(rank)), Actor, args=(args.seed,))
                       for rank in range(1, world_size)]
        self.log_probs, self.rewards, self.recent = {}, {}, deque(maxlen=20)

    def select_action(self, actor, state):
        m = torch.distributions.Categorical(self.policy(state))
        action = m.sample()
        self.log_probs.setdefault(actor, []).append(m.log_prob(action))
        return action.item()

    def report(self, actor, rewards):
        self.rewards[actor] = rewards

    def run_episode(self):
        futs = [rpc_async(actor.owner(), call_actor, args=(actor, self.rref, self.args.num_steps))
                for actor in self.actors]
        for fut in futs:
            fut.wait()
        loss = torch.stack([-p * r for a in self.rewards for p, r in zip(self.log_probs[a], self.rewards[a])]).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.recent.append(sum(map(sum, self.rewards.values())))
        self.log_probs.clear()
        self.rewards.clear()


def call_actor(actor_rref, learner_rref, n_steps):
    return actor_rref.rpc_sync().run_episode(learner_rref, n_steps)


def main():
    parser = argparse.ArgumentParser(description="RPC policy gradient")
    parser.add_argument("--gamma", type=float, default=0.99, metavar="G")
    parser.add_argument("--seed", type=int, default=543, metavar="N")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--num-steps", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=50)
    args = parser.parse_args()

    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(args.seed)
    if rank == 0:
        rpc.init_rpc(LEARNER, rank=rank, world_size=world_size)
        learner = Learner(world_size, args)
        for episode in range(args.episodes):
            learner.run_episode()
            print(f"Episode {episode}\tmean: {sum(learner.recent) / len(learner.recent):.2f}")
        torch.save(learner.policy.state_dict(), "policy.pt")
    else:
        rpc.init_rpc(ACTOR.format(rank), rank=rank, world_size=world_size)
        # the actors passively wait for instructions
    rpc.shutdown()


if __name__ == "__main__":
    main()
