import time

import torch
import torch.distributed as dist

from options.train_options import TrainOptions
from util import dist_setup, dist_cleanup

if __name__ == '__main__':
    opt = TrainOptions().parse()
    local_rank = dist_setup()
    net = torch.nn.Sequential(torch.nn.Conv2d(3, opt.ngf, 3, padding=1), torch.nn.Conv2d(opt.ngf, 3, 1)).cuda(local_rank)
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[local_rank])
    optim = torch.optim.Adam(net.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    for epoch in range(opt.epoch_count, opt.n_epochs + opt.n_epochs_decay + 1):
        t0 = time.time()
        x = torch.randn(opt.batch_size, 3, 64, 64, device=local_rank)
        loss = (net(x) - x).abs().mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        if epoch % opt.save_epoch_freq == 0 and dist.get_rank() == 0:
            torch.save(net.module.state_dict(), f'{opt.name}_{epoch}.pth')
        print('End of epoch %d \t Time Taken: %d sec' % (epoch, time.time() - t0))
    dist_cleanup()
