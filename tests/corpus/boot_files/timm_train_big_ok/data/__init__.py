from .config import resolve_data_config
from .loader import create_dataset, create_loader
