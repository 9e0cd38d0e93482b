"""How many steps or epochs a training will have, where only its configuration says so: a command line, a dump."""

from __future__ import annotations

import re

_COUNT = r"(?:num|n|max|total|number[ _]of)"
_EPOCHS = rf"(?:{_COUNT}|scheduled)?[ _-]?(?:train(?:ing)?[ _-])?epochs?|训练轮数|总轮数|最大轮数"
_OF_WHAT = r"(?:train(?:ing)?[ _-]|optimi[sz]ation[ _-]|update[ _-])?"
_STEPS = (
    rf"{_COUNT}[ _-]{_OF_WHAT}(?:steps?|iters?|iterations?)"
    r"|train(?:ing)?[ _-](?:steps|iters|iterations)|niters?|总步数|训练步数|最大步数"
)
_NAME = rf"(?P<epochs>{_EPOCHS})|(?P<steps>{_STEPS})|(?P<bare>(?<=['\"])steps)"
_TOTAL = re.compile(
    rf"(?<![\w.-])(?P<option>--)?(?:\w+\.)?['\"]?(?:{_NAME})['\"]?"
    r"(?:\s*[=:：]\s*|(?(option)\s+|(?!)))['\"]?(?P<number>\d{1,3}(?:,\d{3})+|\d{1,10})(?![\w.]|,\d)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"\btraining for (\d{1,6}) epochs\b", re.IGNORECASE)
_SINGULAR = re.compile(r"(?:^|[ _-])(?:epoch|step|iter|iteration)$", re.IGNORECASE)
_LIMIT = re.compile(r"max|total|num|^n[ _-]", re.IGNORECASE)
_HINT = re.compile(r"epoch|step|iter|轮数|步数", re.IGNORECASE)
_OTHER_PART = re.compile(
    r"(?:eval|val|test|warm|sampl|infer|gener)\w*['\"]?\s*[=:]?\s*['\"]?\w*[({\[][^)}\]]*$", re.IGNORECASE
)
_LONGEST = 20_000  # characters: some dumps are one line


class ConfiguredTotals:
    """Collects the totals from all lines before the training, of whatever process; of each the first one counts."""

    def __init__(self) -> None:
        self.epochs: int | None = None
        self._steps: int | None = None
        self._bare_steps: set[int] = set()  # those that are called "steps" and nothing else

    @property
    def steps(self) -> int | None:
        """Return the number of steps of the training, if it is known."""
        return self._steps or (next(iter(self._bare_steps)) if len(self._bare_steps) == 1 else None)

    def read(self, text: str) -> None:
        """Read a line."""
        if len(text) > _LONGEST or not _HINT.search(text):
            return
        if sentence := _SENTENCE.search(text):
            self.epochs = self.epochs or int(sentence.group(1))
        for match in _TOTAL.finditer(text):
            number, name = int(match["number"].replace(",", "")), match["epochs"] or match["steps"] or ""
            is_position = _SINGULAR.search(name) is not None and not _LIMIT.search(name)
            if not number or is_position or _OTHER_PART.search(text[max(0, match.start() - 300) : match.start()]):
                continue
            if match["epochs"]:
                self.epochs = self.epochs or number
            elif match["steps"]:
                self._steps = self._steps or number
            else:
                self._bare_steps.add(number)
