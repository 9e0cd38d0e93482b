dist_params = dict(backend='nccl')
optimizer = dict(lr=0.01, momentum=0.9, weight_decay=0.0005)
data_root = '/data/voc'
classes = 21
samples_per_gpu = 4
workers_per_gpu = 2
max_epochs = 40
cudnn_benchmark = True
