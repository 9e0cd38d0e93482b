import argparse
import os
import time

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torchvision.models as models

try:
    import nvidia.dali.fn as fn
    import nvidia.dali.types as types
    from nvidia.dali.pipeline import pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator
except ImportError:
    raise ImportError("Please install DALI from the vendor's index to run this example.")

model_names = sorted(
    name for name in models.__dict__
    if name.islower() and not name.startswith("__") and callable(models.__dict__[name])
)


def parse():
    parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
    parser.add_argument("data", metavar="DIR", nargs="*", help="one path, or one for training and one for validation")
    parser.add_argument("--arch", "-a", metavar="ARCH", default="resnet18", choices=model_names)
    parser.add_argument("-j", "--workers", default=4, type=int, metavar="N")
    parser.add_argument("--epochs", default=90, type=int, metavar="N")
    parser.add_argument("-b", "--batch-size", default=256, type=int, metavar="N", help="per process")
    parser.add_argument("--lr", "--learning-rate", default=0.1, type=float, metavar="LR")
    parser.add_argument("--dali_cpu", action="store_true", help="Runs CPU based version of DALI pipeline.")
    parser.add_argument("--local_rank", default=os.getenv("LOCAL_RANK", 0), type=int)
    parser.add_argument("--sync_bn", action="store_true")
    parser.add_argument("--opt-level", type=str, default=None)
    parser.add_argument("--loss-scale", type=str, default=None)
    args = parser.parse_args()
    return args


@pipeline_def
def create_dali_pipeline(data_dir, crop, shard_id, num_shards, dali_cpu=False):
    images, labels = fn.readers.file(
        file_root=data_dir, shard_id=shard_id, num_shards=num_shards, random_shuffle=True, pad_last_batch=True, name="Reader"
    )
    images = fn.decoders.image_random_crop(images, device="cpu" if dali_cpu else "mixed", output_type=types.RGB)
    images = fn.resize(images, device="cpu" if dali_cpu else "gpu", resize_x=crop, resize_y=crop)
    images = fn.crop_mirror_normalize(images.gpu(), dtype=types.FLOAT, output_layout="CHW", crop=(crop, crop),
                                      mean=[123.7, 116.3, 103.5], std=[58.4, 57.1, 57.4], mirror=fn.random.coin_flip())
    return images, labels.gpu()


def reduce_tensor(tensor):
    rt = tensor.clone()
    dist.all_reduce(rt, op=dist.ReduceOp.SUM)
    rt /= args.world_size
    return rt


def main():
    global args
    args = parse()
    if not len(args.data):
        raise Exception("error: No data set provided")
    args.distributed = False
    if "WORLD_SIZE" in os.environ:
        args.distributed = int(os.environ["WORLD_SIZE"]) > 1
    args.gpu = 0
    args.world_size = 1
    if args.distributed:
        args.gpu = args.local_rank
        torch.cuda.set_device(args.gpu)
        dist.init_process_group(backend="nccl", init_method="env://")
        args.world_size = dist.get_world_size()
    args.total_batch_size = args.world_size * args.batch_size
    cudnn.benchmark = True
    model = models.__dict__[args.arch]()
    if args.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr * float(args.total_batch_size) / 256.0, momentum=0.9)
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu], output_device=args.gpu)
    pipe = create_dali_pipeline(
        batch_size=args.batch_size, num_threads=args.workers, device_id=args.local_rank, seed=12 + args.local_rank,
        data_dir=args.data[0], crop=224, dali_cpu=args.dali_cpu,
        shard_id=dist.get_rank() if args.distributed else 0, num_shards=args.world_size,
    )
    pipe.build()
    train_loader = DALIClassificationIterator(pipe, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True)
    for epoch in range(args.epochs):
        end = time.time()
        model.train()
        for i, data in enumerate(train_loader):
            target = data[0]["label"].squeeze(-1).long()
            loss = nn.functional.cross_entropy(model(data[0]["data"]), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 10 == 0:
                reduced = reduce_tensor(loss.data) if args.distributed else loss.data
                torch.cuda.synchronize()
                if args.local_rank == 0:
                    print(f"Epoch: [{epoch}][{i}] {time.time() - end:.1f}s Loss {reduced.item():.5f}")
        if not args.distributed or dist.get_rank() == 0:
            torch.save({"epoch": epoch + 1, "state_dict": model.state_dict()}, "/out/checkpoint.pth.tar")
    if args.distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
