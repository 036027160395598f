"""Rebuilding in PostgreSQL: one transaction renames the current and the new table, and the checkpoint table of each.

Users' additions are transferred to the new table. Rights, indexes, defaults and comments are copied when it is created. Views and
triggers belong to a table and not to its name, so the switch creates them again. An addition that cannot be transferred, such as a
policy, prevents the rebuild, so that it is not lost silently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, InternalError
from streams_app.read_store.core.rebuilding import (
    FORMER_SUFFIX,
    NEW_SUFFIX,
    OWNER,
    RebuildOwnership,
    behind,
    check_table_names,
    columns_not_copied,
)
from streams_app.read_store.core.store import ReadStore
from streams_app.read_store.postgresql.connection import Connection, PostgresPool
from streams_app.read_store.postgresql.store import CHECKPOINT_COLUMNS, LOCK, quoted, table_statement
from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

PARTS: Final = ("", "_progress")
EXISTS: Final = "SELECT to_regclass($1) IS NOT NULL"
LIKE: Final = "CREATE TABLE {new} (LIKE {table} INCLUDING ALL) WITH (fillfactor = 85)"
WRITTEN: Final = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
# Statements that grant the rights on a table and its columns, and set its comment.
GIVEN: Final = """
WITH rights AS (
    SELECT privilege_type::text AS privilege, grantee, is_grantable FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass($1)
    UNION ALL
    SELECT format('%s (%I)', privilege_type, attname), grantee, is_grantable FROM pg_attribute AS old_column, aclexplode(attacl)
    WHERE attrelid = to_regclass($1)
        AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass($2) AND attname = old_column.attname)
)
SELECT format(
    'GRANT %s ON %s TO %s %s', privilege, $2::text, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
    CASE WHEN is_grantable THEN 'WITH GRANT OPTION' END
) FROM rights
UNION ALL
SELECT format('COMMENT ON TABLE %s IS %L', $2::text, description) FROM pg_description
WHERE classoid = 'pg_class'::regclass AND objoid = to_regclass($1) AND objsubid = 0
"""
VIEWS: Final = """
SELECT DISTINCT seen.oid::regclass::text AS name, pg_get_viewdef(seen.oid) AS query, seen.relkind = 'm' AS is_materialised,
    'WITH (' || array_to_string(seen.reloptions, ', ') || ')' AS options
FROM pg_depend JOIN pg_rewrite ON pg_rewrite.oid = pg_depend.objid JOIN pg_class AS seen ON seen.oid = pg_rewrite.ev_class
WHERE pg_depend.classid = 'pg_rewrite'::regclass AND refclassid = 'pg_class'::regclass AND refobjid = to_regclass($1)
    AND seen.oid <> refobjid
"""
TRIGGERS: Final = """
SELECT pg_get_triggerdef(oid) || CASE tgenabled WHEN 'O' THEN '' ELSE format(
    '; ALTER TABLE %s %s TRIGGER %I', $1::text,
    CASE tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, tgname
) END FROM pg_trigger WHERE tgrelid = to_regclass($1) AND NOT tgisinternal ORDER BY tgname
"""
# Additions that cannot be transferred: policies, functions, publications, rules, foreign keys from and to the table, and
# inheritance in either direction.
FIXED: Final = """
SELECT 'row-level security' FROM pg_class WHERE oid = to_regclass($1) AND relrowsecurity
UNION
SELECT pg_describe_object(classid, objid, 0) FROM pg_depend
    LEFT JOIN pg_rewrite ON classid = 'pg_rewrite'::regclass AND pg_rewrite.oid = objid
    LEFT JOIN pg_constraint ON classid = 'pg_constraint'::regclass AND pg_constraint.oid = objid
    LEFT JOIN pg_class AS heir ON classid = 'pg_class'::regclass AND heir.oid = objid
