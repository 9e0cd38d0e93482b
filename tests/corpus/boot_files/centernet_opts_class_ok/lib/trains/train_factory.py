import torch.nn.functional as F

from .base_trainer import BaseTrainer


class CtdetTrainer(BaseTrainer):
    def _get_loss(self, opt):
        return lambda out, batch: opt.hm_weight * F.binary_cross_entropy_with_logits(out["hm"], batch["hm"])


class MultiPoseTrainer(CtdetTrainer):
    pass


train_factory = {"ctdet": CtdetTrainer, "multi_pose": MultiPoseTrainer}
