import numpy as np
import torch


class VectorPendulum:
    obs_size, act_size = 3, 1

    def __init__(self, count, seed):
        self.rng = np.random.default_rng(seed)
        self.theta = self.rng.uniform(-3, 3, count)

    def observe(self):
        return np.stack([np.cos(self.theta), np.sin(self.theta), self.theta], 1).astype(np.float32)

    def rollout(self, agent, steps, device):
        obs, acts, rewards = [], [], []
        for _ in range(steps):
            x = torch.from_numpy(self.observe()).to(device)
            with torch.no_grad():
                action = agent.actor_mean(x) + torch.randn(len(x), 1, device=device)
            self.theta += 0.05 * action.cpu().numpy()[:, 0]
            obs.append(x)
            acts.append(action)
            rewards.append(-np.abs(self.theta))
        returns = torch.as_tensor(np.stack(rewards)[::-1].cumsum(0)[::-1].copy(), dtype=torch.float32)
        return torch.cat(obs), torch.cat(acts), returns.flatten().to(device)


def make_vector_env(name, count, seed):
    assert name == "pendulum", name
    return VectorPendulum(count, seed)
