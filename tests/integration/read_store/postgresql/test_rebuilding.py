"""``read-store rebuild`` in PostgreSQL: the table stays, with whatever users have added to it."""

from __future__ import annotations

import pytest

from tests.helpers.worker.site import Stage
from tests.integration.read_store.compared import Compared, folded

pytestmark = pytest.mark.timeout(240)

ADDED = """
CREATE ROLE {role};
GRANT SELECT (name, value) ON folded_values TO {role};
COMMENT ON TABLE folded_values IS 'what''s shown';
CREATE VIEW shown WITH (security_barrier = true) AS SELECT * FROM folded_values WHERE fold <> '';
CREATE MATERIALIZED VIEW fixed AS SELECT * FROM folded_values;
CREATE TABLE changed (group_key text, value jsonb);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO changed VALUES (NEW.group_key, NEW.value); RETURN NEW; END $$;
CREATE TRIGGER told AFTER INSERT OR UPDATE ON folded_values FOR EACH ROW EXECUTE FUNCTION tell();
CREATE INDEX by_name ON folded_values (name);
CREATE STATISTICS related ON fold, group_key FROM folded_values;
ALTER TABLE folded_values ENABLE ROW LEVEL SECURITY;
CREATE POLICY mine ON folded_values;
CREATE PUBLICATION published FOR TABLE folded_values;
CREATE TABLE notes (fold text, group_key text, name text,
    CONSTRAINT back FOREIGN KEY (fold, group_key, name) REFERENCES folded_values)
"""
DEPENDENT = """
SELECT 'folded_values'::regclass::oid::bigint, 'shown'::regclass::oid::bigint, (SELECT count(*) FROM pg_depend
    WHERE refobjid = 'folded_values'::regclass), obj_description('folded_values'::regclass)
"""


@pytest.fixture
async def compared(stage: Stage, postgresql_url: str) -> Compared:
    made = Compared(stage, postgresql_url)
    await made.prepare(("a", "likes", 1), ("b", "likes", 2))
    await made.send(folded("a", 10, ["likes"]), folded("b", 11, ["likes"]))
    return made


async def test_additions_of_users_stay_with_the_table_and_only_changed_rows_are_written(compared: Compared) -> None:
    role = f"reader_{compared.stage.names.app_id.replace('-', '_')}"
    first = compared.run("rebuild")
    await compared.execute(ADDED.format(role=role))
    await compared.execute("INSERT INTO folded_values VALUES ('account-metrics', 'c', 'gone', '7', 5, 1)")
    await compared.execute("UPDATE folded_values SET value = '9' WHERE group_key = 'a'; DELETE FROM changed")
    before = await compared.rows(DEPENDENT)
    second = compared.run("rebuild")
    after = await compared.rows(DEPENDENT)
    changed = await compared.rows("SELECT group_key, value::text FROM changed ORDER BY 1")
    former = await compared.rows("SELECT group_key, value::text FROM folded_values_old ORDER BY 1")
    await compared.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert (0, 0) == (first.code, second.code), (first, second)
    assert before == after
    assert [("a", "1"), ("c", None)] == changed
    assert [("a", "9"), ("b", "2"), ("c", "7")] == former


OF_DECLARED_FOLDS = """
CREATE TABLE folds (fold text PRIMARY KEY);
CREATE TABLE folded_values (
    fold text NOT NULL REFERENCES folds, group_key text NOT NULL, likes jsonb, versions jsonb NOT NULL DEFAULT '{}',
    updated_ms bigint NOT NULL DEFAULT 0, PRIMARY KEY (fold, group_key)
)
"""


async def test_row_that_a_constraint_requires_stops_the_rebuild_and_nothing_is_changed(compared: Compared) -> None:
    compared.configure('shape = "groups"\ncolumns = ["likes"]\n')
    await compared.execute("DROP TABLE folded_values")
    await compared.execute(OF_DECLARED_FOLDS)
    ran = compared.run("rebuild")

    assert 1 == ran.code, ran
    assert "read_stores.dashboard.table: folded_values cannot have the rows that the topics and the source give" in ran.err
    assert '"folded_values_fold_fkey"' in ran.err
    assert [] == await compared.rows("SELECT * FROM folded_values")
    assert None is await compared.rows_or_none("SELECT * FROM folded_values_old")


async def test_object_that_depends_on_the_former_table_is_named_before_anything_is_read(compared: Compared) -> None:
    await compared.execute("CREATE VIEW shown AS SELECT * FROM folded_values")
    compared.configure('shape = "groups"\ncolumns = ["likes"]\n')
    first, second = compared.run("rebuild"), compared.run("rebuild")
    await compared.execute("DROP VIEW shown")
    third = compared.run("rebuild")

    assert (0, 1, 0) == (first.code, second.code, third.code), (first, second, third)
    assert "folded_values_old, the copy of the rebuild before, cannot be replaced: drop what depends on it first" in second.err
    assert "view shown depends on table folded_values_old" in second.err
