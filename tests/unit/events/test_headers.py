"""Event headers are CloudEvents 1.0 in binary mode; context, correlation and ids are passed on to child events."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.events.headers import TYPE, Envelope, context_faults, context_of, header, headers_for
from streams_app.events.parent import Parent

ENVELOPE = Envelope("c1", "p0", {"userid": "u7"}, "00-trace-01")


def test_headers_are_those_of_cloudevents() -> None:
    assert [
        ("content-type", b"application/json"),
        ("ce_specversion", b"1.0"),
        ("ce_id", b"e1"),
        ("ce_type", b"order.paid"),
        ("ce_source", b"shop"),
        ("ce_time", b"2026-01-01T00:00:00.005Z"),
        ("ce_correlationid", b"c1"),
        ("ce_causationid", b"p0"),
        ("traceparent", b"00-trace-01"),
        ("ce_userid", b"u7"),
    ] == headers_for("order.paid", "e1", "shop", 1_767_225_600_005, ENVELOPE)


def test_missing_value_has_no_header() -> None:
    names = [name for name, _ in headers_for("order.paid", "e1", "shop", 0, Envelope("e1"))]

    assert {"ce_causationid", "traceparent"} & set(names) == set()


def test_context_survives_a_round_trip() -> None:
    assert {"userid": "u7"} == context_of(headers_for("order.paid", "e1", "shop", 0, ENVELOPE))


@pytest.mark.parametrize(
    ("context", "fault"),
    [
        ({"userId": "u7"}, "a name has a-z and 0-9"),
        ({"a" * 21: ""}, "a name has a-z and 0-9"),
        ({"source": "x"}, "a meaning of its own"),
        ({"correlationid": "x"}, "a meaning of its own"),
        ({"userid": 7}, "is not a string"),
        ({f"n{number}": "" for number in range(17)}, "context has 17 names, at most 16"),
        ({"a": "ö" * 500}, "context has 1001 bytes, at most 1000"),
    ],
)
def test_context_beyond_its_bounds_is_reported(context: dict[str, Any], fault: str) -> None:
    (reported,) = context_faults(context)

    assert fault in reported


def test_context_of_sixteen_names_and_a_thousand_bytes_is_within_its_bounds() -> None:
    context = {f"n{number:03}": "x" * 58 for number in range(15)} | {"n": "x" * 69}

    assert 1_000 == sum(len(name) + len(value) for name, value in context.items())
    assert [] == context_faults(context)


def test_repeated_attempt_derives_the_same_ids() -> None:
    def ids() -> list[str]:
        parent = Parent("e1", "ship", ENVELOPE)
        return [parent.child_id(key) for key in ("parcel.sent", "parcel.sent", "order.closed")]

    assert ids() == ids()
    assert 3 == len(set(ids()))


def test_child_ids_are_independent_of_publishing_order() -> None:
    one, other = Parent("e1", "ship", ENVELOPE), Parent("e1", "ship", ENVELOPE)
    first = {key: one.child_id(key) for key in ("parcel.sent", "order.closed")}

    assert first == {key: other.child_id(key) for key in ("order.closed", "parcel.sent")}


def test_child_ids_differ_between_parents_and_between_subscribers() -> None:
    parents = [Parent("e1", "ship", ENVELOPE), Parent("e2", "ship", ENVELOPE), Parent("e1", "tell", ENVELOPE)]

    assert 3 == len({parent.child_id("parcel.sent") for parent in parents})


def test_child_id_is_stable_across_versions() -> None:
    assert "61c00910-1388-5c4d-8220-80ed1802fc65" == Parent("e1", "ship", ENVELOPE).child_id("parcel.sent")


def test_children_of_events_with_one_id_and_different_sources_have_different_ids() -> None:
    parents = [Parent("1", "ship", ENVELOPE, source) for source in ("/orders/eu", "/orders/us", "shop", None)]
    ids = [parent.child_id("parcel.sent", "shop") for parent in parents]

    assert 3 == len(set(ids))
    # Events that this application published keep the ids that earlier versions derived.
    assert Parent("1", "ship", ENVELOPE).child_id("parcel.sent") == ids[2] == ids[3]


def test_child_inherits_correlation_context_and_trace() -> None:
    parent = Parent("e1", "ship", ENVELOPE._replace(context={"userid": "u7", "tenant": "t1"}))

    assert Envelope("c1", "e1", {"userid": "u8", "tenant": "t1", "page": "3"}, "00-trace-01") == parent.envelope(
        {"userid": "u8", "page": "3"}
    )


def test_inherited_context_is_bounded_and_new_values_take_precedence() -> None:
    inherited = {"BAD name": "x", "much": "x" * 5_000} | {f"name{number}": "v" for number in range(20)}
    context = Parent("e1", "ship", Envelope("c1", None, inherited)).envelope({"name3": "anew", "mine": "m"}).context

    assert [] == context_faults(context)
    assert ({"name3": "anew", "mine": "m"}, 16) == ({name: context[name] for name in ("name3", "mine")}, len(context))
    assert "much" not in context


@pytest.mark.parametrize(
    ("correlation_id", "traceparent", "expected"),
    [
        ("c" * 1_000, "t" * 1_000, ("c" * 1_000, "t" * 1_000)),
        ("c" * 1_001, "t" * 1_001, ("e1", None)),
        ("\u00e4" * 501, None, ("e1", None)),
    ],
)
def test_child_inherits_no_correlation_or_trace_longer_than_a_context(
    correlation_id: str, traceparent: str | None, expected: tuple[str, str | None]
) -> None:
    child = Parent("e1", "ship", Envelope(correlation_id, None, {}, traceparent)).envelope({})

    assert expected == (child.correlation_id, child.traceparent)


def test_header_without_a_value_counts_as_missing() -> None:
    headers: Any = [("ce_type", None), ("ce_userid", None)]

    assert (None, {}) == (header(headers, TYPE), context_of(headers))
