"""The page of the settings: as they are in force, and the findings of ``check`` when they are asked for."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final, Literal

import msgspec

from streams_app.checking import findings
from streams_app.console.pages.model import State
from streams_app.console.pages.rendering import render
from streams_app.console.reading.asking import Asked
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.finding import Finding, Level
from streams_app.formatting import counted
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings
from streams_app.settings.described import SettingInForce, settings_in_force

SETTINGS_PATH: Final = "/settings"
CHECKS: Final = ("no", "run")
STATES: Final[dict[Level, State]] = {Level.OK: "ok", Level.WARNING: "attention", Level.ERROR: "trouble"}


class SettingSection(msgspec.Struct, frozen=True):
    """A table of ``streams.toml``."""

    name: str
    settings: list[SettingInForce]
    changed: int


class FindingRow(msgspec.Struct, frozen=True):
    """A finding of ``check``."""

    level: Literal["ok", "warning", "error"]
    state: State
    text: str
    advice: str


class CheckResult(msgspec.Struct, frozen=True, tag="found"):
    """What ``streams-app check`` finds, in its order."""

    findings: list[FindingRow]
    errors: int
    warnings: int
    summary: str
    at_ms: int


class SettingsPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        checked: None if the checks were not asked for.
    """

    sections: list[SettingSection]
    changed: int
    total: int
    path: str
    check_link: str
    checked: CheckResult | Missing | None
    now_ms: int


def html(model: SettingsPage) -> str:
    """Render the page."""
    return render("settings.html", model=model)


async def collect(reader: ConsoleReader, _: Declarations, asked: Asked) -> SettingsPage:
    """Collect the page from the settings of the console; if it is asked to, run the checks."""
    sections = sections_of(reader.settings)
    checked = None
    if asked.choice("check", CHECKS, "no") == "run":
        # Answers that took long are shared for longer, so that browsers cannot have the checks run one after the other.
        checked = await reader.patient().redis_part("the result of check", "check", lambda: _checked(reader))
    return SettingsPage(
        sections, sum(section.changed for section in sections), sum(len(section.settings) for section in sections),
        SETTINGS_PATH, f"{SETTINGS_PATH}?check=run", checked, reader.clock.now_ms(),
    )  # fmt: skip


def sections_of(settings: Settings) -> list[SettingSection]:
    """Return all settings by the table that has them, in the order of the reference."""
    tables: dict[str, list[SettingInForce]] = {}
    for one in settings_in_force(settings):
        tables.setdefault(one.section, []).append(one)
    return [SettingSection(name, rows, sum(row.is_changed for row in rows)) for name, rows in tables.items()]


async def _checked(reader: ConsoleReader) -> CheckResult:
    async with aclosing(findings(reader.settings, reader.clock)) as each:
        found = [finding async for finding in each]
    return result_of(found, reader.clock.now_ms())


def result_of(found: list[Finding], at_ms: int) -> CheckResult:
    """Return findings for the page."""
    rows = [FindingRow(one.level.value, STATES[one.level], one.text, one.advice) for one in found]
    errors, warnings = (sum(one.level is level for one in found) for level in (Level.ERROR, Level.WARNING))
    return CheckResult(rows, errors, warnings, f"{counted(errors, 'error')}, {counted(warnings, 'warning')}", at_ms)
