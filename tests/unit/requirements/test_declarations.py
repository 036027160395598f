"""What the checks need to know of an application, from its settings."""

from __future__ import annotations

from streams_app.requirements.declarations import declarations_of
from streams_app.settings import Settings

FOLD = {"name": "totals", "source": "orders", "group_key": "id", "changed": "what", "quiet_period": "1m"}
STORE = {"name": "board", "url": "sqlite:///x", "folds": ["totals"], "source": "sql", "source_url": "sqlite:///y", "sql": "s"}


def test_check_reads_the_retention_of_every_source_whatever_reads_it() -> None:
    settings = Settings.model_validate({
        "app_id": "shop", "folds": [FOLD], "read_stores": [STORE],
        "live": [{"name": "cart", "kind": "list", "source": "clicks", "page": "p", "item": "i", "expiry": "1h", "public": True}],
        "journals": [{"name": "kept", "source": "payments", "key": "id"}],
    })  # fmt: skip

    assert ["clicks", "orders", "payments"] == [right.name for right in declarations_of(settings).useful_rights()]
