"""Texts as commands lay them out in terminals of several widths."""

from __future__ import annotations

import sys

from streams_app.cli.sentences import hanging


def test_long_text_is_wrapped_between_words_and_indented() -> None:
    assert "the retention of orders\n         is not known" == hanging("the retention of orders is not known", 9, 34)


def test_command_in_backticks_stays_on_one_line_even_if_it_is_too_long() -> None:
    text = "run `streams-app topics create --config streams.toml` first"

    assert ["run", "`streams-app topics create --config streams.toml`", "first"] == [
        line.strip() for line in hanging(text, 2, 30).splitlines()
    ]


def test_text_without_a_width_is_one_line() -> None:
    assert "word " * 99 + "word" == hanging("word " * 99 + "word", 9, sys.maxsize)
