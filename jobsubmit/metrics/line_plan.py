"""Decide from the template of a line what each of its numbers is: a step, an epoch, a total, a figure or nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from jobsubmit.metrics import words
from jobsubmit.metrics.template import Template

_UNIT = re.compile(r"[KMk](?![A-Za-z])")
_TOTAL = re.compile(r"[KMk]?\s*(?:/|of|共|之)\s*")
_SEPARATOR = re.compile(
    r"(?:\s*(?:=>|->|:|=|：|＝|│|┃|(?<=\w)\s*\|)\s*|\s+(?:is|was|of)\s*|['\"],\s*)['\"]?\s*[\[(]*['\"]?\s*$"
)
_EQUALS = re.compile(r"(?<=\S)=['\"\[(]*$")
_DELIMITER = re.compile(
    r"[,;|\t\[\]{}<>•·│┃，；、｜。！!?「」【】]|\s{2,}|\s[-–—]+\s|\s\((?=\w+\s*$)|:\s|：|\.\s|\""
    r"|(?<!\w)'|'(?!\w)|\)(?=\s*[^\s)])|(?:^|\s)->(?:\s|$)|^\s*[)\]}]|=\((?=\w)"
)
_LEVEL = re.compile(r"^(?:\w+ )?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|TRAIN|I|W|E)\b[:\s]*(?=\S)")
_FILLER = re.compile(
    r"^(?:(?:with|and|the|at|in|of|has|had|a|an|after|for|on|over|now|got|mean of|finished"
    r"|completed|done|complete)\s+)+",
    re.IGNORECASE,
)
_MOST_WORDS, _MOST_WORDS_OF_A_TAIL, _FEWEST_REGULAR = 6, 3, 3
_LONGEST_TEMPLATE = 2000
_FEWEST_SETTINGS = 3  # values that are no numbers, in a dump of a configuration
_LONGEST_NAME, _LONGEST_CHINESE_NAME = 60, 8
_WRAPPER = re.compile(r"(?:tensor|array|np\.float\d+|float\d*)\(\[*$")
_CELL = re.compile(r"\s*(?:\||\]\s*\[)\s*[^\s|\[\]]+\s*$")
_NO_PROGRESS = re.compile(
    r"\W*(?:(?:[A-Za-z]+\s)?(?:sav(?:ed|ing)|load(?:ed|ing)|writ(?:ing|ten)|wrote|scheduled|skipping|skipped|downloading|best"
    r"|resum(?:ed|ing)|restor(?:ed|ing)|early stopping|checkpoint)|args|arguments|config|namespace|setting|hyper-?param"
    r"|optimizer|参数|正在|保存|加载)\b",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"\s*(?:[\w.]*(?:Error|Exception|Warning): |\S+\.cuh?:$)")  # or an assertion of a GPU kernel
_SAVED = re.compile(
    r"::test_|saving model|better model found|Namespace\(|"
    r"Arguments\(|\b(?:saved|saving|loaded|loading|best)\s(?:\w+\s)?checkpoint|\bresum(?:e|ed|ing)\b"
    r"|non-?finite|\bskipping\s(?:\w+\s)?(?:updates?|steps?|batch(?:es)?|iterations?)\b",
    re.IGNORECASE,
)
_ENDED = re.compile(r"\"(?:msg|message|event|status)\":\s*\"(?:finished|done|completed?)\"")
_CONFIGURATION = re.compile(r"[:=]\s*(?:True|False|None|PosixPath\()(?=[,})\s]|$|')")
_STRING_SETTING = re.compile(r"(['\"])[\w-]+\1: (['\"])[A-Za-z./][^'\"]*\2")
_SUMMARY = re.compile(r"\s*\*\s+(?:Acc|Prec)@")  # of a validation, as the ImageNet example of PyTorch prints it
_LONE_END = re.compile(r"\s*(?:%|[mµu]?s|secs?|seconds?|ms|[a-z]+/s(?:ec)?|[KMG]i?B)?\s*")
_FRAMED = re.compile(r"\s*[|│┃]\s*[^|│┃]+[|│┃]\s*$")
_FRAME_END = re.compile(r"\s*[|│┃]\s*$")
_SENTENCE = re.compile(
    r"(?:^|_)(?:of|the|on|in|to|is|are|due|by|with|from|no|and|finish|for|has|not|as|than|info"
    r"|improved|reached|reducing|reduced|diverged|detected)(?:_|$)"
)
_JSON_LINE = re.compile(r"\s*\"[^\"]+\":\s*\"?$")  # of a document over several lines
_PROCESS = re.compile(r"(?:^|\W)(?:rank|gpu|node|worker|process|replica|host)$", re.IGNORECASE)  # `rank 1/8`
_WORD = re.compile(r"[^\W\d_][\w/]{0,11}")
_NO_NAME = re.compile(
    r"took|in|after|at|best|saved|to|from|and|patience|rank|gpu|by|of|than|over|cost|used|number|model|fold|run|worker|avg|stalled|times|last|[kmgt]i?b|ms|it|耗时|共|第"
)
_RATE_UNIT = re.compile(r"^\s[a-zA-Z]+/[a-zA-Z]+\s+(?=[^\W\d])")  # `686.0 samples/s lr`
_HEADLINE = re.compile(
    r"(?:.* - )?(?:beginning|starting|start|begin|learning|training|running|going into)\s+(?:of\s+)?\w+", re.IGNORECASE
)
_STATEMENT = re.compile(r"_(?:has|have|is|was)_")
_COUNTED_AFTER = re.compile(
    r"\s?[a-z]{3,},\s*$|\s(?:steps|batches|epochs|iterations)\b(?!\s*[/=:])|\s?[轮次](?=[^\W\d_])|h(?=\s|$)"
)
_PROSE_AFTER = re.compile(r"\s*(?!秒|毫秒|分)[\u4e00-\u9fff]{2}")
_SETTING_NAME = re.compile(r"'(?:\w+_)?(?:interval|factor|dim|seed|size|workers|epochs|warm_step)'")
_SCOPE_OF_BLOCK = re.compile(r"\s*(?:train|val|eval|test)\w* \| (?=\w)")  # `eval | step: 200 | … | output:`
_BLOCK_STARTS = ("  ", " \t", "\t", " '", "{'")  # also of a dictionary over several lines
_TITLED = re.compile(r"(?!.*最)[^\W\dA-Za-z]+ [a-z]+$")  # `评估结果 epoch`
_RATE = re.compile(r"\s*(?:[a-zA-Z]+/s|s/[a-zA-Z]+)\b")


@dataclass(frozen=True)
class Figure:
    """A named number of a line: which one it is, and the name.

    `is_strong` if the name alone shows training, `is_exact` if no other words stand before the name, `is_loose` if it
    may be any word: it is a figure only beside a counter and a figure with a strong name.
    """

    place: int
    name: str
    is_strong: bool
    is_exact: bool = True
    is_loose: bool = False


@dataclass(frozen=True, eq=False)
class LinePlan:
    """What the numbers of all lines of one template are, by their places. There is one for a template.

    `word` is the validation word of the line. `is_batch` says that the step is named a batch, without an epoch before
    it; `is_bar` that the counters are those of a progress bar, described by `description`. The step counts in
    `step_unit`, the total in `steps_unit`. `form` is the template with single blanks. `block_word` is the validation
    word of the lines below: `Epoch 3 - took 2 s - Test metrics:`.
    """

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    figures: tuple[Figure, ...] = ()
    total_steps: int | None = None
    total_epochs: int | None = None
    word: str = ""
    is_headline: bool = False
    is_batch: bool = False
    is_cell: bool = False
    is_bar: bool = False
    description: str = ""
    step_unit: int = 1
    steps_unit: int = 1
    form: str = ""
    is_indented: bool = False
    block_word: str = ""

    @cached_property
    def is_headline_of_block(self) -> bool:
        """Return whether the results of its counter may stand on the lines below."""
        return self.is_headline and not any(words.is_result(figure.name) for figure in self.figures)

    @cached_property
    def is_about_something_else(self) -> bool:
        """Return whether the line sums up a training that has ended, or is a bar of data that is prepared."""
        is_summary = any(figure.name == "train_runtime" for figure in self.figures)  # of a Hugging Face Trainer
        return is_summary or (self.is_bar and words.is_preparation(self.description))

    @cached_property
    def is_empty(self) -> bool:
        """Return whether lines of this template say nothing about a training."""
        numbered = (self.epoch, self.step, self.total_steps, self.total_epochs)
        return not self.figures and all(place is None for place in numbered)

    @cached_property
    def is_validation(self) -> bool:
        """Return whether the line is about validation only."""
        about = [words.validation_word(figure.name.replace("_", " ")) for figure in self.figures]
        return bool(self.word or words.validation_word(self.description) or (about and all(about)))

    @cached_property
    def is_strong(self) -> bool:
        """Return whether a figure of the line shows that a model is trained or evaluated."""
        return any(figure.is_strong for figure in self.figures)


EMPTY = LinePlan()


@lru_cache(maxsize=4096)
def plan_line(template: Template) -> LinePlan:
    """Return the plan for the lines of a template."""
    if (
        len(template) == 1
        or words.is_preparation_line(template[0])
        or max(len(names.findall(" ".join(template))) for names in (_STRING_SETTING, _SETTING_NAME)) >= _FEWEST_SETTINGS
        or _JSON_LINE.match(template[0])
        or _NO_PROGRESS.match(template[0])
        or _EXCEPTION.match(template[0])
        or any(map(_ENDED.search, template))
        or any(map(_SAVED.search, template))
        or sum(len(_CONFIGURATION.findall(text)) for text in template) >= _FEWEST_SETTINGS
        or "(AP)" in template[0]
        or "(AR)" in template[0]
        or sum(map(len, template)) > _LONGEST_TEMPLATE
    ):
        return EMPTY
    plan = _Planner(template).plan()
    is_counted = plan.step is not None or plan.epoch is not None
    return plan if is_counted or not any("OrderedDict(" in text for text in template) else EMPTY  # a final result


class _Planner:
    def __init__(self, template: Template) -> None:
        self.template = template
        self.count = len(template) - 1
        self.found: dict[str, int] = {}
        self.figures: list[Figure] = []
        self.taken: set[int] = set()
        self.bar_at = -1
        self.is_batch = False
        is_lone = self.count == 1 and _SEPARATOR.search(template[0]) is not None and _LONE_END.fullmatch(template[1])
        is_framed = self.count == 1 and bool(_FRAMED.match(template[0]) and _FRAME_END.match(template[1]))
        self.is_cell = bool(is_lone or is_framed)
        self.totals: dict[str, int] = {}
        self.leads: dict[int, str] = {}  # by the place of a figure: what stands before its name
        self.regular: list[Figure] = []  # one word before each, as in a row of such pairs

    def plan(self) -> LinePlan:
        bar = self._bar()
        for place in range(self.count):
            if place not in self.taken:
                self._take(place)
        if len(self.regular) >= _FEWEST_REGULAR and self.found:
            places = {figure.place for figure in self.regular}
            others = (figure for figure in self.figures if figure.place not in places)
            self.figures = sorted((*others, *self.regular), key=lambda figure: figure.place)
        if bar and self.bar_at > 0 and "step" not in self.found:
            is_of_epochs = words.is_epochs(self.template[0]) and "epoch" not in self.found
            kind = "epoch" if is_of_epochs else "step"
            self.found.update({kind: self.bar_at, f"{kind}s": self.bar_at + 1})
        first = min((figure.place for figure in self.figures), default=self.count)
        word = self._scope_before(first) if self.figures or self.found else ""
        figures = tuple(self._figures())
        description = "".join(self.template[:1]) if bar else ""
        return LinePlan(
            self.found.get("epoch"),
            self.found.get("epochs"),
            self.found.get("step"),
            self.found.get("steps"),
            figures,
            self.totals.get("steps"),
            self.totals.get("epochs"),
            word,
            bar or self._is_headline(),
            self.is_batch,
            self.is_cell,
            bar,
            description,
            self._unit_of(self.found.get("step")),
            self._unit_of(self.found.get("steps")),
            "\0".join(" ".join(text.split()) for text in self.template),
            self.template[0].startswith(_BLOCK_STARTS),
            words.validation_word(self._scope_of_block()),
        )

    def _ends_in_colon(self) -> bool:
        return self.template[-1].rstrip().endswith((":", "："))

    def _scope_of_block(self) -> str:
        """Return the text that may say which validation the lines below are about."""
        if not self._ends_in_colon():
            return ""
        scope = _SCOPE_OF_BLOCK.match(self.template[0])
        return scope[0] if scope else self.template[-1]

    def _unit_of(self, place: int | None) -> int:
        """Return what a counter such as `2K` counts in."""
        found = _UNIT.match(self.template[place + 1]) if place is not None else None
        return {"k": 1000, "K": 1000, "M": 1_000_000}[found[0]] if found else 1

    def _is_headline(self) -> bool:
        """Return whether the line begins with a counter, as in `Epoch 3/10` and `===== epoch 3 =====`."""
        begin = _SCOPE_OF_BLOCK.sub("", self.template[0]) if self._ends_in_colon() else self.template[0]
        text = re.sub(r"^[\W_]+(?:TIME: \x02 -- )?", "", begin).rstrip(" :：=[#(-|│")
        is_plural = re.search(r"s\s*[:=]\s*$", self.template[0]) is not None and not self.is_cell
        return not is_plural and (
            words.is_epoch(text)
            or words.is_step(text)
            or re.fullmatch(r"\w{0,3}第", text) is not None
            or (_HEADLINE.fullmatch(text) is not None and (words.ends_in_epoch(text) or words.ends_in_step(text)))
        )

    def _bar(self) -> bool:
        """Recognize `12%| 3/25 [00:01<00:10, 2.3it/s, loss=0.5]`, and take its numbers but those of the postfix."""
        for place in range(1, self.count - 1):
            if self.template[place].startswith("%|") and self._has_total(place):
                self.taken.update((place - 1, place, place + 1))
                rate = place + 2
                if rate < self.count and _RATE.match(self.template[rate + 1]):
                    self.taken.add(rate)
                self.bar_at = place
                return True
        return False

    def _has_total(self, place: int) -> bool:
        if place + 1 < self.count and self.template[place + 1].startswith(" /") and self._key(place)[1]:
            return False  # two values: `D(G(z)): 0.5 / 0.1`
        return place + 1 < self.count and _TOTAL.fullmatch(self.template[place + 1]) is not None

    def _take(self, place: int) -> None:
        before = self.template[place]
        if self._has_total(place):
            self._take_fraction(place)
            return
        key, has_separator = self._key(place)
        ordinal = re.match(r"\s*(?:个)?(轮|epoch|エポック|步|批|ステップ)", self.template[place + 1])
        if ordinal and before.rstrip().endswith("第"):
            self._count("epoch" if ordinal.group(1) in ("轮", "epoch", "エポック") else "step", place)
        elif named_after := re.match(r"epoch|batch|iter", self.template[place + 1]):
            self._count("epoch" if named_after.group(0) == "epoch" else "step", place)  # `3epoch`
        elif not key:
            self._take_nameless(place, before)
        else:
            self._take_named(place, key, has_separator)

    def _take_named(self, place: int, key: str, has_separator: bool) -> None:
        key = key.removeprefix("… ") if words.is_step(key[2:]) or words.is_epoch(key[2:]) else key
        if kind := words.total_of(words.plain_name(key)):
            self.totals[kind] = place
        elif words.is_epoch(key) or ((not has_separator or _TITLED.match(key)) and words.ends_in_epoch(key)):
            self._count("epoch", place)
        elif words.is_batch(key) and "epoch" not in self.found:
            if place == 0 and not has_separator and self.template[1].startswith(":"):
                self._count("step", place)  # `Batch 100: loss = 0.5`
        elif words.is_step(key) or (not has_separator and (words.ends_in_step(key) or key.endswith(" @"))):
            self._count("step", place, words.is_global_step(key))
        elif self._is_numbered_scope(place, key):
            self._count("epoch", place)
        else:
            self._take_figure(place, key, has_separator)

    def _count(self, name: str, place: int, is_global: bool = False) -> None:
        if name not in self.found or (name == "step" and is_global and "steps" not in self.found):
            self.found[name] = place

    def _is_numbered_scope(self, place: int, key: str) -> bool:
        """Return whether a number is the epoch in `Train: 0 [50/1251 …`."""
        after = self.template[place + 1].strip().removeprefix("]")
        is_scope = key.lower() in ("train", "training", "test", "val", "valid", "validation", "eval")
        return is_scope and after.startswith("[") and self._has_total(place + 1)

    def _take_fraction(self, place: int) -> None:
        self.taken.add(place + 1)
        key, _ = self._key(place)
        before = self.template[place].rstrip()
        if _PROCESS.search(key):
            self.taken.add(place)
            return
        if key and (words.is_epoch(key) or words.ends_in_epoch(key)):
            self._count("epoch", place)
            if self.found["epoch"] == place:
                self.found["epochs"] = place + 1
            return
        after = self.template[place + 2].lstrip() if place + 2 <= self.count else ""
        is_step = bool(key) and (words.is_step(key) or words.ends_in_step(key))
        is_scope = words.is_training(key) or bool(words.validation_word(key))
        is_described = not is_step and (
            place < self.bar_at or (is_scope and before.endswith("("))
        )  # `Train 1/4: 24%|…`
        is_counted_next = bool(key) and key.isascii() and words.is_epoch(after.rstrip(" :="))  # `fold 1/5  epoch 3/25`
        names_epochs = not is_counted_next and re.match(r"(?:个)?(?:epochs?\b|轮|エポック)", after, re.IGNORECASE)
        if is_described or (not is_step and names_epochs):
            self.found.update(epoch=place, epochs=place + 1)
            return
        opens = before.endswith("[") or before in ("", "|", "(")
        is_pair = (
            opens and place + 2 < self.count and self.template[place + 2].strip() == "][" and self._has_total(place + 2)
        )
        if is_pair and "epoch" not in self.found and not is_step:
            self.found.update(epoch=place, epochs=place + 1)
        elif (is_step or self._is_step_by_place(place, key, before)) and "step" not in self.found:
            self.found.update(step=place, steps=place + 1)
            self.is_batch = words.is_batch(key) and "epoch" not in self.found

    def _is_step_by_place(self, place: int, key: str, before: str) -> bool:
        """Return whether `3/25` without a name counts steps: in brackets, after an epoch, or first in its line."""
        scope = key.lower() in (
            "",
            "train",
            "training",
            "test",
            "val",
            "valid",
            "validation",
            "eval",
            "batches",
            "训练",
        )
        follows_epoch = place - 1 == self.found.get("epoch") or place - 1 == self.found.get("epochs")
        after = self.template[place + 2].lstrip().lower() if place + 2 <= self.count else ""
        is_first = place == 0 and before.strip() in ("", "[", "(")
        named_after = (
            re.match(r"(?:steps?\b|batch(?:es)?\b|iter\w*\b|updates?\b|it\b|of epoch\b|步|批|ステップ)", after)
            is not None
        )
        return (scope and (before.endswith(("[", "(")) or follows_epoch)) or is_first or named_after

    def _take_nameless(self, place: int, before: str) -> None:
        """Take `[3][10/25]`, `[1, 2000]` and `第 3 轮`: a number that only its place explains."""
        after = self.template[place + 1].lstrip()
        before = before.rstrip()
        if before == "[" and place == 0 and after == "," and place + 2 <= self.count:
            if self.template[place + 2].startswith("]"):
                self.found.update(epoch=place, step=place + 1)
                self.taken.add(place + 1)
        elif before == "[" and place == 0 and after.startswith("]") and after.strip("] "):
            self._count("step", place)
        elif before.endswith("[") and place == 0 and after == "][" and self._has_total(place + 1):
            self._count("epoch", place)
        elif before == "][" and self.found.get("epoch") == place - 1 and after.startswith("]"):
            self._count("step", place)

    def _key(self, place: int) -> tuple[str, bool]:
        """Return the name before a number, and whether `:`, `=` or the like stands between."""
        text = self.template[place]
        if place:
            text = _after_unit(text)
        has_equals = _EQUALS.search(text) is not None
        text = _WRAPPER.sub("", text)
        separator = _SEPARATOR.search(text)
        if separator:
            text = text[: separator.start()]
        text = text.rstrip("# ") or text  # `Epoch #3`
        text = text.rstrip("'\" \t")
        if not separator:
            text = text.rstrip("[( ")
        tail = re.search(r"\s?\([^()]*\)$", text)
        body = text[: tail.start()] if tail else text
        cuts = [found.end() for found in _DELIMITER.finditer(body)]
        if re.match(r"\s*--\w", body[cuts[-1] if cuts else 0 :]):
            return "", False  # an option of a command
        key = body[cuts[-1] if cuts else 0 :].strip(" '\"*-–—·.#>~/:") + (tail.group(0) if tail else "")
        key = _FILLER.sub("… ", _LEVEL.sub("", key)).strip(" '\"(")
        if has_equals and not (cuts and "=" not in key and len(key.split()) <= _MOST_WORDS_OF_A_TAIL):
            words_of_key = key.split()
            key = (
                " ".join(words_of_key[-2:] if words_of_key[-1].startswith("(") else words_of_key[-1:])
                if words_of_key
                else ""
            )
        if has_equals and "(" in key and ")" not in key:
            key = key.rpartition("(")[2]
        if not key or len(key.split()) > _MOST_WORDS or not re.search(r"[^\W\d_]", key):
            return "", False
        return key, separator is not None and not separator.group(0).strip().isalpha()

    def _take_figure(self, place: int, key: str, has_separator: bool) -> None:
        is_exact, is_loose = not key.startswith("…") and not self.template[place].endswith(" of"), False
        name = full = words.plain_name(key)
        lead = self.template[place][: self.template[place].rfind(key.lstrip("… "))]
        ends = (")", "]") if place == 0 else "]"
        is_line_number = has_separator and self.template[place].endswith(":") and not words.is_strong(name)
        if is_line_number and self.template[place + 1].startswith(ends) and not self.found:
            return  # `file:497]`
        if place + 1 < self.count and self.template[place + 1].strip() in ("-", "h", "m", "min"):
            return  # a date, or minutes before seconds
        if self.template[place + 1].lstrip().startswith(("-->", "->", "→")):
            return  # `0.5 --> 0.4`
        if _COUNTED_AFTER.match(self.template[place + 1]) or (not has_separator and self._is_in_columns(place)):
            return
        if not has_separator and place + 1 == self.count and _PROSE_AFTER.match(self.template[place + 1]):
            return
        if not has_separator:
            if (
                not (known := _known_tail(name))
                and re.fullmatch(r"[^\W\d][\w/().]*", key)
                and not words.is_setting(name)
                and not _NO_NAME.fullmatch(name)
            ):
                self.regular.append(Figure(place, name, False))
                known = name if name.isascii() and _CELL.match(_after_unit(self.template[place])) else ""
            is_word = _WORD.fullmatch(key) is not None and not _NO_NAME.fullmatch(name)
            is_loose = not known and is_word and is_exact
            name = known or (name if is_loose else "")
            lead = self.template[place] if known and known != full else lead
        if name and not _STATEMENT.search(name) and not words.is_counted(name) and len(name) <= _LONGEST_NAME:
            self.leads[place] = lead
            self.figures.append(Figure(place, name, words.is_strong(name), is_exact and name == full, is_loose))

    def _is_in_columns(self, place: int) -> bool:
        """Return whether only blanks stand between a number and the next: the row of a table without separators."""
        return place == 0 and place + 1 < self.count and not self.template[1].strip()

    def _scope_before(self, place: int) -> str:
        """Return the validation word before a figure that is not part of a name, if no word for training follows it."""
        first = min(self.leads, default=self.count)
        texts = (
            [*self.template[:first], self.leads.get(first, "")]
            if place == first
            else [self.leads.get(place, "").replace(",", "|").rpartition("|")[2]]
        )
        return words.validation_word("\0".join(texts))

    def _figures(self) -> list[Figure]:
        """Return the figures with the names of their series, as in `val_loss` for the validation part of a line."""
        named: dict[str, Figure] = {}
        is_counted = bool(self.found) and any(figure.is_strong for figure in self.figures)
        scope = own_scope = ""
        is_summary = _SUMMARY.match(self.template[0]) is not None
        is_all = not self.found and not any(map(words.is_training, self.template))  # the line is about nothing else
        for figure in self.figures:
            if (figure.is_loose or words.is_setting(figure.name)) and not is_counted:
                continue
            lead = self.leads.get(figure.place, "")
            scope = self._scope_before(figure.place) or ("" if words.is_training(lead) else scope)
            own = words.validation_word(figure.name.replace("_", " "))
            if own and (is_all or not own.isascii()) and figure.name.startswith(f"{own}_") and not named:
                scope = own  # of the other figures of the line, too
            own_scope = own or own_scope
            prefix = "" if own else words.plain_name(scope)
            if is_summary and not own and not figure.name.startswith(("acc", "prec")):
                prefix = prefix or "test"
            if not own and not prefix and figure.name in named:
                prefix = own_scope
            name = f"{prefix}_{figure.name}" if prefix else figure.name
            named.setdefault(name, replace(figure, name=name))
        return list(named.values())


def _after_unit(text: str) -> str:
    """Return a text without the unit of the number before it: `ms, mfu` and `ms/step - loss`."""
    if rate := _RATE_UNIT.match(text):
        return text[rate.end() :]
    unit = re.match(r"(?:%|°C|[轮步次秒]|/?[a-zA-Zµ]+(?:/[a-zA-Z]+)*)(?=[\s,;|)\]}]|$)", text)
    return text[unit.end() :] if unit else text


def _known_tail(name: str) -> str:
    """Return the last words of a name that are those of a figure, or an empty string."""
    if not name.isascii():
        if name.endswith(("为", "是")):
            return ""
        return name if len(name) <= _LONGEST_CHINESE_NAME and words.is_strong(name) else ""  # not a whole sentence
    parts = name.split("_")
    for start in range(len(parts)):
        tail = "_".join(parts[start:])
        if (
            (len(parts) - start <= _MOST_WORDS_OF_A_TAIL or not start)
            and not _SENTENCE.search(tail)
            and words.is_known(tail)
        ):
            return tail
    return ""
