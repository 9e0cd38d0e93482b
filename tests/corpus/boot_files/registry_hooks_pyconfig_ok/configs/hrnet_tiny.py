dist_params = dict(backend="nccl")
total_epochs = 210
optimizer = dict(type="Adam", lr=5e-4)
model = dict(type="TopDown", width=32, joints=17)
evaluation = dict(interval=10)
data = dict(
    samples_per_gpu=64, workers_per_gpu=2,
    train=dict(type="Keypoints", ann_file="/data/coco/train.pt"),
    val=dict(type="Keypoints", ann_file="/data/coco/val.pt"))
hooks = [dict(type="CheckpointHook", interval=10), dict(type="TextLoggerHook", interval=50)]
