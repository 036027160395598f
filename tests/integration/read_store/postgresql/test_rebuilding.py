"""``read-store rebuild`` with additions of users to the tables in PostgreSQL: they follow the name, or nothing is done."""

from __future__ import annotations

import pytest

from tests.helpers.worker.site import Stage
from tests.integration.read_store.compared import Compared

pytestmark = pytest.mark.timeout(240)

ADDED = """
CREATE ROLE {role};
GRANT SELECT (name, value) ON folded_values TO {role};
GRANT INSERT ON folded_values TO {role} WITH GRANT OPTION;
COMMENT ON TABLE folded_values IS 'what''s shown';
CREATE VIEW shown WITH (security_barrier = true, check_option = local) AS SELECT * FROM folded_values WHERE fold <> '';
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TRIGGER off AFTER INSERT ON folded_values FOR EACH ROW EXECUTE FUNCTION tell();
CREATE TRIGGER "on it" BEFORE UPDATE ON folded_values FOR EACH ROW WHEN (NEW.version > 5) EXECUTE FUNCTION tell();
ALTER TABLE folded_values DISABLE TRIGGER off
"""
SEEN = """
SELECT has_column_privilege('{role}', 'folded_values', 'value', 'SELECT'), has_table_privilege('{role}', 'folded_values', 'SELECT'),
    has_table_privilege('{role}', 'folded_values', 'INSERT WITH GRANT OPTION'), obj_description('folded_values'::regclass),
    (SELECT reloptions::text FROM pg_class WHERE oid = 'shown'::regclass),
    (SELECT array_agg((tgname, tgenabled) ORDER BY tgname)::text FROM pg_trigger WHERE tgrelid = 'folded_values'::regclass)
"""


@pytest.fixture
async def compared(stage: Stage, postgresql_url: str) -> Compared:
    made = Compared(stage, postgresql_url)
    await made.prepare()
    return made


async def test_additions_of_users_to_the_table_follow_its_name(compared: Compared) -> None:
    role = f"reader_{compared.stage.names.app_id.replace('-', '_')}"
    await compared.execute(ADDED.format(role=role))
    before = await compared.rows(SEEN.format(role=role))
    rans = [compared.run("rebuild") for _ in range(2)]
    after = await compared.rows(SEEN.format(role=role))
    await compared.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert [0, 0] == [ran.code for ran in rans], rans
    assert (True, False, True, "what's shown", "{security_barrier=true,check_option=local}") == before[0][:5]
    assert before == after


FIXED = {
    "row-level security": "ALTER TABLE folded_values ENABLE ROW LEVEL SECURITY",
    "policy mine on table folded_values": "CREATE POLICY mine ON folded_values",
    "rule quiet on table folded_values": "CREATE RULE quiet AS ON DELETE TO folded_values DO INSTEAD NOTHING",
    "publication of table folded_values in publication told": "CREATE PUBLICATION told FOR TABLE folded_values",
    "constraint back on table notes": "CREATE TABLE notes (fold text, group_key text, name text, "
    "CONSTRAINT back FOREIGN KEY (fold, group_key, name) REFERENCES folded_values)",
    "constraint known on table folded_values": "CREATE TABLE folds (fold text PRIMARY KEY);"
    "ALTER TABLE folded_values ADD CONSTRAINT known FOREIGN KEY (fold) REFERENCES folds",
    "function counted()": "CREATE FUNCTION counted() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM folded_values; END",
    "table heir": "CREATE TABLE heir () INHERITS (folded_values)",
    "policy ours on table folded_values_progress": "CREATE POLICY ours ON folded_values_progress",
}


async def test_objects_that_cannot_follow_are_named_before_anything_is_done(compared: Compared) -> None:
    for statement in FIXED.values():
        await compared.execute(statement)
    ran = compared.run("rebuild")

    assert 1 == ran.code
    assert [] == [what for what in FIXED if f"{what} would stay with folded_values_" not in ran.err], ran.err
    assert None is await compared.rows_or_none("SELECT * FROM folded_values_new_progress")


OF_GROUPS = """
DROP TABLE folded_values;
CREATE TABLE folded_values (
    fold text NOT NULL, group_key text NOT NULL, likes jsonb, number bigint GENERATED ALWAYS AS IDENTITY,
    versions jsonb NOT NULL DEFAULT '{}', updated_ms bigint NOT NULL DEFAULT 0, PRIMARY KEY (fold, group_key)
);
CREATE INDEX found ON folded_values (updated_ms) WHERE likes IS NOT NULL;
CREATE INDEX "folded_values_new_ON x" ON folded_values (group_key, (likes ->> 'a') DESC);
ALTER TABLE folded_values ADD CONSTRAINT once UNIQUE (group_key, fold);
CREATE STATISTICS told ON fold, group_key FROM folded_values
"""
NAMES = """
SELECT relname::text, pg_get_indexdef(oid) FROM pg_class WHERE oid IN (
    SELECT indexrelid FROM pg_index WHERE indrelid IN ('folded_values'::regclass, 'folded_values_progress'::regclass)
) UNION ALL SELECT conname::text, contype::text FROM pg_constraint
WHERE conrelid IN ('folded_values'::regclass, 'folded_values_progress'::regclass)
UNION ALL SELECT stxname::text, '' FROM pg_statistic_ext WHERE stxrelid = 'folded_values'::regclass
UNION ALL SELECT pg_get_serial_sequence('folded_values', 'number'), '' ORDER BY 1, 2
"""


async def test_indexes_and_constraints_keep_their_names_after_any_number_of_rebuilds(compared: Compared) -> None:
    compared.configure('shape = "groups"\ncolumns = ["likes"]\n')
    await compared.execute(OF_GROUPS)
    before = await compared.rows(NAMES)
    seen = []
    for _ in range(3):
        ran = compared.run("rebuild")
        assert 0 == ran.code, ran
        seen.append(await compared.rows(NAMES))

    assert [before] * 3 == seen


async def test_rebuilt_table_of_another_shape_has_the_index_name_of_init(compared: Compared) -> None:
    await compared.execute("DROP TABLE folded_values; CREATE TABLE folded_values (fold text PRIMARY KEY, other text)")
    ran = compared.run("rebuild")
    found = await compared.rows("SELECT relname::text FROM pg_class WHERE relname LIKE 'folded_values%pkey%' ORDER BY 1")

    assert 0 == ran.code, ran
    assert ["folded_values_pkey", "folded_values_pkey_old", "folded_values_progress_pkey"] == [name for (name,) in found][:3]
