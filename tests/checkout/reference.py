"""Write the tables of docs/ that the code determines, and the reasons in the schema of records. ``make docs``.

The single source is the help of a command, the docstring below the field of a setting, the help and advice of a metric. Each
table is between two comments, ``<!-- settings -->`` and ``<!-- /settings -->``; the text around them is written by hand.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Final, get_args

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import streams_app.testing
from benchmarks.comparison import page
from streams_app import errors
from streams_app.cli import group
from streams_app.folding.core import closing
from streams_app.folding.store.replies import RESYNC_CAUSES
from streams_app.health.metric_table import METRICS
from streams_app.reasons import ADVICE, REASONS
from streams_app.settings import Settings
from streams_app.settings.described import DERIVED, descriptions, models_in
from tests.checkout import layers

ROOT: Final = Path(__file__).parents[2]
REFERENCE: Final = ROOT / "docs" / "reference"
RECORD_SCHEMA: Final = ROOT / "streams_app" / "folded-record.schema.json"
SHARED: Final = ("config", "app")
"""Options of nearly every command, which are described once."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    names = list(head)
    lines = [f"| {' | '.join(cell.replace('|', f'{chr(92)}|') for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(names)} |", f"|{'---|' * len(names)}", *lines])


# Commands


def commands(parent: click.Group, words: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every executable command with its words, in the order of the help."""
    for name in list(parent.commands) or parent.list_commands(click.Context(parent)):
        command = parent.get_command(click.Context(parent), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


def _help(command: click.Command) -> list[str]:
    r"""Return the paragraphs of a help; those that begin with ``\b`` are preformatted."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return [
        f"```\n{textwrap.dedent(one[2:]).strip()}\n```" if one.startswith("\b") else " ".join(one.split()) for one in paragraphs
    ]


def _options(command: click.Command, wanted: Callable[[str | None], bool]) -> list[tuple[str, str]]:
    context = click.Context(command)
    records = [one.get_help_record(context) for one in command.params if isinstance(one, click.Option) and wanted(one.name)]
    return [(f"`{record[0]}`", record[1].replace("<", "&lt;")) for record in records if record]


def command_sections() -> str:
    """Return a table of all commands, their common options, and each command with its own options."""
    found = dict(commands(group, "streams-app"))
    parts = [
        table(("command", "does"), ((f"[`{words}`](#{words.replace(' ', '-')})", _help(one)[0]) for words, one in found.items()))
    ]
    parts.append("Options of every command but `demo`:")
    parts.append(table(("option", "what it is"), _options(found["streams-app worker"], lambda name: name in SHARED)))
    for words, command in found.items():
        arguments = " ".join(one.make_metavar(click.Context(command)) for one in command.params if isinstance(one, click.Argument))
        call = f"\n\nCall: `{words} {arguments}`" if arguments else ""
        parts.append(f"### {words}\n\n" + "\n\n".join(_help(command)) + call)
        if own := _options(command, lambda name: name not in SHARED):
            parts.append(table(("option", "what it is"), own))
    return "\n\n".join(parts)


# Settings


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, timedelta):
        units = {
            "d": timedelta(days=1),
            "h": timedelta(hours=1),
            "m": timedelta(minutes=1),
            "s": timedelta(seconds=1),
            "ms": timedelta(milliseconds=1),
        }
        unit = next(unit for unit, length in units.items() if not value % length)
        return f'`"{value // units[unit]}{unit}"`'
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Return name, default and description of every setting.

    Raises:
        KeyError: A setting has no description.
    """
    docstrings = descriptions(model)
    for key, field in model.model_fields.items():
        if timedelta in get_args(field.annotation):
            yield f"`{prefix}{key}`", _default(field), docstrings[key]
        if inner := models_in(field.annotation):
            yield from _tables(inner, f"{prefix}{key}.<name>." if "tuple" in str(field.annotation) else f"{prefix}{key}.")
        elif not (prefix.endswith("<name>.") and key == "name"):
            name = prefix + key
            yield f"`{name}`", f'`"{DERIVED[name]}"`' if name in DERIVED else _default(field), docstrings[key]


def _tables(models: Sequence[type[BaseModel]], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Return the settings of the tables that are possible in one place; each setting has one row.

    What is different in a later table begins with the name of its first setting.
    """
    rows = {name: (default, what) for name, default, what in settings(models[0], prefix)}
    for model in models[1:]:
        option = f"With `{next(iter(model.model_fields))}`"
        for name, default, what in settings(model, prefix):
            if name not in rows:
                rows[name] = default, what
                continue
            former, text = rows[name]
            both = former if default == former else f"{former}; {option.lower()}: {default}"
            rows[name] = both, f"{text} {option}: {what[0].lower()}{what[1:]}"
    for name, (default, what) in rows.items():
        yield name, default, what


