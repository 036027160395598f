"""What the settings are: the description of each, its default, and its value in force without secrets."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from streams_app.formatting import duration_text, milliseconds
from streams_app.settings.base import SECRET, redacted

DERIVED: Final = {
    "folds.<name>.output": "<source>.<name>",
    "folds.<name>.dead_letters": "<source>.dead",
    "read_stores.<name>.dead_letters": "<app_id>.read-store.<name>.dead",
    "live.<name>.dead_letters": "<app_id>.live.dead",
}
"""Defaults that are derived from other settings."""

MASK: Final = "***"
MOST_CHARACTERS: Final = 2_000
"""Maximum number of characters of a value that are shown."""


class SettingInForce(msgspec.Struct, frozen=True):
    """A setting as it is in force.

    Attributes:
        path: Its name with the names of its tables, as in ``folds.orders.quiet_period``.
        section: The same without the last name; empty at the top of the file.
        value: Its value as text, without secrets.
        default: Its default as text; None if it is required.
        what: Its description; empty if the source of the package is not installed.
    """

    path: str
    section: str
    value: str
    default: str | None
    is_changed: bool
    what: str


@cache
def descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstring below each field. Pydantic can read it, too, but would do so at every import."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    except OSError:
        return {}  # installed as bytecode only
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                found[name] = " ".join(docstring.split()).replace("``", "`")
    return found


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in the type of a field: ``tuple[Fold, ...]``, ``ReadStoreSettings | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in models_in(part)]


def settings_in_force(model: BaseModel) -> Iterator[SettingInForce]:
    """Yield every setting of an application, in the order of the reference."""
    yield from _of_section(model, "", "", {"app_id": str(getattr(model, "app_id", ""))})


def _of_section(model: BaseModel, section: str, general: str, names: Mapping[str, str]) -> Iterator[SettingInForce]:
    known = {**names, "source": str(getattr(model, "source", ""))}
    for key, field in type(model).model_fields.items():
        value = getattr(model, key)
        path, pattern = f"{section}.{key}".lstrip("."), f"{general}.{key}".lstrip(".")
        if isinstance(value, BaseModel):
            yield from _of_section(value, path, pattern, known)
        elif isinstance(value, tuple) and models_in(field.annotation):
            for one in value:
                name = str(getattr(one, "name", ""))
                yield from _of_section(one, f"{path}.{name}", f"{pattern}.<name>", {**known, "name": name})
        elif not (key == "name" and general.endswith("<name>")):
            yield _setting(model, key, field, path, section, _derived(pattern, known))


def _derived(pattern: str, names: Mapping[str, str]) -> str | None:
    text = DERIVED.get(pattern)
    for name, value in names.items():
        text = None if text is None else text.replace(f"<{name}>", value)
    return text


def _setting(model: BaseModel, key: str, field: FieldInfo, path: str, section: str, derived: str | None) -> SettingInForce:
    value = getattr(model, key)
    default = field.get_default(call_default_factory=True) if derived is None else derived
    is_required = default is PydanticUndefined
    return SettingInForce(
        path, section, value_text(key, field, value), None if is_required else value_text(key, field, default),
        not is_required and value != default, descriptions(type(model)).get(key, ""),
    )  # fmt: skip


def value_text(key: str, field: FieldInfo, value: Any) -> str:
    """Return a value as it may be shown: URLs have no credentials, and what may be a secret itself is masked.

    A secret that is in a file is not masked, because its setting is the path of the file.
    """
    is_url = isinstance(value, str) and "://" in value
    may_be_secret = (not field.repr and not is_url) or (isinstance(value, str) and bool(SECRET.search(key)))
    return MASK if value and may_be_secret else _text(value)[:MOST_CHARACTERS]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return redacted(value) if "://" in value else value
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {MASK if SECRET.search(str(name)) else _text(one)}" for name, one in value.items()) or "none"
    if isinstance(value, Sequence | set | frozenset):
        return ", ".join(map(_text, value)) or "none"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return duration_text(milliseconds(value))
    return "a function" if callable(value) else str(value)
