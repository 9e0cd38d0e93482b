GLOBAL_BATCH_SIZE = 32


def get_train_ds_config(offload, stage=2, dtype="bf16", micro_batch=4, world_size=1, accumulation=1):
    device = "cpu" if offload else "none"
    return {
        "train_batch_size": micro_batch * world_size * accumulation,
        "train_micro_batch_size_per_gpu": micro_batch,
        "steps_per_print": 10,
        "zero_optimization": {
            "stage": stage,
            "offload_param": {"device": device},
            "offload_optimizer": {"device": device},
        },
        dtype: {"enabled": True},
        "gradient_clipping": 1.0,
    }
