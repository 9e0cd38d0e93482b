from easydict import EasyDict as edict

config = edict()
config.margin_list = (1.0, 0.5, 0.0)
config.network = "r50"
config.resume = False
config.output = None
config.embedding_size = 512
config.fp16 = True
config.weight_decay = 5e-4
config.batch_size = 128
config.lr = 0.1
config.gradient_acc = 1
config.frequent = 10
config.seed = 2048
config.num_workers = 2
