from dataclasses import dataclass


@dataclass
class train_config:
    model_dim: int = 512
    num_layers: int = 8
    tokens_file: str = "/data/tokens.pt"
    batch_size_training: int = 4
    context_length: int = 1024
    gradient_accumulation_steps: int = 1
    num_epochs: int = 3
    num_workers_dataloader: int = 1
    lr: float = 1e-4
    seed: int = 42
    output_dir: str = "/out/model"
    save_model: bool = True