def setting_sections() -> str:
    """Return a table for each section of the settings, below its heading."""
    sections: dict[str, list[tuple[str, str, str]]] = {}
    for row in settings(Settings):
        section, dot, _ = row[0].strip("`").partition(".")
        sections.setdefault(section if dot else "", []).append(row)
    head = ("setting", "default", "what it is")
    return "\n\n".join(
        f"## {section}\n\n{table(head, rows)}" if section else table(head, rows) for section, rows in sections.items()
    )


# Metrics

METRIC_SECTIONS: Final = {
    "read_store": "Read stores",
    "subscriber": "Subscribers",
    "publish": "Published events",
    "live": "Live views",
    "journal": "Journals",
}
"""Beginning of the name of a metric → heading; all others are of folds or of the worker as a whole."""


def metric_sections() -> str:
    """Return a table of the metrics of each kind of component, below its heading."""
    sections: dict[str, list[tuple[str, ...]]] = {}
    for one in METRICS:
        first = one.name.removeprefix("streams_app_")
        of_fold = "Folds" if "fold" in one.labels else "Workers"
        section = next((heading for prefix, heading in METRIC_SECTIONS.items() if first.startswith(prefix)), of_fold)
        sections.setdefault(section, []).append((f"`{one.name}`", one.kind, ", ".join(one.labels), one.help, one.advice))
    head = ("metric", "type", "labels", "what it is", "what to do when it moves")
    return "\n\n".join(f"## {section}\n\n{table(head, rows)}" for section, rows in sections.items())


# Python


def _summary(documented: object) -> str:
    """Return the first paragraph of a docstring in Markdown."""
    words = " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())
    return re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", words.replace("``", "`"))


def public_names(module: ModuleType) -> str:
    """Return a table of the classes and functions that a module offers."""
    offered = ((name, getattr(module, name)) for name in sorted(module.__all__, key=str.lower))
    return table(("name", "what it is"), ((f"`{name}`", _summary(one)) for name, one in offered if callable(one)))


def error_classes() -> str:
    """Return a table of the errors of the package, with the exit code of a command or worker that one ends."""
    offered = (one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.StreamsAppError))
    return table(("error", "exit code", "when"), ((f"`{one.__name__}`", f"`{one.exit_code}`", _summary(one)) for one in offered))


# The pages


def blocks() -> dict[Path, dict[str, str]]:
    """Return the tables of each page by the name of their markers."""
    reasons = ((f"`{reason}`", words, ADVICE[reason]) for reason, words in REASONS.items())
    causes = ((f"`{cause}`", words) for cause, words in RESYNC_CAUSES.items())
    return {
        REFERENCE / "commands.md": {"commands": command_sections()},
        REFERENCE / "settings.md": {"settings": setting_sections()},
        REFERENCE / "metrics.md": {
            "metrics": metric_sections(),
            "causes": table(("cause", "what happened"), causes),
        },
        REFERENCE / "errors.md": {
            "reasons": table(("reason", "the event", "what to do"), reasons),
            "errors": error_classes(),
        },
        REFERENCE / "python.md": {"names": public_names(streams_app), "testing": public_names(streams_app.testing)},
    }


def written(text: str, tables: dict[str, str]) -> str:
    """Return a page with the tables derived from the code.

    Raises:
        ValueError: The markers of a table are missing.
    """
    for name, block in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, opened, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (opened and closed):
            raise ValueError(f"no {begin.strip()} … {end}")
        text = f"{before}{begin}{block}\n{end}{after}"
    return text


def with_reasons(text: str) -> str:
    """Return the schema of folded records with the reasons that the code has."""
    return re.sub(r'(?<="enum": )\[.*?\]', json.dumps(closing.REASONS), text)


if __name__ == "__main__":
    for path, tables in blocks().items():
        path.write_text(written(path.read_text("utf-8"), tables), "utf-8")
    RECORD_SCHEMA.write_text(with_reasons(RECORD_SCHEMA.read_text("utf-8")), "utf-8")
    page.PAGE.write_text(page.written(), "utf-8")
    layers.PAGE.write_text(layers.written(layers.PAGE.read_text("utf-8")), "utf-8")
