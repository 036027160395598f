"""A read store whose values come from a function, not from SQL. Run it: ``streams-app worker --app examples.served:settings``."""

from collections.abc import Sequence

from streams_app import Fold, ReadStoreSettings, Settings

LIKES = {"account_1": {"likes": 12, "shares": 3}, "account_2": {"likes": 7}}
"""Stands in for a service. Its client may be opened in the first call and kept open."""


async def current(fold: str, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the current values of many groups and names; pairs without a value are deleted in the store."""
    return {(group, name): LIKES[group][name] for group, name in pairs if name in LIKES.get(group, {})}


settings = Settings(
    app_id="social",
    folds=(
        Fold(name="account-metrics", source="post-metric-updated", group_key="account_id", changed="metrics", quiet_period="15m"),
    ),
    read_stores=(
        ReadStoreSettings(
            name="dashboard", url="sqlite:///read.db", folds=("account-metrics",), source="python", current=current, timeout="2s"
        ),
    ),
)
