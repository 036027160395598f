"""Loads settings from ``streams.toml`` and ``STREAMS_APP_…``; reports all faults at once, and suggests similar names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.formatting import suggestion
from streams_app.settings.console import ConsoleSettings
from streams_app.settings.journals import JournalSettings
from streams_app.settings.live import LiveServer, LiveView
from streams_app.settings.read_stores import ReadStoreSettings
from streams_app.settings.redis import RedisSettings
from streams_app.settings.schema_registry import SchemaRegistrySettings
from streams_app.settings.sections import (
    NOTHING_DECLARED,
    HttpSettings,
    KafkaSettings,
    Limits,
    TracingSettings,
    WorkerSettings,
)
from streams_app.settings.subscribers import EventsSettings, SubscriberSettings
from streams_app.text_files import read_text

S = TypeVar("S", bound=BaseModel)

PREFIX: Final = "STREAMS_APP_"
CONFIG_VARIABLE: Final = "STREAMS_APP_CONFIG"
DEFAULT_FILE: Final = "streams.toml"
MAX_SETTINGS_BYTES: Final = 16 << 20
FOLD_KEY: Final = 2
"""Index of the setting's name in the location of an error of pydantic, such as ``("folds", 0, "quiet_period")``."""

KINDS: Final = {
    "group_key": 'must be a field, a dotted path, a list of them, or "@key"',
    "changed": "must be the name of a field",
    "decode": "a function, only in Python",
    "source_filter": "a function, only in Python",
    "current": "a function, only in Python",
    "key": 'must be a field, a dotted path, a list of them, or "@key"',
}


def load(model: type[S], path: Path | None, environ: Mapping[str, str]) -> S:
    """Load the settings of an application as :meth:`streams_app.settings.Settings.load` promises; ``model`` is that class."""
    values, faults = _given(path, environ)
    if values.pop(FORMER, None) is not None:
        faults.append(f"{FORMER}: every read store has a name: write [read_stores.NAME] instead of [{FORMER}]")
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        # The model checks this only if every section is valid.
        is_declared = (
            values.get("folds") or values.get("live") or values.get("journals") or _section(values, "events").get("catalogue")
        )
        missing = [] if is_declared else [NOTHING_DECLARED]
        messages = _messages(error, values, list(model.model_fields))
        raise ConfigurationError(list(dict.fromkeys([*messages, *missing, *faults]))) from None
    if faults:
        raise ConfigurationError(faults)
    return settings


def legible(path: Path | None, environ: Mapping[str, str]) -> tuple[EventsSettings | None, tuple[SubscriberSettings, ...]]:
    """Return the valid part of ``[events]`` and ``[subscribers.NAME]``, although :func:`load` rejects the settings.

    Invalid keys are omitted, and sections that are invalid even without them. None and an empty tuple if the file cannot be read.
    """
    try:
        values, _ = _given(path, environ)
    except ConfigurationError:
        return None, ()  # the file cannot be read or parsed
    tables = values.get("subscribers")
    found = [_without_faults(SubscriberSettings, table) for table in (tables if isinstance(tables, list) else ())]
    return _without_faults(EventsSettings, values.get("events", {})), tuple(one for one in found if one is not None)


def _without_faults(model: type[S], table: Any) -> S | None:
    """Return a section without its invalid keys, or None if it is not valid without them."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        wrong = {fault["loc"][0] for fault in error.errors(include_url=False) if fault["loc"]}
    if not wrong or not isinstance(table, dict) or wrong.isdisjoint(table):
        return None
    return _without_faults(model, {key: value for key, value in table.items() if key not in wrong})


def _given(path: Path | None, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the file and the environment before validation, and the faults that were found in reading them."""
    values = _read_file(path, environ)
    faults = _apply_environment(values, environ)
    for section, (_, what) in _NAMED.items():
        faults += _listed(values, section, what)
    return values, faults


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) else {}


