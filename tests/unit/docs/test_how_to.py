"""The how-to pages stand alone: each says what it needs and how to get back, and its settings, programs and outputs are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streams_app.cli import group
from streams_app.settings import Settings
from tests.checkout.pages import ROOT, fenced, name_of

PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))


def in_folder_of(page: Path, folder: Path) -> None:
    """Write what a reader has after the steps that show settings: streams.toml."""
    text = "\n".join(fenced(page, "toml"))
    (folder / "streams.toml").write_text(text if "app_id" in text else f'app_id = "docs"\n{text}', "utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_says_what_it_needs_and_how_to_get_back(page: Path) -> None:
    text = page.read_text("utf-8")

    assert 1 == text.count("\n**You need** ")
    assert 1 == text.count("\n## How to get back\n")


@pytest.mark.parametrize("page", [page for page in PAGES if fenced(page, "toml")], ids=name_of)
def test_settings_of_a_page_load(page: Path, tmp_path: Path) -> None:
    in_folder_of(page, tmp_path)

    assert Settings.load(tmp_path / "streams.toml", {}).app_id


@pytest.mark.parametrize("page", [page for page in PAGES if fenced(page, "python")], ids=name_of)
def test_programs_and_commands_of_a_page_print_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    in_folder_of(page, tmp_path)
    for program in fenced(page, "python"):
        names: dict[str, Any] = {}
        exec(program, names)
        for name, value in names.items():
            if name.startswith("test_"):
                value()
    printed = capsys.readouterr().out
    for command in re.findall(r"^ *streams-app (tune --file .* --windows .*)$", page.read_text("utf-8"), re.MULTILINE):
        printed += CliRunner().invoke(group, command.split()).output

    assert [] == [shown for shown in fenced(page, "text") if shown not in printed], printed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_is_short(page: Path) -> None:
    """Deploy and recover describe servers and manifests, each below a heading of its own."""
    assert len(page.read_text("utf-8").splitlines()) <= 100
