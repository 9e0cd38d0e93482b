import random


def build_batches(shapes, bins, seed):
    order = sorted(range(len(shapes)), key=shapes.__getitem__)
    batches, batch, longest = [], [], 0
    for i in order:
        longest = max(longest, shapes[i])
        if batch and longest * 80 * (len(batch) + 1) > bins:
            batches.append(batch)
            batch, longest = [], shapes[i]
        batch.append(i)
    if batch:
        batches.append(batch)
    random.Random(seed).shuffle(batches)
    return batches
