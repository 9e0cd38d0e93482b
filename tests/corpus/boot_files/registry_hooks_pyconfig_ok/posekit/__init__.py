from .builder import DATASETS, HOOKS, MODELS, build_dataloader, build_dataset, build_model
from . import datasets, hooks, models  # noqa: F401, filled by their decorators
