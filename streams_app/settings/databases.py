"""Describes each database that read stores support, without importing its driver.

Settings are checked by these descriptions. :mod:`streams_app.read_store.registry` imports the folder of a database once a URL names
the database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class RegisteredDatabase:
    """A database that read stores support.

    Attributes:
        folder: Folder of the database in ``read_store``.
        schemes: Prefixes of URLs that name the database.
        example: URL of a store, for messages.
        driver: Module of the driver; empty if the driver is part of Python, as is ``package``, which installs it.
        driver_logger: Name of a logger of the driver that is silenced, because it would log each failed request with its content;
            empty if there is none.
        has_login: Whether the database has users and rights, which a worker checks when it starts.
        is_file: Whether a URL names a file instead of a server.
        is_source: Whether the database can also be a ``source_url``.
        keeps_former_table: Whether a rebuild retains the former table, whose name then has a suffix.
        needs_columns: Whether a store with ``shape = "groups"`` must set ``columns``, because its table has no column for other
            names.
        default_schema: Schema of a table whose name has none; empty if the database has no schemas.
        default_port: Port of a URL without a port, when the URLs of two stores are compared; 0 if none is assumed.
    """

    name: str
    folder: str
    schemes: tuple[str, ...]
    example: str
    driver: str = ""
    package: str = ""
    driver_logger: str = ""
    has_login: bool = True
    is_file: bool = False
    is_source: bool = False
    keeps_former_table: bool = True
    needs_columns: bool = True
    default_schema: str = ""
    default_port: int = 0


DATABASES: Final = (
    RegisteredDatabase("SQLite", "sqlite", ("sqlite:",), "sqlite:///FILE", has_login=False, is_file=True, is_source=True),
    RegisteredDatabase(
        "PostgreSQL", "postgresql", ("postgresql://", "postgres://"), "postgresql://HOST/DATABASE", "asyncpg", "asyncpg",
        is_source=True, default_schema="public", default_port=5432,
    ),
    RegisteredDatabase(
        "MySQL or MariaDB", "mysql", ("mysql://", "mariadb://"), "mysql://HOST/DATABASE", "asyncmy", "asyncmy", "asyncmy",
        is_source=True, default_port=3306,
    ),
    RegisteredDatabase(
        "OpenSearch", "opensearch", ("opensearch+", "elasticsearch+"), "opensearch+https://HOST:9200", "opensearchpy",
        "opensearch-py", "opensearch", keeps_former_table=False, needs_columns=False,
    ),
)  # fmt: skip

WITH_SCHEMAS: Final = " and ".join(database.name for database in DATABASES if database.default_schema)
"""Names of the databases that have schemas, for messages."""


def database_of(url: str) -> RegisteredDatabase | None:
    """Return the database that a URL names; None if there is no such database."""
    return next((database for database in DATABASES if url.startswith(database.schemes)), None)


def location_of(url: str) -> str:
    """Return the location of a URL in a form that can be compared.

    For a file, this is its absolute path. For a server, it consists of the scheme, the sorted hosts and ports, and the name of the
    database, without the user.
    """
    database = database_of(url)
    scheme, _, rest = url.partition("://")
    if database is not None and database.is_file and rest:
        return str(Path(unquote(rest.removeprefix("/"))).resolve())
    location, _, name = rest.partition("?")[0].rpartition("@")[2].partition("/")
    default = f":{database.default_port}" if database is not None and database.default_port else ""
    hosts = sorted(host if re.search(r":\d+$", host) else f"{host}{default}" for host in location.lower().split(","))
    kind = f"{scheme}://"
    if database is not None and kind in database.schemes:
        kind = database.schemes[0]
    return f"{kind}{','.join(hosts)}/{unquote(name)}"


def table_name_of(url: str, table: str) -> str:
    """Return the name of a table in a form that can be compared: in lower case, and without the default schema of its database."""
    database = database_of(url)
    schema = f"{database.default_schema}." if database is not None and database.default_schema else ""
    return table.lower().removeprefix(schema)
