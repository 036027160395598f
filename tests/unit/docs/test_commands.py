"""Commands, links and files that README and docs/ name exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import main as bench
from benchmarks.console import main as bench_console
from benchmarks.journal import main as bench_journal
from benchmarks.live import main as bench_live
from streams_app.cli import group
from streams_app.cli.demo import command as demo
from tests.chaos.__main__ import main as chaos
from tests.checkout.pages import PAGES, ROOT, fenced, name_of, without_blocks

COMMANDS_OF_TARGETS = {
    "demo": demo,
    "bench": bench,
    "bench-console": bench_console,
    "bench-journal": bench_journal,
    "bench-live": bench_live,
    "chaos": chaos,
}
"""Targets of the Makefile that pass their ARGS to a command."""


def calls(page: Path) -> Iterator[str]:
    """Return what a page tells people to type: lines of blocks without a language, and inline code."""
    text = page.read_text("utf-8")
    for block in fenced(page, ""):
        yield from (line.split(" #")[0].strip() for line in block.splitlines() if line.startswith(("streams-app ", "make ")))
    yield from re.findall(r"`((?:streams-app|make) [^`]+)`", without_blocks(text))


def waiting_for_label(words: list[str], command: click.Command) -> str | None:
    """Return what is wrong with a call, or None if the command accepts it."""
    while isinstance(command, click.Group) and words:
        inner = command.get_command(click.Context(command), words[0])
        if inner is None:
            return f"no command {words[0]!r}"
        command, words = inner, words[1:]
    options = {option for one in command.params for option in one.opts} | {"--help", "--version"}
    # -7d is a value, a relative time.
    unknown = [word for word in words if re.match(r"-\D", word) and word not in options]
    return f"no option {unknown[0]}" if unknown else None


def fault_in(call: str) -> str | None:
    """Return what is wrong with a call of ``streams-app`` or ``make``, as it is typed."""
    program, *words = shlex.split(call)
    if program == "streams-app":
        return waiting_for_label(words, group)
    target, *settings = words
    if not re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE):
        return f"no target {target!r}"
    given = [word.removeprefix("ARGS=") for word in settings if word.startswith("ARGS=")]
    if not given:
        return None
    arguments = shlex.split(given[0])
    if target in ("test", "coverage"):  # those of pytest
        missing = [word for word in arguments if word.startswith("tests/") and not (ROOT / word).exists()]
        return f"no tests {missing[0]}" if missing else None
    return waiting_for_label(arguments, COMMANDS_OF_TARGETS[target])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_documented_command_exists(page: Path) -> None:
    assert [] == [(call, fault) for call in calls(page) if (fault := fault_in(call))]


def test_every_command_named_in_the_code_exists() -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "streams_app").rglob("*.py")]
    named = {call for source in sources for call in re.findall(r"`(streams-app [a-z -]+)", source)}

    assert len(named) > len(COMMANDS_OF_TARGETS)
    assert [] == [(call, fault) for call in sorted(named) if (fault := fault_in(call))]


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("streams-app worker", None),
        ("streams-app groups flush --fold NAME --all", None),
        ("streams-app topics burn", "no command 'burn'"),
        ("streams-app check --fast", "no option --fast"),
        ("make test", None),
        ('make chaos ARGS="live --runs 1"', None),
        ('make chaos ARGS="--turns 1"', "no option --turns"),
        ("make coffee", "no target 'coffee'"),
    ],
)
def test_command_is_recognized_by_its_words_and_options(call: str, fault: str | None) -> None:
    assert fault == fault_in(call)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_every_link_has_a_target(page: Path) -> None:
    prose = re.sub(r"`[^`]*`(?!\])", "", without_blocks(page.read_text("utf-8")))
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)

    assert [] == dead


def test_every_page_named_in_code_and_manifests_exists() -> None:
    files = [path for folder in ("streams_app", "deploy", "examples", "benchmarks", "tests") for path in (ROOT / folder).rglob("*")]
    kinds = {".py", ".yml", ".toml", ".json", ".html", ".lua", ".js"}
    named = {
        (name, path.name)
        for path in [*files, ROOT / "Makefile", ROOT / "docker-compose.yml", ROOT / "pyproject.toml"]
        if path.suffix in kinds or path.name == "Makefile"
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text("utf-8"))
    }

    assert len(named) > 20
    assert [] == sorted(f"{path}: {name}" for name, path in named if not (ROOT / name).is_file())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_documented_file_and_folder_exists(page: Path) -> None:
    named = re.findall(r"`((?:streams_app|tests|deploy|examples|benchmarks|docs|\.ci)/[\w./*-]+)`", page.read_text("utf-8"))

    assert [] == [name for name in named if not list(ROOT.glob(name.rstrip("/")))]
