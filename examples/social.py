"""Folds with functions: what a file of settings cannot say. Run it: ``streams-app worker --app examples.social:app``."""

from typing import Any

from streams_app import Fold, Settings, create_app


def from_line(value: bytes) -> dict[str, Any]:
    """``Anna;p7;likes=12;shares=3``: events need not be JSON."""
    account, post, *changes = value.decode().split(";")
    return {"account": account, "post": post, "changes": dict(change.split("=") for change in changes)}


def is_counted(event: dict[str, Any]) -> bool:
    """Other events are neither folded nor dead letters."""
    return event["post"] != "test"


def account(event: dict[str, Any]) -> str:
    """One group, however its name is written."""
    return event["account"].lower()


def changed(event: dict[str, Any]) -> dict[str, int]:
    """What has changed, and by how much."""
    return {name: int(by) for name, by in event["changes"].items() if by != "0"}


app = create_app(
    Settings(
        app_id="social",
        folds=(
            Fold(
                name="account-metrics",
                source="post-metric-updated",
                decode=from_line,
                source_filter=is_counted,
                group_key=account,
                group_as="account_id",  # its name in records
                changed=changed,
                changed_as="metrics",
                keep="last",
                quiet_period="15m",
            ),
        ),
    )
)
