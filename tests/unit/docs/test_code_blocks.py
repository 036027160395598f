"""Every code block of README and docs/ is checked, or a comment above it says why not."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from streams_app.errors import ConfigurationError
from streams_app.settings import Settings
from tests.checkout.pages import PAGES, ROOT, name_of
from tests.unit.docs.test_commands import fault_in

BLOCK: Final = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
REASON: Final = re.compile(r"<!-- not run: [^\n]{10,} -->\s*\Z")
EXAMPLE: Final = ROOT / "examples" / "streams.toml"
FOLD: Final = '[folds.docs]\nsource = "events"\ngroup_key = "user"\nchanged = "fields"\nquiet_period = "1m"\n'
COMMANDS: Final = ("streams-app", "make")


def toml_fault(text: str, folder: Path) -> str | None:
    """Return why a block is not valid settings, alone, with a fold, or with those of the example; or None."""
    path = folder / "streams.toml"
    found = ""
    for head, tail in (("", ""), ('app_id = "docs"\n', ""), ('app_id = "docs"\n', FOLD), (EXAMPLE.read_text("utf-8"), "")):
        path.write_text(f"{head}{text}\n{tail}", "utf-8")
        try:
            Settings.load(path, {})
        except ConfigurationError as error:
            found = str(error)
        else:
            return None
    return found


def json_fault(text: str, _: Path) -> str | None:
    try:
        json.loads(text)
    except ValueError as error:
        return str(error)
    return None


def python_fault(text: str, _: Path) -> str | None:
    """Return why a block is not valid Python; test_programs, test_how_to and test_tutorial run it."""
    try:
        compile(text, "block", "exec", dont_inherit=True)
    except SyntaxError as error:
        return str(error)
    return None


def shell_fault(text: str, _: Path) -> str | None:
    """Return the first call of ``streams-app`` or ``make`` whose command or options do not exist."""
    for line in text.replace("\\\n", " ").splitlines():
        call = line.strip().removeprefix("$ ").split(" #")[0]
        if call.split(" ")[0] in COMMANDS and (fault := fault_in(re.split(r" [|>&;] ?", call)[0])):
            return f"{call}: {fault}"
    return None


CHECKS: Final[dict[str, Callable[[str, Path], str | None]]] = {
    "toml": toml_fault, "json": json_fault, "python": python_fault, "sh": shell_fault, "bash": shell_fault, "console": shell_fault,
    "": shell_fault, "text": lambda *_: None,
}  # fmt: skip
"""Language → function that returns what is wrong with a block; ``text`` is output or a drawing."""


def faults_of(text: str, folder: Path) -> list[str]:
    found = []
    for match in BLOCK.finditer(text):
        if REASON.search(text[: match.start()]):
            continue
        language, body = match[2].strip(), textwrap.dedent(match[3])
        check = CHECKS.get(language)
        fault = check(body, folder) if check else f"no check for {language!r}: add <!-- not run: WHY --> above the block"
        if fault:
            found.append(f"line {text[: match.start()].count(chr(10)) + 1}: {fault}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_code_block_is_valid_or_says_why_it_is_not_run(page: Path, tmp_path: Path) -> None:
    assert [] == faults_of(page.read_text("utf-8"), tmp_path)


@pytest.mark.parametrize(
    ("block", "is_valid"),
    [
        ("```toml\n[kafka]\nbootstrap = 1\n```\n", False),
        ("```json\n{\n```\n", False),
        ("```python\ndef\n```\n", False),
        ("```sh\nstreams-app worker --fast\n```\n", False),
        ("```\nstreams-app burn\n```\n", False),
        ("```cobol\nSTOP RUN.\n```\n", False),
        ("<!-- not run: no compiler is installed -->\n```cobol\nSTOP RUN.\n```\n", True),
        ("```json\n{}\n```\n", True),
        ("```console\n$ streams-app check\nok\n```\n", True),
    ],
)
def test_invalid_block_without_a_reason_is_a_fault(block: str, is_valid: bool, tmp_path: Path) -> None:
    assert is_valid == (not faults_of(block, tmp_path))
