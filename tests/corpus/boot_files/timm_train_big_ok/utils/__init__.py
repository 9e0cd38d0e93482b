from .checkpoint_saver import CheckpointSaver
from .distributed import distribute_bn, init_distributed_device, is_primary, reduce_tensor
from .misc import AverageMeter, ModelEma, accuracy, random_seed, setup_default_logging
