from easydict import EasyDict as edict

config = edict()
config.network = "r50"
config.output = "/out/ms1mv3_r50"
config.lr = 0.02
config.rec = "/data/ms1m-retinaface-t1"
config.num_classes = 93431
config.num_image = 5179510
config.num_epoch = 20
