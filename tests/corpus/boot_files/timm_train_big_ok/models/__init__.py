from .factory import create_model, list_models
from .helpers import load_checkpoint, resume_checkpoint
