import torch


def fit(model, opt, steps=10):
    for _ in range(steps):
        loss = model(torch.randn(8, 4, device="cuda")).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
