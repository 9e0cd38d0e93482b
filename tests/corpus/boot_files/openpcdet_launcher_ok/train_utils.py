import glob
import os

import torch


def train_one_epoch(model, optimizer, train_loader, model_func, rank, logger):
    for i, batch in enumerate(train_loader):
        model.train()
        optimizer.zero_grad()
        loss = model_func(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()
        if rank == 0 and i % 50 == 0:
            logger.info('iter %d loss %.4f', i, loss.item())


def train_model(model, optimizer, train_loader, model_func, start_epoch, total_epochs, rank, train_sampler,
                ckpt_save_dir, max_ckpt_save_num, logger):
    for cur_epoch in range(start_epoch, total_epochs):
        if train_sampler is not None:
            train_sampler.set_epoch(cur_epoch)
        train_one_epoch(model, optimizer, train_loader, model_func, rank, logger)
        # save trained model
        if rank == 0:
            ckpt_list = sorted(glob.glob(str(ckpt_save_dir / 'checkpoint_epoch_*.pth')), key=os.path.getmtime)
            for old in ckpt_list[:max(0, len(ckpt_list) - max_ckpt_save_num + 1)]:
                os.remove(old)
            name = ckpt_save_dir / ('checkpoint_epoch_%d.pth' % (cur_epoch + 1))
            torch.save({'epoch': cur_epoch + 1, 'model_state': getattr(model, 'module', model).state_dict()}, name)
