import torch
from torch.nn.parallel import DistributedDataParallel


class ModelWithLoss(torch.nn.Module):
    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch):
        outputs = self.model(batch["input"])
        return self.loss(outputs, batch)


class BaseTrainer(object):
    def __init__(self, opt, model, optimizer=None):
        self.opt, self.optimizer = opt, optimizer
        self.model_with_loss = ModelWithLoss(model, self._get_loss(opt))

    def set_device(self, local_rank, device):
        self.model_with_loss = DistributedDataParallel(self.model_with_loss.to(device), device_ids=[local_rank])
        for state in self.optimizer.state.values():
            for k, v in state.items():
                if isinstance(v, torch.Tensor):
                    state[k] = v.to(device=device, non_blocking=True)

    def run_epoch(self, phase, epoch, data_loader):
        if phase == "train":
            self.model_with_loss.train()
            net = self.model_with_loss
        else:
            net = self.model_with_loss.module
            net.eval()
        total, n = 0.0, 0
        for batch in data_loader:
            batch = {k: v.to(self.opt.device, non_blocking=True) for k, v in batch.items()}
            loss = net(batch)
            if phase == "train":
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            total, n = total + loss.item(), n + 1
        return {"loss": total / max(n, 1)}

    def val(self, epoch, data_loader):
        return self.run_epoch("val", epoch, data_loader)

    def train(self, epoch, data_loader):
        return self.run_epoch("train", epoch, data_loader)

    def _get_loss(self, opt):
        raise NotImplementedError
