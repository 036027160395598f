"""Explanations of a group that is not emitted, and the format of times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app import Fold
from streams_app.cli.sentences import lay_out
from streams_app.codec import keys_typed, member_of
from streams_app.folding.core.auto_quiet import AutoQuiet, AutoQuietGoal, packed_gaps
from streams_app.formatting import counted, shown_group, span, time_text
from streams_app.health.metrics import Metrics
from streams_app.operations.explain_group import reopening_in
from streams_app.operations.folded_events import pointer_to_journal
from streams_app.operations.group_facts import FoundGroup, GroupExplanation, GroupState, Reopening, state_of
from streams_app.operations.group_text import group_sentences, reopening_text
from streams_app.operations.groups import StoredShard
from streams_app.operations.listed_group import ListedGroup
from streams_app.operations.worker_pages import Page
from streams_app.settings import Settings

NOW = 1_700_000_000_000
META = {b"fence": b"41", b"owner": b"host pid 7"}
ROW = ListedGroup(
    "f", "s", 2, "a", "a", events=3, names=2, bytes=0, first_offset=20, last_offset=41, first_event_ms=NOW - 90_000,
    last_event_ms=NOW - 60_000, quiet_in_ms=840_000, hold_in_ms=20_000_000,
)  # fmt: skip
ROW_FIELDS = set(ROW.__struct_fields__)


GROUPS = st.one_of(
    st.tuples(st.one_of(st.text(), st.integers(-(2**53), 2**53), st.booleans(), st.floats(-1e9, 1e9))),
    st.tuples(st.text(), st.integers(-(2**53), 2**53)),
)


REOPENING = Reopening(None, "not known: nobody asked")


def explanations(end: int | None = 42, **options: Any) -> str:
    """Return each explanation in one line, independent of the terminal's width."""
    return " ".join(text_of(end, **options).split())


def text_of(
    end: int | None = 42,
    clock_ms: int = NOW,
    waiting: int = 0,
    now_ms: int = NOW,
    width: int = 80,
    hidden: int = 0,
    member: bytes = b"sa",
    **options: Any,
) -> str:
    row = msgspec.structs.replace(ROW, **{key: options.pop(key) for key in list(options) if key in ROW_FIELDS})
    fold = Fold(**({"name": "f", "source": "s", "group_key": "g", "changed": "m", "quiet_period": "15m"} | options))
    found = FoundGroup(StoredShard("app", fold, 2, clock_ms, 10**9), member, row, ("likes", "shares"), waiting)
    return explained(fold, state_of(found, fold, META, None if end is None else (end, end + hidden), now_ms), width=width)


def explained(fold: Fold, *states: GroupState, group: str = "a", width: int = 80, journal: str = "") -> str:
    explanation = GroupExplanation(
        fold.name, fold.source, fold.output, fold.dead_letters, group, NOW, 1, states, (), REOPENING, journal
    )
    return "\n\n".join(lay_out(verdict, facts, width) for verdict, facts in group_sentences(explanation))


def test_records_hidden_by_a_transaction_are_lag_and_do_not_stop_the_clock() -> None:
    text = explanations(hidden=7)

    assert "up to offset 41, 7 events behind its end; an open transaction hides 7 of them" in text
    assert "due in 14 min if no event arrives" in text


