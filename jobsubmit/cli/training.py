"""Show how far a training is: as cells of a table, as a line, as a footer below the output of a job."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from jobsubmit.backends.models import LogLine
from jobsubmit.cli.console import out, visible
from jobsubmit.common.durations import time_text
from jobsubmit.jobs.progress import NOTHING_SHOWN, TrainingState, open_metrics, summarize
from jobsubmit.report.training_text import training_text

if TYPE_CHECKING:
    from jobsubmit.config import Settings
    from jobsubmit.jobs.records import JobRecord
    from jobsubmit.metrics.collection import Metrics

_BAR = 24
_DRAW_SECONDS, _REDRAW_SECONDS = 0.25, 0.02
_USUAL_WIDTH = 80
_CLEAR = "\r\x1b[2K"


def training_document(training: TrainingState | None) -> dict[str, Any] | None:
    """Return how far a training is as a JSON document; None if its output shows nothing."""
    if training is None or training == NOTHING_SHOWN:
        return None
    loss = training.loss if training.loss is None or math.isfinite(training.loss) else str(training.loss)
    return {
        "step": training.step,
        "steps": training.steps,
        "epoch": training.epoch,
        "epochs": training.epochs,
        "loss": loss,
        "loss_name": training.loss_name,
        "done": training.done,
        "ends": None if training.end is None else time_text(training.end),
    }


class Footer:
    """The last line of a terminal: a bar, the step, the loss and the time left, below the lines of a job.

    It is drawn a few times a second, however many lines arrive.
    """

    def __init__(self, stream: TextIO, metrics: Metrics) -> None:
        self.stream = stream
        self.metrics = metrics
        self._lock = threading.RLock()  # who shows a line may write a message meanwhile
        self._text = ""
        self._is_drawn, self._drawn_at = False, 0.0
        self._has_ended = threading.Event()

    def around(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the lines; the footer is removed while each one is shown, and at the end."""
        thread = threading.Thread(target=self._draw_again, daemon=True)
        thread.start()
        out.hidden = self._hidden
        try:
            for line in lines:
                with self._lock:
                    self.metrics.take(line.node, line.rank, line.time, line.text)
                    self._clear()
                    yield line
                    if time.monotonic() - self._drawn_at >= _REDRAW_SECONDS:
                        self._draw()
        finally:
            self._has_ended.set()
            thread.join()
            self._clear()
            del out.hidden

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        with self._lock:
            self._clear()
            yield

    def _draw_again(self) -> None:
        while not self._has_ended.wait(_DRAW_SECONDS):
            with self._lock:
                self._text = footer_text(summarize(self.metrics), time.time(), _width_of(self.stream))
                self._draw()

    def _draw(self) -> None:
        if self._text:
            self._write(_CLEAR + self._text)
            self._is_drawn, self._drawn_at = True, time.monotonic()

    def _clear(self) -> None:
        if self._is_drawn:
            self._write(_CLEAR)
            self._is_drawn = False

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self._has_ended.set()


def _width_of(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def footer_text(training: TrainingState, now: float, width: int) -> str:
    """Return the footer, at most as wide as the terminal; empty if there is nothing to show."""
    from rich.cells import cell_len, set_cell_size

    if training == NOTHING_SHOWN:
        return ""
    text = visible(training_text(training, now))
    done = training.done
    if done is not None:
        filled = round(done * _BAR)
        bar = f"{'━' * filled}{'─' * (_BAR - filled)} {done:4.0%}  "
        text = bar + text if cell_len(bar + text) < width else f"{done:.0%}  {text}"
    return text if cell_len(text) < width else set_cell_size(text, max(0, width - 2)) + "…"


def with_footer(lines: Iterable[LogLine], stream: TextIO, record: JobRecord, settings: Settings) -> Iterator[LogLine]:
    """Yield the lines of a job, with a footer below them if the stream is a terminal."""
    if not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield from lines
        return
    yield from Footer(stream, open_metrics(record, settings)).around(lines)
