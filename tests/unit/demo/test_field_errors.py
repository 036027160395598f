"""The messages of a replay for a file whose events lack the named fields."""

from __future__ import annotations

import json

import pytest

from streams_app.demo.fields import fault_of
from streams_app.demo.replay import TIME_FIELDS
from streams_app.demo.stage import demo_fold
from streams_app.errors import ConfigurationError

EVENT = {"ts": 5, "user": "anna", "fields": {"likes": 1}}
OF_USERS = {"group_key": "user", "changed": "fields"}


def message_about(*events: object, group_key: str = "account_id", changed: str = "metrics") -> str | None:
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return fault_of(lines, demo_fold(group_key=group_key, changed=changed), TIME_FIELDS)


@pytest.mark.parametrize(
    ("event", "options", "missing", "fields", "tried"),
    [
        (EVENT, {}, "account_id and no field metrics", "ts, user, fields", "--group-key user --changed fields"),
        (EVENT, {"changed": "fields"}, "account_id", "ts, user, fields", "--group-key user --changed fields"),
        (EVENT, {"group_key": "user"}, "metrics", "ts, user, fields", "--group-key user --changed fields"),
        ({"a": None}, {}, "account_id and no field metrics", "a", "--group-key FIELD --changed FIELD"),
        ({"[/x]\n": 1}, {"changed": "x"}, "account_id and no field x", '"[/x]\\n"', "--group-key FIELD --changed FIELD"),
        ({"u": {"id": 1}, "f": ["x"]}, {"group_key": "v.id", "changed": "f"}, "v", "u, f", "--group-key FIELD --changed f"),
    ],
)
def test_missing_fields_are_listed_with_the_present_ones(
    event: object, options: dict[str, str], missing: str, fields: str, tried: str
) -> None:
    assert f"no field {missing}; your fields are {fields}: try {tried}" == message_about(event, event, **options)


def test_events_rejected_for_another_reason_report_it() -> None:
    text = message_about({"user": None, "fields": {}}, **OF_USERS)

    assert text
    assert text.startswith("none of its first 1 events can be folded: no-group: ")


def test_file_without_events_is_rejected() -> None:
    assert "there is no event in it" == message_about()
    assert "none of its first 2 lines is a JSON object" == message_about(b"x", b"[1]")


def test_one_foldable_event_is_enough() -> None:
    assert message_about(b"x", {"user": None}, EVENT, {}, **OF_USERS) is None


def test_fields_invalid_for_any_fold_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="--group-key a --changed a: the changed field 'a' cannot also be a group field"):
        demo_fold(group_key="a", changed="a")