def test_verdict_and_five_lines_name_every_fact() -> None:
    expected = """\
a of fold f is open, and due in 14 min if no event arrives.
  events  3 events at offsets 20 to 41 of s-2, the last of 2023-11-14 22:12:20Z;
          2 changed names (likes, shares)
  due     in 14 min (2023-11-14 22:27:20Z), once quiet for 15 min; at the latest
          in 5 h 33 min (2023-11-15 03:46:40Z), once open for 6 h; at present,
          the quiet period ends first; 7 more events would close it at once
  outbox  none of its records waits to be sent
  read    s-2 is read to its end (offset 41, lag 0), last claimed by host pid 7;
          its clock, which all times above refer to, is at 2023-11-14 22:13:20Z,
          equal to the wall clock
  reopens not known: nobody asked"""

    assert expected == text_of(max_events=10)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_the_terminal_width(width: int) -> None:
    lines = text_of(width=width, now_ms=NOW + 3_600_000, end=50, member=b"s" + b"k" * 300, waiting=3).splitlines()

    assert max(map(len, lines)) <= min(width, 120)


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        pytest.param({"hold_in_ms": 60_000}, "a of fold f is open, and due in 1 min, when max_hold ends.", id="hold"),
        pytest.param({"quiet_in_ms": 0}, "a of fold f is due: its worker emits it in the next pass.", id="due"),
        pytest.param(
            {"now_ms": NOW + 3_600_000},
            "a of fold f is open, and stays open: no worker advances the clock of its partition.",
            id="no worker",
        ),
        pytest.param(
            {"now_ms": NOW + 3_600_000, "end": 50},
            "a of fold f is open: a backlog is merged, and quiet groups are not closed until it is read.",
            id="merging",
        ),
        pytest.param(
            {"now_ms": NOW + 3_600_000, "end": 50, "backlog": "sessions"},
            "a of fold f is open, and due in 14 min if no event arrives.",
            id="sessions",
        ),
    ],
)
def test_verdict_gives_the_reason(options: dict[str, Any], verdict: str) -> None:
    assert verdict == text_of(width=200, **options).splitlines()[0]


def test_group_only_in_the_outbox_has_a_verdict_and_five_lines_too() -> None:
    fold = Fold(name="f", source="s", group_key="g", changed="m", quiet_period="15m", output="o")
    found = FoundGroup(StoredShard("app", fold, 2, NOW, 10**9), b"sa", None, (), 1)
    lines = explained(fold, state_of(found, fold, META, (42, 42), NOW)).splitlines()

    assert "a of fold f is closed, but the broker has not acknowledged its record yet." == lines[0]
    assert ["events", "due", "outbox", "read", "reopens"] == [
        line.split()[0] for line in lines[1:] if not line.startswith(" " * 10)
    ]
    assert "  outbox  1 record of the group, not acknowledged yet by the broker in o" == lines[3]


def page_of(emitted: int, split: int) -> str:
    metrics = Metrics(Settings.model_validate({"app_id": "a", "folds": [FOLD.model_dump()]}))
    metrics.records_emitted.labels(fold="f", reason="quiet").inc(emitted)
    metrics.split_folds.labels(fold="f").inc(split)
    return metrics.exposition().decode()


FOLD = Fold(name="f", source="s", group_key="g", changed="m", quiet_period="15m")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param(None, "not known: http.port is 0, so no worker can be asked", id="any port"),
        pytest.param(Page("http://w", None, "does not answer"), "not known: http://w does not answer", id="no worker"),
        pytest.param(Page("http://w", "up 1\n"), "not known: the worker at http://w does not have this fold", id="other fold"),
        pytest.param(Page("http://w", "\0{"), "not known: the worker at http://w is of another version", id="no metrics"),
        pytest.param(
            Page("http://w", page_of(0, 0)), "not known yet: the worker at http://w has emitted no record of this fold", id="new"
        ),
        pytest.param(
            Page("http://w", page_of(2_000, 31)),
            "1.6% of this fold's records were followed by a new event of their group within 15 min (31 of 2,000, at http://w)",
            id="known",
        ),
    ],
)
def test_reopening_rate_of_groups_is_shown_if_a_worker_reports_it(page: Page | None, words: str) -> None:
    assert words == reopening_text(reopening_in(page, FOLD))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"end": 50}, "is read up to offset 41, 8 events behind its end", id="lag"),
        pytest.param({"end": 43}, "1 event behind its end", id="lag of one"),
        pytest.param({"end": None}, "the broker does not say where it ends", id="no broker"),
        pytest.param({"now_ms": NOW + 3_600_000}, "1 h behind the wall clock: no worker advances it", id="no worker"),
        pytest.param({"now_ms": NOW + 3_600_000, "end": 50}, "quiet groups are not closed (backlog = merge)", id="merging"),
        pytest.param({"waiting": 1}, "1 record of the group, not acknowledged yet by the broker", id="outbox"),
        pytest.param({"hold_in_ms": 1_000}, "max_hold ends first", id="hold"),
        pytest.param({"quiet_in_ms": -1}, "now; if it is not emitted, see /health/ready", id="due"),
        pytest.param({"duplicates": 2}, "2 duplicates ignored (dedupe_by)", id="duplicates"),
        pytest.param({"max_changed": 3}, "1 more name can be added", id="names"),
        pytest.param({"last_event_ms": 10**17}, "the last of 100000000000000000 ms", id="a stamp beyond all years"),
    ],
)
def test_unusual_conditions_are_reported(options: dict[str, Any], words: str) -> None:
    assert words in explanations(**options)


