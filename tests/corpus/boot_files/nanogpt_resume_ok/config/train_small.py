out_dir = 'out-small'
eval_interval = 250
batch_size = 64
block_size = 256
n_layer = 6
n_head = 6
n_embd = 384
max_iters = 5000
