import os

import torch


class CheckpointSaver:
    def __init__(self, model, optimizer, args, model_ema, amp_scaler, checkpoint_dir, max_history=10):
        self.model, self.optimizer, self.args = model, optimizer, args
        self.model_ema, self.amp_scaler = model_ema, amp_scaler
        self.checkpoint_dir = checkpoint_dir
        self.max_history = max_history
        self.files = []

    def save_checkpoint(self, epoch, metric=None):
        path = os.path.join(self.checkpoint_dir, f'checkpoint-{epoch}.pth.tar')
        state = {'epoch': epoch, 'state_dict': getattr(self.model, 'module', self.model).state_dict(),
                 'optimizer': self.optimizer.state_dict(), 'args': self.args, 'metric': metric}
        if self.amp_scaler is not None:
            state['amp_scaler'] = self.amp_scaler.state_dict()
        if self.model_ema is not None:
            state['state_dict_ema'] = self.model_ema.module.state_dict()
        torch.save(state, path)
        self.files = sorted(self.files + [(path, metric)], key=lambda x: x[1], reverse=True)
        for old, _ in self.files[self.max_history:]:
            os.remove(old)
        self.files = self.files[:self.max_history]
        return self.files[0][1]
