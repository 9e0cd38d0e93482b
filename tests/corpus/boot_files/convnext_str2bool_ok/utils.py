import glob
import os
from pathlib import Path

import torch
import torch.distributed as dist


class WandbLogger:
    def __init__(self, args):
        try:
            import wandb
            self._wandb = wandb
        except ImportError:
            raise ImportError("To use the Weights and Biases Logger please install wandb.")
        self._wandb.init(config=vars(args))

    def log(self, values):
        self._wandb.log(values)


def is_dist_avail_and_initialized():
    return dist.is_available() and dist.is_initialized()


def get_world_size():
    return dist.get_world_size() if is_dist_avail_and_initialized() else 1


def get_rank():
    return dist.get_rank() if is_dist_avail_and_initialized() else 0


def is_main_process():
    return get_rank() == 0


def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)


def init_distributed_mode(args):
    if args.dist_on_itp:
        args.rank = int(os.environ['OMPI_COMM_WORLD_RANK'])
        args.world_size = int(os.environ['OMPI_COMM_WORLD_SIZE'])
        args.gpu = int(os.environ['OMPI_COMM_WORLD_LOCAL_RANK'])
        args.dist_url = "tcp://%s:%s" % (os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])
    elif 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ['WORLD_SIZE'])
        args.gpu = int(os.environ['LOCAL_RANK'])
    elif 'SLURM_PROCID' in os.environ:
        args.rank = int(os.environ['SLURM_PROCID'])
        args.gpu = args.rank % torch.cuda.device_count()
        os.environ['RANK'] = str(args.rank)
        os.environ['LOCAL_RANK'] = str(args.gpu)
        os.environ['WORLD_SIZE'] = os.environ['SLURM_NTASKS']
    else:
        print('Not using distributed mode')
        args.distributed = False
        return

    args.distributed = True
    torch.cuda.set_device(args.gpu)
    args.dist_backend = 'nccl'
    print('| distributed init (rank {}): {}, gpu {}'.format(args.rank, args.dist_url, args.gpu), flush=True)
    torch.distributed.init_process_group(backend=args.dist_backend, init_method=args.dist_url,
                                         world_size=args.world_size, rank=args.rank)
    torch.distributed.barrier()


class NativeScalerWithGradNormCount:
    def __init__(self):
        self._scaler = torch.amp.GradScaler('cuda')

    def __call__(self, loss, optimizer, update_grad=True):
        self._scaler.scale(loss).backward()
        if update_grad:
            self._scaler.step(optimizer)
            self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict):
        self._scaler.load_state_dict(state_dict)


def save_model(args, epoch, model_without_ddp, optimizer, loss_scaler):
    path = Path(args.output_dir) / f'checkpoint-{epoch}.pth'
    save_on_master({'model': model_without_ddp.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': epoch,
                    'scaler': loss_scaler.state_dict()}, path)


def auto_load_model(args, model_without_ddp, optimizer, loss_scaler):
    if args.auto_resume and len(args.resume) == 0:
        latest_ckpt = -1
        for ckpt in glob.glob(os.path.join(args.output_dir, 'checkpoint-*.pth')):
            t = ckpt.split('-')[-1].split('.')[0]
            if t.isdigit():
                latest_ckpt = max(int(t), latest_ckpt)
        if latest_ckpt >= 0:
            args.resume = os.path.join(args.output_dir, f'checkpoint-{latest_ckpt}.pth')
        print("Auto resume checkpoint: %s" % args.resume)
    if args.resume:
        checkpoint = torch.load(args.resume, map_location='cpu')
        model_without_ddp.load_state_dict(checkpoint['model'])
        optimizer.load_state_dict(checkpoint['optimizer'])
        args.start_epoch = checkpoint['epoch'] + 1
        loss_scaler.load_state_dict(checkpoint['scaler'])


def build_dataset(is_train, args):
    from torchvision import datasets, transforms
    transform = transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()])
    if args.data_set == 'CIFAR':
        return datasets.CIFAR100(args.data_path, train=is_train, transform=transform)
    return datasets.ImageFolder(os.path.join(args.data_path, 'train' if is_train else 'val'), transform=transform)