WHERE refclassid = 'pg_class'::regclass AND refobjid = to_regclass($1) AND (
    classid IN ('pg_policy'::regclass, 'pg_proc'::regclass, 'pg_publication_rel'::regclass)
    OR ev_class = refobjid OR contype = 'f' OR heir.relkind IN ('r', 'p', 'f')
)
UNION
SELECT pg_describe_object('pg_class'::regclass, inhparent, 0) FROM pg_inherits WHERE inhrelid = to_regclass($1)
ORDER BY 1
"""
# Objects of a table that have another name in its copy, with the definition or column by which both can be matched.
BELONGING: Final = """
WITH given AS (SELECT oid, relname, relnamespace FROM pg_class WHERE oid = to_regclass($1))
SELECT 'INDEX' AS kind, named.relname::text AS name, replace(
    pg_get_indexdef(indexrelid), format('%I ON %I.%I', named.relname, relnamespace::regnamespace::text, given.relname), ''
) AS definition
FROM given JOIN pg_index ON indrelid = given.oid JOIN (SELECT oid, relname FROM pg_class) AS named ON named.oid = indexrelid
UNION ALL
SELECT 'STATISTICS', stxname::text, stxkind::text || pg_get_statisticsobjdef_columns(pg_statistic_ext.oid)
FROM given JOIN pg_statistic_ext ON stxrelid = given.oid
UNION ALL
SELECT 'SEQUENCE', named.relname::text, attname::text
FROM given JOIN pg_depend ON refclassid = 'pg_class'::regclass AND refobjid = given.oid AND deptype = 'i'
JOIN pg_class AS named ON classid = 'pg_class'::regclass AND named.oid = objid AND named.relkind = 'S'
JOIN pg_attribute ON attrelid = given.oid AND attnum = refobjsubid
ORDER BY 1, 2
"""
TAKEN: Final = """
SELECT relname::text FROM pg_class WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1))
"""
SELECT_CHECKPOINTS: Final = "SELECT topic, partition, next_offset FROM {checkpoints}"
DISOWN: Final = "DELETE FROM {checkpoints} WHERE topic = $1 AND partition = $2"
MAX_NAME_BYTES: Final = 63
HOLD_SECONDS: Final = "SET LOCAL idle_in_transaction_session_timeout = '60s'"


class PostgresRebuilding:
    """Creates the new tables of a rebuild in PostgreSQL, and replaces the current tables by them."""

    def __init__(self, declared: ReadStoreSettings, store: ReadStore) -> None:
        self._declared = declared
        self._section = declared.section
        self._table = declared.table
        self._new = f"{declared.table}{NEW_SUFFIX}"
        self._store = store
        self._ownership = RebuildOwnership(declared.table, store)
        self._holder: Connection | None = None
        self._pool = PostgresPool(declared.url, declared, f"read store {declared.name}")

    async def prepare(self) -> list[str]:
        """If the columns of the current tables do not fit the settings, the new tables have the columns of the settings."""
        await self._pool.call(self._check)
        check_table_names(self._declared, await self._pool.call(self._named))
        found = await self._pool.call_long(self._drop_left)
        try:
            added = await self._pool.call(self._make_alike)
            await self._store.initialise()
            found += columns_not_copied(self._declared, added)
        except ConfigurationError:  # the current columns differ from the settings, which is a reason to rebuild
            await self._pool.call_long(self._drop_left)
            await self._store.initialise()
        await self._pool.call(self._give)
        await self._ownership.claim()
        return found

    async def switch(self, recreated: Collection[TP]) -> Collection[TP]:
        if self._holder is not None:
            return await self._switch(self._holder, recreated)
        return await self._pool.call(lambda connection: self._switch(connection, recreated))

    async def with_writers_paused(self, function: Callable[[], Awaitable[T]]) -> T:
        """A lock on the current tables blocks writers, but not readers."""

        async def run(connection: Connection) -> T:
            async with connection.transaction():
                await connection.execute(HOLD_SECONDS)
                await self._lock(connection, "SHARE ROW EXCLUSIVE")
                self._holder = connection
                try:
                    return await function()
                finally:
                    self._holder = None

        return await self._pool.call(run)

    async def close(self) -> None:
        await self._pool.close()

    async def _drop_left(self, connection: Connection) -> list[str]:
        await connection.fetchval(LOCK, self._table)
        found = []
        if await _exists(connection, self._new):
            rows = await connection.fetchval(f"SELECT count(*) FROM {quoted(self._new)}")
            found.append(f"removed {self._new} with {rows} rows, left by an interrupted rebuild")
        for part in PARTS:
            await connection.execute(f"DROP TABLE IF EXISTS {quoted(self._new + part)}")
        return found

    async def _make_alike(self, connection: Connection) -> list[str]:
        """Create the new tables with the types and constraints of the current ones, if any; return the writable columns."""
        async with connection.transaction():
            await connection.fetchval(LOCK, self._table)
            for part in PARTS:
                if await _exists(connection, f"{self._table}{part}"):
                    await connection.execute(LIKE.format(new=quoted(self._new + part), table=quoted(self._table + part)))
            if await _exists(connection, self._new) and not await _exists(connection, f"{self._new}_progress"):
                # A checkpoint table shows that the table belongs to a store.
                await connection.execute(table_statement(f"{self._new}_progress", CHECKPOINT_COLUMNS, "topic, partition"))
            return [column for (column,) in await connection.fetch(WRITTEN, quoted(self._table))]

    async def _give(self, connection: Connection) -> None:
        async with connection.transaction():
            for part in PARTS:
                given: list[Any] = await connection.fetch(GIVEN, quoted(self._table + part), quoted(self._new + part))
                for (statement,) in given:
                    await connection.execute(statement)

    async def _switch(self, connection: Connection, recreated: Collection[TP]) -> Collection[TP]:
        async with connection.transaction():
            await connection.fetchval(LOCK, self._table)
            is_new = await _exists(connection, f"{self._new}_progress")
            if not is_new and not await _exists(connection, self._table):
                raise InternalError(f"there is neither a table {self._table} nor a new one")
            new = await _checkpoints(connection, self._new) if is_new else None
            if not self._ownership.check(new):
                return set()
            is_there = await self._lock(connection, "ACCESS EXCLUSIVE")
            old = await _checkpoints(connection, self._table) if "_progress" in is_there else {}
            if left := behind(old, new or {}, recreated):
                return left
            await connection.execute(DISOWN.format(checkpoints=quoted(f"{self._new}_progress")), *OWNER)
            current = await self._check(connection)
            for part in PARTS:
                await connection.execute(f"DROP TABLE IF EXISTS {quoted(self._table + FORMER_SUFFIX + part)}")
            renaming = [statement for part in PARTS for statement in await self._renaming(connection, part)]
            for part in PARTS:
                if part in is_there:
                    await connection.execute(_rename(f"{self._table}{part}", f"{self._table}{FORMER_SUFFIX}{part}"))
                elif part and is_there:  # a checkpoint table shows that the former table belongs to a store
                    await connection.execute(
                        table_statement(f"{self._table}{FORMER_SUFFIX}{part}", CHECKPOINT_COLUMNS, "topic, partition")
                    )
                await connection.execute(_rename(f"{self._new}{part}", f"{self._table}{part}"))
            for statement in [*renaming, *current]:
                await connection.execute(statement)
            self._ownership.begin_switch()
            return set()

    async def _renaming(self, connection: Connection, part: str) -> list[str]:
        """Return statements that give indexes, statistics and sequences of the new table the names of those of the current one."""
        table, new = f"{self._table}{part}", f"{self._new}{part}"
        old: list[Any] = await connection.fetch(BELONGING, quoted(table))
        copies: list[Any] = await connection.fetch(BELONGING, quoted(new))
        taken = {name for (name,) in await connection.fetch(TAKEN, quoted(new))}
        renamed = renames(
            [TableObject(*row) for row in old], [TableObject(*row) for row in copies], taken,
            table=_bare(table), new_table=_bare(new),
        )  # fmt: skip
        schema = quoted(table).removesuffix(quoted(_bare(table)))
        return [f"ALTER {kind} {schema}{_identifier(name)} RENAME TO {_identifier(to)}" for kind, name, to in renamed]

    async def _named(self, connection: Connection) -> list[str]:
        """List the existing tables that have the name of a new or a former table."""
        names = [f"{self._table}{suffix}{part}" for suffix in (NEW_SUFFIX, FORMER_SUFFIX) for part in PARTS]
        return [name for name in names if await _exists(connection, name)]

    async def _lock(self, connection: Connection, mode: str) -> list[str]:
        """Lock the current table and its checkpoint table, if they exist; return the suffixes of those that exist."""
        is_there = [part for part in PARTS if await _exists(connection, f"{self._table}{part}")]
        for part in is_there:
            await connection.execute(f"LOCK TABLE {quoted(self._table + part)} IN {mode} MODE")
        return is_there

    async def _check(self, connection: Connection) -> list[str]:
        """Return statements that create views and triggers again after the switch; raise an error if there are other additions."""
        faults, current = [], list[str]()
        for part in PARTS:
            table = quoted(self._table + part)
            views: list[Any] = await connection.fetch(VIEWS, table)
            hint = "would go on showing the former table; drop it first"
            faults += [f"the materialised view {view['name']} {hint}" for view in views if view["is_materialised"]]
            hint = f"would stay with {self._table}{FORMER_SUFFIX}{part}; remove it first, and make it again afterwards"
            faults += [f"{what} {hint}" for (what,) in await connection.fetch(FIXED, table)]
            current += [f"CREATE OR REPLACE VIEW {view['name']} {view['options'] or ''} AS {view['query']}" for view in views]
            current += [statement for (statement,) in await connection.fetch(TRIGGERS, table)]
        if faults:
            raise ConfigurationError([f"{self._section}.table: {fault}" for fault in faults])
        return current


class TableObject(NamedTuple):
    """An object that belongs to a table: an index, extended statistics, or the sequence of a column.

    Attributes:
        kind: ``INDEX``, ``STATISTICS`` or ``SEQUENCE``.
        definition: Definition without the names of the object and the table, which is the same for a copy of the object. For a
            sequence, the name of its column.
    """

    kind: str
    name: str
    definition: str


def renames(
    old: Sequence[TableObject], new: Sequence[TableObject], taken: Collection[str], *, table: str, new_table: str
) -> list[tuple[str, str, str]]:
    """Return the renames, in order, by which the objects of the new table get the names of those of the current table (pure).

    An object of the current table is renamed before its name is given to an object of the new table.

    Args:
        taken: Names that are in use in the schema.

    Returns:
        For each rename: the kind of the object, its present name, and its new name.
    """
    names, former, done = set(taken), list(old), list[tuple[str, str, str]]()
    for one in new:
        same = next((each for each in former if (each.kind, each.definition) == (one.kind, one.definition)), None)
        if same is not None:
            former.remove(same)
            name = same.name
        else:  # the current table has no object of this definition: derive the name from that of the table
            name = one.name.replace(new_table, table, 1) if one.name.startswith(new_table) else one.name
            same = next((each for each in former if each.name == name), None)
            former = [each for each in former if each is not same]
        if same is not None:
            aside = _free(same.name, names)
            names.add(aside)
            done.append((same.kind, same.name, aside))
        elif name in names:
            continue
        done.append((one.kind, one.name, name))
        names.add(name)
    return done


def _free(name: str, names: Collection[str]) -> str:
    """Return an unused name: the name with a suffix, shortened if it would be too long for the server."""
    for end in (FORMER_SUFFIX, *(f"{FORMER_SUFFIX}{number}" for number in range(2, len(names) + 3))):
        found = name.encode()[: MAX_NAME_BYTES - len(end)].decode(errors="ignore") + end
        if found not in names:
            return found
    raise InternalError(f"no name is left for {name}")  # unreachable: there are more suffixes than names


def _rename(table: str, name: str) -> str:
    return f"ALTER TABLE {quoted(table)} RENAME TO {quoted(_bare(name))}"


def _bare(table: str) -> str:
    return table.rpartition(".")[2]


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _exists(connection: Connection, table: str) -> bool:
    return bool(await connection.fetchval(EXISTS, quoted(table)))


async def _checkpoints(connection: Connection, table: str) -> dict[TP, int]:
    rows = await connection.fetch(SELECT_CHECKPOINTS.format(checkpoints=quoted(f"{table}_progress")))
    return {TP(topic, partition): offset for topic, partition, offset in rows}
