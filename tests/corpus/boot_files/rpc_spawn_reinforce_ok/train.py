"""One agent, many observers; processes of all nodes meet at --init_method."""
import argparse

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.rpc import RRef, remote

AGENT_NAME = "agent"
OBSERVER_NAME = "observer{}"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2), nn.Softmax(dim=1))

    def forward(self, x):
        return self.net(x)


class Observer:
    def __init__(self, seed):
        self.id = rpc.get_worker_info().id
        self.generator = torch.Generator().manual_seed(seed + self.id)

    def run_episode(self, agent, steps):
        state = torch.randn(4, generator=self.generator)
        for _ in range(steps):
            action = agent.rpc_sync().select_action(self.id, state)
            reward = float((state.sum() > 0) == bool(action))
            state = torch.randn(4, generator=self.generator)
            agent.rpc_sync().report_reward(self.id, reward)


class Agent:
    def __init__(self, world_size, seed):
        self.observers = []
        self.rewards, self.log_probs = {}, {}
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.rref = RRef(self)
        for number in range(1, world_size):
            info = rpc.get_worker_info(OBSERVER_NAME.format(number))
            self.observers.append(remote(info, Observer, args=(seed,)))
            self.rewards[info.id], self.log_probs[info.id] = [], []

    def select_action(self, observer, state):
        chances = torch.distributions.Categorical(self.policy(state.unsqueeze(0)))
        action = chances.sample()
        self.log_probs[observer].append(chances.log_prob(action))
        return action.item()

    def report_reward(self, observer, reward):
        self.rewards[observer].append(reward)

    def run_episode(self, steps):
        waiting = [o.rpc_async().run_episode(self.rref, steps) for o in self.observers]
        torch.futures.wait_all(waiting)

    def finish_episode(self):
        rewards = torch.tensor([r for part in self.rewards.values() for r in part])
        log_probs = torch.cat([p for part in self.log_probs.values() for p in part])
        loss = -(log_probs * (rewards - rewards.mean())).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for key in self.rewards:
            self.rewards[key], self.log_probs[key] = [], []
        return rewards.mean().item()


def run_worker(local, args):
    rank = args.rank * args.per_node + local
    world_size = args.world_size * args.per_node
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=32, init_method=args.init_method)
    if rank == 0:
        rpc.init_rpc(AGENT_NAME, rank=rank, world_size=world_size, rpc_backend_options=options)
        agent = Agent(world_size, args.seed)
        for episode in range(args.episodes):
            agent.run_episode(args.steps)
            score = agent.finish_episode()
            if episode % args.log_interval == 0:
                print(f"episode {episode}: {score:.3f}")
    else:
        rpc.init_rpc(OBSERVER_NAME.format(rank), rank=rank, world_size=world_size, rpc_backend_options=options)
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description="RPC Reinforcement Learning Example")
    parser.add_argument("--per_node", type=int, default=3, help="processes per node")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=543)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--init_method", default=None)
    parser.add_argument("--world_size", type=int, default=1, help="number of nodes")
    parser.add_argument("--rank", type=int, default=0, help="number of this node")
    args = parser.parse_args()
    mp.spawn(run_worker, args=(args,), nprocs=args.per_node, join=True)


if __name__ == "__main__":
    main()
