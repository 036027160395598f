"""``table = "SCHEMA.TABLE"`` in PostgreSQL, and a missing table."""

from __future__ import annotations

import pytest

from streams_app.delivery.batch import TP
from streams_app.errors import TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.registry import open_store
from tests.helpers.worker.site import Stage
from tests.integration.read_store.compared import FOLD, Compared, folded

pytestmark = pytest.mark.timeout(240)


IN_SCHEMA = 'table = "reading.met"\n'


@pytest.mark.parametrize("shape", ["cells", "groups"])
async def test_table_in_a_schema_is_created_written_compared_and_rebuilt(stage: Stage, postgresql_url: str, shape: str) -> None:
    compared = Compared(stage, postgresql_url)
    compared.configure(IN_SCHEMA + ('shape = "groups"\ncolumns = ["likes"]\n' if shape == "groups" else ""))
    await compared.execute("CREATE SCHEMA reading; CREATE TABLE met (something text)")  # another table of that name
    await compared.prepare(("a", "likes", 1))
    await compared.execute(
        "CREATE INDEX found ON reading.met (updated_ms); CREATE ROLE seeing; GRANT SELECT ON reading.met TO seeing"
    )
    await compared.execute("COMMENT ON TABLE reading.met IS 'ours'")
    await compared.send(folded("a", 10, ["likes"]))
    await compared.sync()
    rans = [compared.run(command) for command in ("verify", "rebuild", "rebuild", "verify")]
    found = await compared.rows(
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'reading.met'::regclass ORDER BY 1"
    )
    ((may, comment),) = await compared.rows(
        "SELECT has_table_privilege('seeing', 'reading.met', 'SELECT'), obj_description('reading.met'::regclass)"
    )
    values = await compared.rows(f"SELECT group_key, {'likes' if shape == 'groups' else 'value'}::text FROM reading.met")
    await compared.execute("DROP OWNED BY seeing; DROP ROLE seeing")

    assert [0] * 4 == [ran.code for ran in rans], rans
    assert [("a", "1")] == values
    assert ["reading.found", "reading.met_pkey"] == [name for (name,) in found]
    assert (True, "ours") == (may, comment)
    assert [] == await compared.rows("SELECT something FROM met")


@pytest.mark.parametrize("shape", ["cells", "groups"])
async def test_renamed_table_is_missing_and_the_error_says_how_to_create_it(stage: Stage, postgresql_url: str, shape: str) -> None:
    compared = Compared(stage, postgresql_url)
    compared.configure('table = "met"\n' + ('shape = "groups"\ncolumns = ["likes"]\n' if shape == "groups" else ""))
    await compared.prepare()
    store = open_store(compared.declared)
    tp = TP(stage.output, 0)
    await store.apply([CellChange(Cell(FOLD, "a", "likes"), 1, 1)], CheckpointStep(tp, None, 1), 0)
    await compared.execute("ALTER TABLE met RENAME TO away")
    with pytest.raises(TryAgainError, match=r"met.* run `streams-app read-store init --store dashboard`") as failed:
        await store.apply([CellChange(Cell(FOLD, "a", "likes"), 2, 2)], CheckpointStep(tp, 1, 2), 0)
    await store.close()

    assert 'type "met"' not in str(failed.value)
