from .loss import NT_Xent
from .model import SimCLR, TransformsSimCLR

__all__ = ["NT_Xent", "SimCLR", "TransformsSimCLR"]
