"""What it costs to read metrics and to sample machines: `python tests/bench/metrics.py`.

Prints the processor time of one line of each kind of output, in microseconds, and what the samples of a node take of a
core. 1% of a core for 1,000 lines a second is 10 microseconds a line.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack

from jobsubmit.agent.machine.process_use import Memory, read_use
from jobsubmit.agent.machine.sampler import MachineSampler
from jobsubmit.metrics.collection import Metrics

LINES = 100_000
PROCESSES = 8


def without_figures() -> Iterator[str]:
    """Lines that have nothing to do with a training."""
    return (f"downloading shard {number} of the dataset from mirror {number % 7}" for number in itertools.count())


def nanogpt() -> Iterator[str]:
    """Lines of nanoGPT."""
    return (f"iter {number}: loss {3 / (number + 1):.4f}, time 135.20ms, mfu 31.02%" for number in itertools.count())


def trainer() -> Iterator[str]:
    """Dictionaries of a Hugging Face Trainer."""
    for number in itertools.count(1):
        yield f"{{'loss': {3 / number:.4f}, 'grad_norm': 1.25, 'learning_rate': 4.5e-05, 'epoch': {number / 500:.2f}}}"


def bar() -> Iterator[str]:
    """A progress bar that is drawn again."""
    for number in itertools.count(1):
        yield f"{number % 100:3}%|███████       | {number}/1000000 [01:10<12:30,  2.10it/s, loss={3 / number:.3f}]"


def mmengine() -> Iterator[str]:
    """Lines of MMEngine with nine figures."""
    for number in itertools.count():
        yield (
            f"2024/05/01 10:22:{number % 60:02} - mmengine - INFO - Epoch(train)  [{number // 1000 + 1}]"
            f"[{number % 1000:5}/1000]  lr: 2.0000e-02  eta: 1:02:03  time: 0.3512  data_time: 0.0102  memory: 4321  "
            f"grad_norm: 3.21  loss: {3 / (number + 1):.4f}  loss_cls: 1.01  loss_bbox: 0.99  acc: 91.2"
        )


def microseconds_of_a_line(lines: Iterator[str]) -> float:
    """Return the processor time of one line."""
    metrics, texts = Metrics(), list(itertools.islice(lines, LINES))
    begun = time.process_time()
    for number, text in enumerate(texts):
        metrics.take(0, 0, float(number), text)
    return (time.process_time() - begun) / LINES * 1e6


def share_of_sampling() -> tuple[float, float]:
    """Return the milliseconds of one sample of PROCESSES processes, and the share of a core that samples take."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(PROCESSES)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        roots = {str(rank): process.pid for rank, process in enumerate(processes)}
        memory, begun = Memory(), time.process_time()
        for _ in range(50):
            read_use(roots)
            memory.used()
        each = (time.process_time() - begun) / 50
        sampler = MachineSampler(folder, 0, 0)
        begun, since = time.process_time(), time.monotonic()
        while time.monotonic() - since < 10:
            sampler.sample(roots, dict.fromkeys(roots, 0))
            time.sleep(0.1)
        used = time.process_time() - begun
        sampler.close()
        return each * 1e3, used / 10


def main() -> None:
    """Measure, and print."""
    for kind in (without_figures, nanogpt, trainer, bar, mmengine):
        print(f"{kind.__name__:16} {microseconds_of_a_line(kind()):6.1f} µs a line")
    each, share = share_of_sampling()
    print(f"samples of {PROCESSES} processes: {each:.2f} ms each, {share:.2%} of a core, on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