def test_partition_clock_ahead_is_reported_and_waits_agree_with_it() -> None:
    text = explanations(clock_ms=NOW + 600_000)

    assert "is at 2023-11-14 22:23:20Z, 10 min ahead of the wall clock: the clock of a worker was wrong" in text
    assert "in 24 min (2023-11-14 22:37:20Z), once quiet" in text
    assert "in 5 h 43 min (2023-11-15 03:56:40Z)" in text


def test_catching_up_sessions_are_not_reported_as_stopping_quiet_groups() -> None:
    assert "quiet groups are not closed" not in explanations(now_ms=NOW + 3_600_000, end=50, backlog="sessions")


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(-1, "due"), (0, "due"), (1_500, "1.5 s"), (59_999, "60.0 s"), (60_000, "1 min"), (90_000, "1 min 30 s"), (3_600_000, "1 h"),
     (20_400_000, "5 h 40 min"), (172_800_000, "2 d"), (273_600_000, "3 d 4 h")],
)  # fmt: skip
def test_durations_are_formatted_for_people(span_ms: int, text: str) -> None:
    assert text == span(span_ms)


def test_numbers_and_times_are_formatted_for_people() -> None:
    assert ("1 group", "2 groups", "0 groups") == tuple(counted(number, "group") for number in (1, 2, 0))
    assert ("2023-11-14 22:13:20Z", "-") == (time_text(NOW), time_text(-1))


@pytest.mark.parametrize(
    ("typed", "members"),
    [
        ("account_1", [b"saccount_1"]),
        ("17", [b"s17", b"j17"]),
        ("17.0", [b"s17.0", b"j17"]),
        ("null", [b"snull"]),
        ('["a", null]', [b's["a", null]']),
        ("true", [b"strue", b"jtrue"]),
        ('["a", 1]', [b's["a", 1]', b'j["a",1]']),
        ("{x}", [b"s{x}"]),
        ('"17"', [b"s17"]),
        ('"a\\nb"', [b"sa\nb"]),
        ('"', [b's"']),
        ('[""]', [b's[""]']),
        ("\udcff", [b"s\xff"]),
    ],
)
def test_typed_group_is_looked_up_as_text_and_as_json(typed: str, members: list[bytes]) -> None:
    assert members == keys_typed(typed)


@given(GROUPS)
def test_listed_group_is_found_when_it_is_typed(group: tuple[object, ...]) -> None:
    member = member_of(group)

    assert member in keys_typed(shown_group(member))


@given(st.text(), st.lists(st.text(), min_size=1, max_size=3), st.binary())
def test_every_line_is_printable_with_any_content(group: str, names: list[str], owner: bytes) -> None:
    fold = Fold(name="f", source="s", group_key="g", changed="m", quiet_period="15m")
    found = FoundGroup(StoredShard("app", fold, 2, NOW, 10**9), member_of((group,)), ROW, tuple(names), 1)
    text = explained(fold, state_of(found, fold, META | {b"owner": owner}, (42, 42), NOW))

    assert all(line.isprintable() for line in text.split("\n"))


def test_journal_of_the_same_source_and_key_is_suggested() -> None:
    declared = {"app_id": "a", "folds": [FOLD.model_dump()]}
    journal = {"name": "accounts", "source": FOLD.source, "key": FOLD.group_key}
    others = [{**journal, "name": "o", "source": "other"}, {**journal, "name": "k", "key": "@key"}]
    pointed = pointer_to_journal(Settings.model_validate({**declared, "journals": [*others, journal]}), FOLD, "a b")

    assert "" == pointer_to_journal(Settings.model_validate({**declared, "journals": others}), FOLD, "a b")
    assert "streams-app journal read 'a b' --journal accounts shows its events" == pointed
    lines = explained(FOLD, group="a b", width=120, journal=pointed).splitlines()
    assert f"  journal {pointed}" == lines[-1]


