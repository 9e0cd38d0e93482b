_C = {
    "NUM_GPUS": 8,
    "NUM_SHARDS": 1,
    "SHARD_ID": 0,
    "DIST_BACKEND": "nccl",
    "RNG_SEED": 1,
    "OUTPUT_DIR": "./tmp",
    "LOG_PERIOD": 10,
    "TRAIN.ENABLE": True,
    "TRAIN.BATCH_SIZE": 64,
    "DATA.NUM_VIDEOS": 10000,
    "SOLVER.BASE_LR": 0.1,
    "SOLVER.MAX_EPOCH": 30,
}


def assert_and_infer_cfg(cfg):
    assert cfg["NUM_GPUS"] == 0 or cfg["TRAIN.BATCH_SIZE"] % cfg["NUM_GPUS"] == 0
    assert cfg["SHARD_ID"] < cfg["NUM_SHARDS"]
    return cfg


def get_cfg():
    return dict(_C)
