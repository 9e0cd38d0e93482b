"""The progress of the training, from its log lines: the number after `step`, else `iter`, else `epoch`.

If no line has a step, the timing of `profile` counts them.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress

from ..job_directory import STREAMS, JobDirectory

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# What follows the words of the first group says how many there will be, not how many there were; so do the steps after
# a batch size, in the line that many copy: `Epoch 0 | Batchsize: 32 | Steps: 64`.
_STEP = re.compile(
    rb"(?:\b(total|max|num|n|warmup|optimization|accumulation|per|every)[\s_.-]+|(\bbatch.?size\W{1,3}\d+)\W{1,3}|\b|_)"
    rb"(steps(?=\s*:)|step|iter(?:ation)?|epoch)\W{1,3}(\d{1,12})\b(?!%)",
    re.IGNORECASE,
)
_WORDS = (b"s", b"i", b"e")  # by their first letters: a line of steps says more than one of epochs
_BAD_LOSS = re.compile(rb"loss\w*\W{1,4}([-+]?(?:nan|inf(?:inity)?))\b", re.IGNORECASE)
_MOST_BYTES = 1 << 16


class BadLoss:
    """A loss that was printed as NaN or infinite: by which rank (None: by its node), and at which step."""

    def __init__(self, node: int, rank: int | None, value: str, step: int | None) -> None:
        self.node, self.rank, self.value, self.step = node, rank, value, step


def _numbers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the place of a word in _WORDS and its number."""
    for limit, batch_size, word, number in _STEP.findall(data):
        if not limit and not batch_size:
            yield _WORDS.index(word[:1].lower()), int(number)


class StepParser:
    """Follow the step numbers in the logs of ranks and nodes."""

    def __init__(self, job_dir: str) -> None:
        self.files = JobDirectory(job_dir)
        self.offsets: dict[str, int] = {}
        self.word = len(_WORDS)  # the one whose numbers are read
        self.first: int | None = None  # of this attempt
        self.last: int | None = None
        self.last_of: dict[int | None, int] = {}  # by rank
        self.bad_loss: BadLoss | None = None  # the first

    def begin_attempt(self) -> None:
        """Forget the steps of the previous attempt."""
        self.first = self.last = None
        self.last_of = {}

    def look(self, sources: Iterable[tuple[int, int | None]]) -> bool:
        """Read what was written since the last call; return whether it has a step. `sources` are (node, rank)."""
        has_steps = False
        for node, rank in sources:
            for stream in STREAMS:
                data = self._new_lines(self.files.log_of(node, rank, stream))
                has_steps = (bool(data) and self._take_steps(rank, data)) or has_steps
                if data and self.bad_loss is None:
                    self._look_at_loss(node, rank, data)
        return (self.word == len(_WORDS) and self._look_at_timing()) or has_steps

    def _look_at_timing(self) -> bool:
        """Take the number of the last step that was timed; return whether there is a new one."""
        steps = []
        for name in os.listdir(self.files.timing) if os.path.isdir(self.files.timing) else ():
            for line in self._new_lines(os.path.join(self.files.timing, name)).splitlines():
                with suppress(ValueError):
                    row = json.loads(line)
                    if isinstance(row, list) and isinstance(row[0], int):
                        steps.append(row[1])
        if steps:
            self._note(min(steps), max(steps))
        return bool(steps)

    def _take_steps(self, rank: int | None, data: bytes) -> bool:
        found = list(_numbers(data))
        best = min((word for word, _ in found), default=self.word)
        if best < self.word:
            self.word = best
            self.begin_attempt()
        steps = [number for word, number in found if word == self.word]
        if not steps:
            return False
        self._note(min(steps), max(steps))
        self.last_of[rank] = steps[-1]
        return True

    def _note(self, first: int, last: int) -> None:
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)

    def _look_at_loss(self, node: int, rank: int | None, data: bytes) -> None:
        bad = _BAD_LOSS.search(data)
        if bad is not None:
            end = data.find(b"\n", bad.end())
            before = [number for word, number in _numbers(data[:end]) if word == self.word]
            step = before[-1] if before else self.last_of.get(rank)
            self.bad_loss = BadLoss(node, rank, bad.group(1).decode(), step)

    def _new_lines(self, path: str) -> bytes:
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return b""
        offset = max(self.offsets.get(path, 0), size - _MOST_BYTES)
        if size <= offset:
            return b""
        with open(path, "rb") as log:
            log.seek(offset)
            data = log.read(size - offset)
        end = data.rfind(b"\n") + 1
        self.offsets[path] = offset + end
        return data[:end]