def _listed(values: dict[str, Any], section: str, what: str) -> list[str]:
    """Convert the tables ``[section.NAME]`` to a list of tables with a key ``name``; return the faults."""
    faults = []
    tables = values.get(section, {})
    if isinstance(tables, dict):
        for name, table in tables.items():
            if isinstance(table, dict) and table.pop("name", None) is not None:
                faults.append(f"{section}.{name}.name: unknown key, the name of a {what} is that of its table")
        values[section] = [{"name": name, **table} if isinstance(table, dict) else table for name, table in tables.items()]
    return faults


def _read_file(path: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    if path is None and environ.get(CONFIG_VARIABLE):
        path = Path(environ[CONFIG_VARIABLE])
    if path is None:
        if not Path(DEFAULT_FILE).exists():
            if any(variable.startswith(PREFIX) and not _OTHER_VARIABLES.match(variable) for variable in environ):
                return {}
            raise ConfigurationError(
                [f"there is no {DEFAULT_FILE} here: name one with --config or {CONFIG_VARIABLE}, or begin with `streams-app demo`"]
            )
        path = Path(DEFAULT_FILE)
    try:
        return tomllib.loads(read_text(path, MAX_SETTINGS_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"cannot read {path}: {error}. Name it with --config or {CONFIG_VARIABLE}."]) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError([f"{path} is not TOML: {error}"]) from error


_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "kafka": KafkaSettings,
    "redis": RedisSettings,
    "http": HttpSettings,
    "worker": WorkerSettings,
    "limits": Limits,
    "tracing": TracingSettings,
    "schema_registry": SchemaRegistrySettings,
    "events": EventsSettings,
    "live_server": LiveServer,
    "console": ConsoleSettings,
}
_NAMED: Final[dict[str, tuple[type[BaseModel], str]]] = {
    "folds": (Fold, "fold"),
    "read_stores": (ReadStoreSettings, "read store"),
    "subscribers": (SubscriberSettings, "subscriber"),
    "live": (LiveView, "live view"),
    "journals": (JournalSettings, "journal"),
}
"""Sections that consist of a table for each name, with the model of such a table and the noun for it in messages."""

FORMER: Final = "read_store"
"""Section of earlier versions, which supported a single store."""

_OTHER_VARIABLES: Final = re.compile(r"^STREAMS_APP_(CONFIG|TEST_\w+)$")


