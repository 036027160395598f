"""The registry of databases: each line names a folder that can be opened."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import streams_app.read_store
from streams_app.errors import ConfigurationError
from streams_app.read_store.opensearch.documents import Shape
from streams_app.read_store.registry import open_source, open_store
from streams_app.settings import ReadStoreSettings
from streams_app.settings.databases import DATABASES, RegisteredDatabase, database_of

FOLDER = Path(streams_app.read_store.__file__).parent
ROOT = FOLDER.parent.parent
SHARED = {"core", "sync"}


def test_every_database_folder_is_registered_once() -> None:
    folders = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py") if path.parent.name not in SHARED)

    assert folders == sorted(database.folder for database in DATABASES)


@pytest.mark.parametrize("database", DATABASES, ids=lambda database: database.folder)
def test_database_package_has_the_functions_of_the_port(database: RegisteredDatabase) -> None:
    package = import_module(f"streams_app.read_store.{database.folder}")
    needed = ["open_store", "open_rebuilding", *(["open_source"] if database.is_source else [])]

    assert [] == [name for name in needed if not callable(getattr(package, name, None))]


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("sqlite:///read.db", "sqlite"), ("postgresql://u@h/d", "postgresql"), ("postgres://u@h/d", "postgresql"),
        ("opensearch+http://h:9200", "opensearch"), ("elasticsearch+https://h", "opensearch"), ("unknown://h/d", None),
    ],
)  # fmt: skip
def test_url_names_its_database(url: str, folder: str | None) -> None:
    found = database_of(url)

    assert folder == (found and found.folder)


def test_unsupported_database_url_is_a_configuration_error() -> None:
    declared = ReadStoreSettings.model_construct(name="d", url="unknown://h/d", folds=("f",), table="t")

    with pytest.raises(ConfigurationError, match="no store for 'unknown:'; use ") as caught:
        open_store(declared)

    assert [] == [database.example for database in DATABASES if database.example not in str(caught.value)]


def test_database_that_is_no_source_is_a_configuration_error() -> None:
    declared = ReadStoreSettings.model_construct(
        name="d", url="sqlite:///x", folds=("f",), source="sql", source_url="opensearch+http://h", sql="SELECT 1"
    )

    with pytest.raises(ConfigurationError, match=r"no source for 'opensearch\+http:'; use ") as caught:
        open_source(declared)

    assert [database.is_source for database in DATABASES] == [database.example in str(caught.value) for database in DATABASES]


@pytest.mark.parametrize("database", DATABASES, ids=lambda database: database.folder)
def test_documentation_of_settings_names_the_url_of_the_database(database: RegisteredDatabase) -> None:
    rows = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8").splitlines()
    keys = ["url", *(["source_url"] if database.is_source else [])]
    missing = [
        key
        for key in keys
        if not any(row.startswith(f"| `read_stores.<name>.{key}`") and f"`{database.schemes[0]}" in row for row in rows)
    ]

    assert [] == missing, f"add the URL of {database.name} to these docstrings in settings/read_stores.py, then `make docs`"


@pytest.mark.parametrize("database", DATABASES, ids=lambda database: database.folder)
def test_example_url_of_a_database_names_it(database: RegisteredDatabase) -> None:
    assert database is database_of(database.example)


def test_scripts_of_opensearch_keep_their_names() -> None:
    """A changed text makes a new script, which every installation would have to create with `read-store init`."""
    names = [Shape(shape, {}).script_name for shape in ("cells", "groups")]

    assert ["streams-app-cells-e45f4cba9ebf", "streams-app-groups-f66bc93b1be5"] == names
