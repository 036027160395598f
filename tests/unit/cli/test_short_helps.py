"""The lists of commands in ``--help``, in a terminal of 80 columns."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from streams_app.cli import group

LISTS = [
    [],
    *(
        [name]
        for name in group.list_commands(click.Context(group))
        if isinstance(group.get_command(click.Context(group), name), click.Group)
    ),
]


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_command_list_truncates_no_sentence(words: list[str]) -> None:
    shown = CliRunner().invoke(group, [*words, "--help"], terminal_width=80).output
    _, _, commands = shown.partition("Commands:\n")

    assert commands
    assert [] == [line for line in commands.splitlines() if line.endswith("...")]
