"""A search for good settings; rank 0 asks optuna, all processes train each trial together."""
import argparse
from datetime import timedelta

import optuna
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from optuna.integration import TorchDistributedTrial
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

args = None


def build(trial):
    layers, width = [], 64
    for i in range(trial.suggest_int("n_layers", 1, 3)):
        out = trial.suggest_int(f"n_units_l{i}", 4, 128)
        layers += [nn.Linear(width, out), nn.ReLU(), nn.Dropout(trial.suggest_float(f"dropout_l{i}", 0.1, 0.5))]
        width = out
    return nn.Sequential(*layers, nn.Linear(width, 10))


def objective(single_trial):
    trial = TorchDistributedTrial(single_trial)
    model = DDP(build(trial))
    name = trial.suggest_categorical("optimizer", ["Adam", "RMSprop", "SGD"])
    optimizer = getattr(optim, name)(model.parameters(), lr=trial.suggest_float("lr", 1e-5, 1e-1, log=True))
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(4000, 64, generator=g), torch.randint(0, 10, (4000,), generator=g))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    accuracy = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        right = torch.zeros(2)
        for x, y in loader:
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += torch.tensor([(out.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(right)
        accuracy = (right[0] / right[1]).item()
        trial.report(accuracy, epoch)
        # asks rank 0, for all
        if trial.should_prune():
            raise optuna.exceptions.TrialPruned()
    return accuracy


def main():
    global args
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--storage", default=None, help="sqlite:///… keeps the study for a restart")
    parser.add_argument("--study", default="mlp")
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    rank = dist.get_rank()
    study = None
    if rank == 0:
        study = optuna.create_study(
            direction="maximize", storage=args.storage, study_name=args.study, load_if_exists=True
        )
        study.optimize(objective, n_trials=args.trials)
    else:
        for _ in range(args.trials):
            try:
                objective(None)
            except optuna.TrialPruned:
                pass
    if rank == 0:
        assert study is not None
        print("best:", study.best_trial.value, study.best_trial.params)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