def test_events_that_would_close_the_group_are_named() -> None:
    assert 'an event with status = "done" or "failed" or code = 1 would close it at once' in explanations(
        close_when={"status": ["done", "failed"], "code": [1]}
    )
    assert "an event for which close_when returns true would close it at once" in explanations(close_when=bool)


def test_group_without_events_has_sent_its_early_record() -> None:
    assert "none since its early record, of offset 20 of" in explanations(events=0, names=0, first_offset=20)


def test_size_of_kept_events_and_the_remaining_room_are_shown() -> None:
    text = explanations(events=3, names=0, bytes=400, keep="events", changed="", max_bytes=500)

    assert "400 bytes kept" in text
    assert "100 more bytes can be added, then it is closed" in text


def test_facts_have_each_bound_with_its_time_and_what_is_left() -> None:
    fold = Fold(
        name="f", source="s", group_key="g", changed="m", quiet_period="15m", max_events=10, close_when={"status": ["done"]}
    )
    shard = StoredShard("app", fold, 2, NOW, 10**9)
    state = state_of(FoundGroup(shard, b"sa", ROW, ("likes", "shares"), 0), fold, META, (42, 42), NOW)
    bounds = {found.bound: found for found in state.bounds}

    assert ("until-quiet", 840_000) == (state.verdict, state.due_in_ms)
    assert ["quiet_period", "max_hold", "max_events", "max_changed", "close_when"] == list(bounds)
    assert (840_000, NOW + 840_000) == (bounds["quiet_period"].due_in_ms, bounds["quiet_period"].due_at_ms)
    assert (10, 3) == (bounds["max_events"].limit, bounds["max_events"].present)
    assert {"status": ["done"]} == bounds["close_when"].values
    assert ("s", 2, 41, 42, 0) == tuple(msgspec.structs.astuple(state.reading)[:5])


def test_facts_of_a_group_that_is_due_have_no_bounds_to_wait_for() -> None:
    due = msgspec.structs.replace(ROW, quiet_in_ms=0)
    state = state_of(FoundGroup(StoredShard("app", FOLD, 2, NOW, 10**9), b"sa", due, (), 0), FOLD, META, (42, 42), NOW)

    assert ("due", 0, ()) == (state.verdict, state.due_in_ms, state.bounds)


AUTO = {"auto": {"target_ratio": 0.5}, "at_least": "10s", "default": "3m", "at_most": "1h"}


def explained_auto(learned: bytes) -> GroupState:
    fold = Fold(name="f", source="s", group_key="g", changed="m", quiet_period=AUTO)
    row = msgspec.structs.replace(ROW, quiet_period_ms=240_000, quiet_in_ms=180_000)
    found = FoundGroup(StoredShard("app", fold, 2, NOW, 10**9), b"sa", row, ("likes",), 0)
    return state_of(found, fold, META | {b"learned": learned}, (42, 42), NOW)


def test_quiet_period_that_sets_itself_is_explained_with_its_neighbours() -> None:
    fold = Fold(name="f", source="s", group_key="g", changed="m", quiet_period=AUTO)
    goal = AutoQuietGoal.of(fold)
    assert goal is not None
    auto = AutoQuiet(goal)
    for number in range(3_000):
        auto.observe(b"s%d" % (number % 300), NOW + number * 1_000)
    state = explained_auto(packed_gaps(auto.learned))
    text = " ".join(explained(fold, state).split())

    assert auto.quiet_ms > 180_000
    assert "in 3 min (2023-11-14 22:16:20Z), once quiet for 4 min" in text
    assert "quiet 5m at present, set by itself for a folding ratio of 50.0%: recent events would fold" in text
    assert state.auto_quiet is not None
    assert [240_000, 300_000, 360_000] == [
        one.quiet_ms for one in (state.auto_quiet.shorter, state.auto_quiet, state.auto_quiet.longer) if one
    ]


@pytest.mark.parametrize("learned", [b"", b"damaged"])
def test_quiet_period_that_has_learned_nothing_is_its_default(learned: bytes) -> None:
    state = explained_auto(learned)

    assert (180_000, None) == (state.auto_quiet and state.auto_quiet.quiet_ms, state.auto_quiet and state.auto_quiet.ratio)
    assert "3m at present, set by itself for a folding ratio of 50.0%; nothing is learned yet" in str(state.auto_quiet)
