"""Messages on a terminal: broken between words, with what belongs together kept whole."""

from __future__ import annotations

import pytest
from rich.text import Text

from jobsubmit.cli import console

ADVICE = "  hint: let the code choose: `device = 'cuda' if available else 'cpu'`, or request GPUs"


def wrapped(text: str, width: int) -> str:
    return console.wrapped(Text(text), width).plain


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_long_message_is_broken_between_words_only(width: int) -> None:
    lines = wrapped(ADVICE, width).split("\n")
    assert " ".join(line.strip() for line in lines) == ADVICE.strip()
    assert all(line.startswith("      ") and not line.startswith("       ") for line in lines[1:])
    assert all(len(line) <= width for line in lines if "`" not in line)


def test_a_command_is_not_broken() -> None:
    assert "\n      `device = 'cuda' if available else 'cpu'`,\n" in wrapped(ADVICE, 50)


def test_a_short_message_stays_as_it_is() -> None:
    assert wrapped(ADVICE, 200) == ADVICE


def test_chinese_is_broken_between_signs_but_not_before_a_comma() -> None:
    text = "错误：在节点上没有找到这个文件，请把它加到作业文件的输入中，然后再提交一次作业。"
    for width in range(20, 60):
        lines = wrapped(text, width).split("\n")
        assert "".join(line.strip() for line in lines) == text
        assert all(2 * len(line.strip()) <= width + 2 for line in lines)
        assert not any(line.strip()[0] in "，。：" for line in lines)


def test_a_path_longer_than_a_line_stays_whole() -> None:
    path = "/cache/" + "a" * 100
    assert path in wrapped(f"error: {path} does not exist on the nodes", 80)


def test_each_word_keeps_its_style() -> None:
    line = Text.assemble("  meaning: ", ("the file is not on the nodes of this job", "bold"), " or elsewhere")
    found = console.wrapped(line, 30)
    assert "\n" in found.plain
    bold = {found.plain[span.start : span.end].strip() for span in found.spans if span.style == "bold"}
    assert bold == {"the", "file", "is", "not", "on", "nodes", "of", "this", "job"}