def _apply_environment(values: dict[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Apply the overrides of environment variables to ``values``; return the faults."""
    faults = []
    targets: dict[str, tuple[str, ...]] = {"STREAMS_APP_APP_ID": ("app_id",)}
    for section, model in _SECTIONS.items():
        for key in model.model_fields:
            targets[f"{PREFIX}{section}_{key}".upper()] = (section, key)
    for section, (model, _) in _NAMED.items():
        tables = values.get(section)
        for name in tables if isinstance(tables, dict) else ():
            for key in _keys(model):
                targets[f"{PREFIX}{section}_{name}_{key}".upper().replace("-", "_")] = (section, name, key)
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or _OTHER_VARIABLES.match(variable):
            continue
        target = targets.get(variable)
        if target is None:
            faults.append(_unknown(variable, list(targets)))
            continue
        if not _put(values, target, text):
            faults.append(f"{variable}: {'.'.join(target[:-1])} is not a table")
    return faults


def _unknown(variable: str, known: list[str]) -> str:
    if variable.startswith(f"{PREFIX}{FORMER}_".upper()):
        return f"{variable}: every read store has a name: write {PREFIX}READ_STORES_NAME_..."
    for section, (_, what) in _NAMED.items():
        if any(variable.startswith(f"{PREFIX}{other}_".upper()) for other in _SECTIONS if other.startswith(f"{section}_")):
            continue  # a misspelled key of [live_server], not a view [live.server]
        if variable.startswith(prefix := f"{PREFIX}{section}_".upper()):
            near = suggestion(variable, [one for one in known if one.startswith(prefix)])
            return f"{variable}: no such setting{near} (of a {what}, only where the file has its [{section}.NAME])"
    if suggested := _of_other_section(variable, known):
        return f"{variable}: no such setting, did you mean {suggested}?"
    return f"{variable}: no such setting{suggestion(variable, known)}"


def _of_other_section(variable: str, known: list[str]) -> str:
    """Return the variables of the same key in other sections, joined by "or"; empty if the section has a similar key."""
    for section, model in _SECTIONS.items():
        name = variable.removeprefix(f"{PREFIX}{section}_".upper())
        if name != variable and not suggestion(name.lower(), list(model.model_fields)):
            same = [f"{PREFIX}{other}_".upper() + name for other in _SECTIONS]
            return " or ".join(one for one in same if one in known)
    return ""


def _keys(model: type[BaseModel]) -> list[str]:
    return [key for key in model.model_fields if key != "name"]


def _put(values: dict[str, Any], target: tuple[str, ...], text: str) -> bool:
    """Set the value of one environment variable in ``values``; return False if its section is not a table."""
    table: Any = values
    for step in target[:-1]:
        table = table.setdefault(step, {}) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table[target[-1]] = _from_text(target, text)
    return isinstance(table, dict)


def _from_text(target: tuple[str, ...], text: str) -> Any:
    """Convert the text of an environment variable: split it at commas if its setting is a list; the model converts other texts."""
    if target[-1] in ("folds", "fields", "columns", "payload", "origins", "workers") or (
        target[-1] in ("group_key", "key") and "," in text
    ):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _messages(error: ValidationError, values: dict[str, Any], top_keys: list[str]) -> list[str]:
    messages = []
    for fault in error.errors(include_url=False, include_input=False):
        where = _where(fault["loc"], values)
        text = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            text = _extra(fault["loc"], top_keys)
        elif fault["type"] == "missing":
            text = "is required"
        elif len(fault["loc"]) > FOLD_KEY and fault["loc"][0] in _NAMED and fault["loc"][FOLD_KEY] in KINDS:
            # pydantic reports one error for each accepted type, including functions: one message suffices.
            where, text = where.removesuffix(".callable"), KINDS[str(fault["loc"][FOLD_KEY])]
        messages.append(f"{where}: {text}" if where else text)
    return list(dict.fromkeys(messages))


def _extra(location: tuple[int | str, ...], top_keys: list[str]) -> str:
    if (location[0], location[-1]) == ("subscribers", "idempotent"):
        return "is not a setting: what a function may suffer is declared beside it, in @subscriber(…)"
    key = str(location[-1])
    if near := suggestion(key, _known_keys(location, top_keys)):
        return f"unknown key{near}"
    sections = [f"{section}.{key}" for section, model in _SECTIONS.items() if key in model.model_fields]
    sections += [f"{section}.NAME.{key}" for section, (model, _) in _NAMED.items() if key in _keys(model)]
    return f"unknown key, did you mean {' or '.join(sections)}?" if sections else "unknown key"


def _where(location: tuple[int | str, ...], values: dict[str, Any]) -> str:
    steps = []
    for position, step in enumerate(location):
        if isinstance(step, int) and position == 1 and location[0] in _NAMED:
            table = values[str(location[0])][step]
            steps.append(str(table.get("name", step)) if isinstance(table, dict) else str(step))
        elif not (isinstance(step, str) and (step.startswith(("function-", "tuple[")) or step == "str")):
            steps.append(str(step))
    return ".".join(steps)


def _known_keys(location: tuple[int | str, ...], top_keys: list[str]) -> list[str]:
    if len(location) == 1:
        return top_keys
    if location[0] in _NAMED:
        return _keys(_NAMED[str(location[0])][0])
    return list(_SECTIONS[str(location[0])].model_fields)
