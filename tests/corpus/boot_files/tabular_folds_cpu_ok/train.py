"""A small network on a table; one process, no process group."""
import argparse
import csv
import json
import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CKPT_NAME = "tabular.pt"


def read_table(path, target):
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    names = [name for name in rows[0] if name != target]
    x = torch.tensor([[float(row[name]) for name in names] for row in rows])
    y = torch.tensor([[float(row[target])] for row in rows])
    return (x - x.mean(0)) / (x.std(0) + 1e-6), y


def seed_everything(seed):
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    torch.manual_seed(seed)


def get_device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main(args):
    seed_everything(args.seed)
    device = get_device()
    x, y = read_table(args.train_csv, args.target)
    order = torch.randperm(len(x))
    valid, train = order[: len(x) // args.n_folds], order[len(x) // args.n_folds :]
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(x.shape[1], args.hidden), nn.ReLU(), nn.Linear(args.hidden, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    os.makedirs(args.checkpoint_dir, exist_ok=True)
    epoch, path = 0, os.path.join(args.checkpoint_dir, CKPT_NAME)
    if os.path.exists(path):
        state = torch.load(path, map_location=device)
        model.load_state_dict(state["model"])
        epoch = state["epoch"]
    history = []
    while epoch < args.epochs:
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb.to(device)), yb.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            score = nn.functional.mse_loss(model(x[valid].to(device)), y[valid].to(device)).item()
        epoch += 1
        history.append(score)
        torch.save({"model": model.state_dict(), "epoch": epoch}, path)
    print(json.dumps({"rmse": min(history) ** 0.5 if history else None}))


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description="folds")
    ap.add_argument("--train_csv", required=True)
    ap.add_argument("--target", required=True)
    ap.add_argument("--n_folds", type=int, default=5)
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--batch_size", type=int, default=256)
    ap.add_argument("--epochs", type=int, default=30)
    ap.add_argument("--seed", type=int, default=42)
    ap.add_argument("--checkpoint_dir", default="/cache/model")
    main(ap.parse_args())
