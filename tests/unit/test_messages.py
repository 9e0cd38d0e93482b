"""The texts that users see: plain words, and a translation for each message."""

from __future__ import annotations

import re
from pathlib import Path

import documentation
import messages
import pytest
from command import Command

from jobsubmit.common.language import language
from jobsubmit.common.translation import Catalogue, open_catalogue, parse_template

CATALOGUE = next(file for file in messages.CATALOGUES if "zh_CN" in file.parts)
TRANSLATIONS = messages.translations(CATALOGUE)
CHINESE = re.compile("[\u4e00-\u9fff]")
ENGLISH = re.compile(r"[A-Za-z]+ [a-z]+")
COUNTED = {text for pair in messages.messages() if pair[1] for text in pair}
# Words of an earlier, private language, and what reads translated.
RETIRED = re.compile(
    r"\b(gang|keeper|teller|nodeware|patience|told|tells|telling|bears?|borne|shall|mended|in vain|for want of"
    r"|what of it|is no time(?! limit))\b",
    re.IGNORECASE,
)
ALLOWED = re.compile(r"gang[- ]scheduling", re.IGNORECASE)


def test_no_text_has_a_retired_word() -> None:
    found = [f"{text.where}: {text.template}" for text in messages.texts() if is_retired(text.template)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", documentation.pages(), ids=lambda page: str(page.relative_to(documentation.ROOT)))
def test_no_page_has_a_retired_word(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    found = [f"{page.name}:{number}: {line}" for number, line in lines if is_retired(line)]
    assert not found, "\n".join(found)


def is_retired(text: str) -> bool:
    return RETIRED.search(ALLOWED.sub("", re.sub(r"\{\w+\}", "", text))) is not None


def test_every_message_has_a_translation() -> None:
    missing = [f"{places[0]}: {message}" for (message, _), places in messages.messages().items() if not known(message)]
    assert not missing, "run: python tests/support/messages.py, and translate:\n" + "\n".join(missing)


def known(message: str) -> bool:
    return message in TRANSLATIONS


def test_no_translation_is_left_of_a_message_that_is_gone() -> None:
    plural = {text for _, text in messages.messages() if text}
    assert TRANSLATIONS.keys() <= {message for message, _ in messages.messages()} | plural


def test_a_translation_has_the_values_of_its_message() -> None:
    wrong = [message for message, text in TRANSLATIONS.items() if not fits(message, text)]
    assert not wrong, "\n".join(wrong)


def fits(message: str, translation: str) -> bool:
    """Return whether a translation is one: Chinese, with the same values, code, options and variables."""
    kinds = (r"`[^`]*`", r"--[a-z][\w-]*", r"\$[A-Z]\w+")
    return (
        set(parse_template(message).names) == set(parse_template(translation).names)
        and (CHINESE.search(translation) is not None or not re.search("[a-z]{3} [a-z]{3}", message))
        and all(sorted(re.findall(kind, message)) == sorted(re.findall(kind, translation)) for kind in kinds)
    )


def test_no_message_is_shown_half_in_english() -> None:
    chinese = open_catalogue("zh")
    labels = {"error", "warning", "hint", "note", "next", "cannot tell", "meaning", "lost"}
    half = {}
    for message, text in TRANSLATIONS.items():
        template = parse_template(message)
        values = {name: f"/p/{number}.yaml" for number, name in enumerate(template.names)}
        shown = chinese.translate(template.filled(values).strip()) or template.filled(values)
        if left := set(ENGLISH.findall(shown)) - set(ENGLISH.findall(parse_template(text).filled(values))):
            half[message] = left
    assert not half.keys() - COUNTED - labels


def test_a_message_is_recognized_by_its_words() -> None:
    chinese = Catalogue(
        {
            "{path}: no such file": "文件 {path} 不存在",
            "set {field} to {value}": "把 {field} 设为 {value}",
            "no such file": "文件不存在",
            "warning": "警告",
            "a {{brace}}": "花括号 {{brace}}",
            "{value} failed": "{value} 失败",
            "and {value} waits": "而 {value} 在等待",
            "(fault {fault})": "\uff08故障 {fault}\uff09",
        },
        {"{number} nodes": "{number} 个节点"},
    )
    assert chinese.translate("train.py: no such file") == "文件 train.py 不存在"
    assert chinese.translate("  set lr to 2 nodes") == "  把 lr 设为 2 个节点"
    assert chinese.translate("warning: job.yaml:4  no such file") == "警告\uff1ajob.yaml:4  文件不存在"
    assert chinese.translate("error.txt, 2 nodes") == "error.txt\uff0c2 个节点"
    assert chinese.translate("nodes: x") is None
    assert chinese.translate("a {brace}") == "花括号 {brace}"
    assert chinese.translate("rank 3 failed, and rank 1 waits") == "rank 3 失败\uff0c而 rank 1 在等待"
    assert chinese.translate("rank 3 failed (fault kill)") == "rank 3 失败\uff08故障 kill\uff09"
    assert chinese.translate("something else") is None


def test_a_label_before_a_message_stays_there() -> None:
    chinese = Catalogue({"{host} cannot be reached: {words}": "无法连接 {host}\uff1a{words}", "error": "错误"})
    assert chinese.translate("error: gpu1 cannot be reached: x") == "错误\uff1a无法连接 gpu1\uff1ax"


def test_what_another_program_says_is_not_translated_in_part() -> None:
    chinese = Catalogue({"is not Python: {problem}": "不是 Python\uff1a{problem}", "at line {line}": "第 {line} 行"})
    said = "is not Python: unterminated string literal (at line 1)"
    assert chinese.translate(said) == "不是 Python\uff1aunterminated string literal (at line 1)"


def test_a_label_counts_at_the_beginning_only() -> None:
    chinese = Catalogue({"error": "错误", "gone": "没有了"})
    assert chinese.translate("error: gone") == "错误\uff1a没有了"
    assert chinese.translate("  error: x, error: y") == "  错误\uff1ax, error: y"


def test_a_list_of_quoted_words_is_one_value() -> None:
    chinese = Catalogue({"Did you mean {names}?": "你要用的是 {names} 吗\uff1f"})
    assert chinese.translate("Did you mean 'list', 'ls'?") == "你要用的是 'list', 'ls' 吗\uff1f"


def test_yaml_in_a_message_can_be_copied() -> None:
    chinese = Catalogue(
        {
            "add it to `backend`, for example {field}": "把它加到 `backend` 中\uff0c例如 {field}",
            "pass the path as another argument:": "把路径作为另一个参数传入\uff1a",
        }
    )
    shown = chinese.translate("add it to `backend`, for example gpus_per_node: 8")
    assert shown == "把它加到 `backend` 中\uff0c例如 gpus_per_node: 8"
    shown = chinese.translate("pass the path as another argument: checkpoint_dir: {uri: …, name: NAME}")
    assert shown == "把路径作为另一个参数传入\uff1acheckpoint_dir: {uri: …, name: NAME}"


def test_a_message_ends_without_a_full_stop() -> None:
    chinese = Catalogue({"No such command {name}": "没有命令 {name}"})
    assert chinese.translate("No such command 'x'.") == "没有命令 'x'"


def test_choices_are_joined_as_the_language_does() -> None:
    chinese = Catalogue({"must be {choices}": "必须是 {choices}"})
    assert chinese.translate("must be `a`, `b` or `c`") == "必须是 `a`\u3001`b` 或 `c`"


@pytest.mark.parametrize(
    ("variables", "chosen"),
    [
        ({"JOBSUBMIT_LANG": "zh"}, "zh"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LC_ALL": "en_US.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"JOBSUBMIT_LANG": "en", "LC_ALL": "zh_CN.UTF-8"}, "en"),
        ({"LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "zha_CN"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({}, "en"),
    ],
)
def test_the_language_is_the_readers(variables: dict[str, str], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOBSUBMIT_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert language() == chosen


def test_an_error_is_chinese_for_people_and_english_for_programs(jobsubmit: Command) -> None:
    done = jobsubmit("status", "nobody", "-o", "json", code=102, env={"JOBSUBMIT_LANG": "zh"})
    assert CHINESE.search(done.stderr)
    assert not CHINESE.search(done.stdout)


def test_sentences_are_short() -> None:
    lengths = sorted(len(words) for page in documentation.pages() for words in documentation.sentences(page))
    assert lengths[len(lengths) * 9 // 10] <= 28


def test_every_word_of_a_page_has_a_translation() -> None:
    translations = messages.translations(CATALOGUE.with_name("page.po"))
    assert translations.keys() == messages.page_texts()
    assert all(translations.values())
