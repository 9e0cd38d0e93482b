model = dict(type='RetinaLike', in_channels=3, width=64, num_classes=80)
data = dict(root='/data/coco', length=4096, batch_size=2, num_workers=2)
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(lr=0.01, momentum=0.9, weight_decay=0.0001))
train_cfg = dict(max_epochs=12, log_interval=50)
auto_scale_lr = dict(enable=False, base_batch_size=16)
env_cfg = dict(dist_cfg=dict(backend='nccl'))
custom_hooks = [dict(type='SamplerSeedHook'), dict(type='CheckpointHook', interval=1)]
