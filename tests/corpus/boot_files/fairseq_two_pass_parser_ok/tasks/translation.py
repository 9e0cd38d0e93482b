import torch

from . import register_task


@register_task("translation")
class TranslationTask:
    @staticmethod
    def add_args(parser):
        parser.add_argument("data", help="path to data directory")
        parser.add_argument("-s", "--source-lang", default=None, metavar="SRC")
        parser.add_argument("-t", "--target-lang", default=None, metavar="TARGET")
        parser.add_argument("--max-tokens", type=int, default=4096, metavar="N")

    def __init__(self, args):
        self.args = args

    @classmethod
    def setup_task(cls, args):
        return cls(args)

    def build_criterion(self, args):
        return torch.nn.CrossEntropyLoss(reduction="sum")

    def get_batch_iterator(self, epoch, num_shards, shard_id):
        g = torch.Generator().manual_seed(self.args.seed + epoch)
        pairs = torch.randint(0, 1000, (512, 2, 16), generator=g)
        order = torch.randperm(512, generator=g)[shard_id::num_shards]
        for chunk in order.split(max(1, self.args.max_tokens // 16)):
            yield pairs[chunk, 0], pairs[chunk, 1]
