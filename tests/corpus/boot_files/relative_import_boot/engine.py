import torch


def fit(model, opt, epochs):
    for _ in range(epochs):
        loss = model(torch.randn(8, 4, device="cuda")).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
