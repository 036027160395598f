"""A worker has no Faust tables, and does not wait for any."""

from __future__ import annotations

from unittest.mock import patch

import faust

from streams_app import Settings, create_app
from streams_app.kafka.tables import EmptyTableManager


async def test_topics_are_subscribed_without_waiting_for_tables() -> None:
    tables = EmptyTableManager(faust.App("a", broker="memory://"))
    with patch.object(EmptyTableManager, "sleep", side_effect=AssertionError("it waits")):
        await tables.on_start()
    await tables.wait_until_tables_registered()
    await tables.recovery.stop()

    assert tables.recovery.started


def test_application_has_no_faust_tables() -> None:
    fold = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "1s"}
    app = create_app(Settings.model_validate({"app_id": "a", "folds": [fold]}))

    assert isinstance(app.tables, EmptyTableManager)
