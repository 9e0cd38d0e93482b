import bisect
from collections import defaultdict
from itertools import chain, repeat

from torch.utils.data.sampler import BatchSampler, Sampler


def _repeat_to_at_least(iterable, n):
    repeat_times = -(-n // len(iterable))
    return list(chain.from_iterable(repeat(iterable, repeat_times)))


class GroupedBatchSampler(BatchSampler):
    """Wraps another sampler to yield a mini-batch of indices, of one group each, in the sampler's order."""

    def __init__(self, sampler, group_ids, batch_size):
        if not isinstance(sampler, Sampler):
            raise ValueError(f"sampler should be an instance of Sampler, but got sampler={sampler}")
        self.sampler = sampler
        self.group_ids = group_ids
        self.batch_size = batch_size

    def __iter__(self):
        buffer_per_group = defaultdict(list)
        samples_per_group = defaultdict(list)
        num_batches = 0
        for idx in self.sampler:
            group_id = self.group_ids[idx]
            buffer_per_group[group_id].append(idx)
            samples_per_group[group_id].append(idx)
            if len(buffer_per_group[group_id]) == self.batch_size:
                yield buffer_per_group[group_id]
                num_batches += 1
                del buffer_per_group[group_id]
        # so that all ranks have the same number of batches, fill up the remaining ones
        num_remaining = len(self) - num_batches
        if num_remaining > 0:
            for group_id, _ in sorted(buffer_per_group.items(), key=lambda x: len(x[1]), reverse=True):
                remaining = self.batch_size - len(buffer_per_group[group_id])
                samples = _repeat_to_at_least(samples_per_group[group_id], remaining)
                buffer_per_group[group_id].extend(samples[:remaining])
                yield buffer_per_group[group_id]
                num_remaining -= 1
                if num_remaining == 0:
                    break

    def __len__(self):
        return len(self.sampler) // self.batch_size


def create_aspect_ratio_groups(dataset, k=0):
    ratios = [float(info["width"]) / float(info["height"]) for info in dataset.coco.imgs.values()]
    bins = sorted((2 ** (i / k - 1) for i in range(2 * k + 1))) if k > 0 else [1.0]
    return [bisect.bisect_right(bins, ratio) for ratio in ratios]
