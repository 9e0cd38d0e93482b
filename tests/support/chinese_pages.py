"""Bring the blocks of the Chinese pages up to date: they are those of the English ones, byte for byte."""

from __future__ import annotations

import documentation

if __name__ == "__main__":
    for english, chinese in documentation.translated_pages().items():
        if english.name != "index.md":
            text = documentation.with_blocks_of(english.read_text("utf-8"), chinese.read_text("utf-8"))
            chinese.write_text(text, encoding="utf-8")
