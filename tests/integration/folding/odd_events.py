"""Generated events of every class of bad and odd input, each with its expected reason of rejection."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from tests.helpers.folding.checker import event

ANY: EllipsisType = ...


@dataclass(frozen=True)
class Case:
    """One record; ``reason`` of its dead letter, None if it is to be folded, ANY where JSON readers may differ."""

    key: bytes | None
    value: bytes | None
    reason: str | EllipsisType | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


ODD = (
    "{}{tag}}\0\n\r\t\"'\\/:#%*?[]$&;|<>@, .-_=+~^`\u00a0\u00ad\u0130\u0131\u017f\u0391\u0410\u200b\u200d\u202e\u2028"
    "\u2066\ufb01\ufeff\ufffd\uffff\U0001f600\U000e0041e\u0301\u00e9aA1"
)


def text(rng: random.Random, most: int = 40) -> str:
    return "".join(rng.choices(ODD, k=rng.randint(1, most)))


def shaped(rng: random.Random, depth: int = 4) -> Any:
    """Draw any JSON value; an object may have the fields of an event."""
    kind = rng.randrange(8 if depth else 6)
    if kind == 6:
        return [shaped(rng, depth - 1) for _ in range(rng.randrange(5))]
    if kind == 7:
        names = ["account_id", "metrics", "fold", "key", text(rng)]
        return {rng.choice(names): shaped(rng, depth - 1) for _ in range(rng.randrange(5))}
    return [None, True, False, rng.randint(-(10**20), 10**20), rng.uniform(-1e9, 1e9), text(rng)][kind]


def encoded(value: Any, key: bytes = b"k", reason: Any = None, **more: Any) -> Case:
    return Case(key, json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), reason, **more)


def broken_json(rng: random.Random) -> Case:
    key, value = event(text(rng), *(text(rng) for _ in range(3)))
    at = rng.randrange(len(value))
    how = rng.randrange(4)
    noise = rng.randbytes(1)
    broken = [value[:at], value[:at] + noise + value[at + 1 :], value[:at] + noise + value[at:], value + noise][how]
    return Case(key, broken or b"x", ANY)


def any_object(rng: random.Random) -> Case:
    value = {field: shaped(rng) for field in ("account_id", "metrics", text(rng)) if rng.random() < 0.8}
    return encoded(value, reason="no-group" if value.get("account_id") is None else ANY)


def no_group(rng: random.Random) -> Case:
    value = {"account_id": rng.choice([None, [], ["a"], {}, {"account_id": "a"}, 2**53 + 2, -(2**60)]), "metrics": ["a"]}
    if rng.random() < 0.3:
        value["Account_id"] = value.pop("account_id")
    return encoded(value, reason="no-group")


def odd_names(rng: random.Random) -> Case:
    names = [text(rng) for _ in range(rng.randrange(6))]
    changed = rng.choice([names, dict.fromkeys(names, 1), names[0] if names else "", [*names, *names], {"": 1}])
    return encoded({"account_id": "odd names", "metrics": changed})


def surrogates(rng: random.Random) -> Case:
    half = rng.choice(["\\ud83d", "\\ude00", "\\udfff x", "\\ud800\\ud800"])
    whole = rng.random() < 0.5
    escape = "\\ud83d\\ude00" if whole else half
    place = rng.choice([(escape, "a"), ("a", escape)])
    value = '{{"account_id": "s{}", "metrics": {{"n{}": 1}}}}'.format(*place)
    return Case(b"k", value.encode(), None if whole else "not-json")


def numbers(rng: random.Random) -> Case:
    digits = str(rng.randint(0, 10 ** rng.randint(1, 400)))
    extremes = (
        "NaN Infinity -Infinity 1e400 -1e400 1e-400 -0 -0.0 1.0 1 9007199254740992 01 +1 1. .5 0x10 9223372036854775808 5e-324"
    )
    found = rng.choice([*extremes.split(), "1.7976931348623157e308", digits, f"-{digits}", f"{digits}.{digits}", f"{digits}e5"])
    places = ['{"account_id": %s, "metrics": ["a"]}', '{"account_id": "numbers", "metrics": {"a": %s}}']
    return Case(found.encode(), (rng.choice(places) % found).encode(), ANY)


def deep(rng: random.Random) -> Case:
    (depth,) = rng.choices([2, 100, 900, 1_100, 20_000], [25, 25, 25, 24, 1])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    body = opening * depth + "1" + closing * depth
    harmless = ['{"account_id": "deep", "metrics": {"a": %s}}', '{"account_id": "deep", "x": %s, "metrics": ["a"]}']
    place = rng.choice([*harmless, '{"account_id": %s, "metrics": ["a"]}', "%s"])
    return Case(b"deep", (place % body).encode(), None if depth <= 100 and place in harmless else ANY)


def twice_named(rng: random.Random) -> Case:
    """Draw an object with a repeated field: the last one counts."""
    first, last = text(rng), text(rng)
    fields = [(name, json.dumps(each)) for name in ("account_id", "metrics") for each in (first, last)]
    parts = [f'"{name}": {each}' for name, each in fields]
    rng.shuffle(parts)
    return Case(b"k", ("{" + ", ".join(parts) + "}").encode())


def limits(rng: random.Random) -> Case:
    beyond = rng.randrange(2)
    reason = "too-large" if beyond else None
    kind = rng.randrange(5)
    if kind == 0:
        value = event("limits", "a", more="")[1]
        return Case(b"k", value.replace(b'""', b'"' + b"x" * (1_000_000 - len(value) + beyond) + b'"'), reason)
    if kind == 1:
        return encoded({"account_id": "l" * (512 + beyond), "metrics": ["a"]}, reason=reason)
    if kind == 2:
        return encoded({"account_id": "é" * 256 + "x" * beyond, "metrics": ["a"]}, reason=reason)
    if kind == 3:
        name = rng.choice(["é" * 128, "n" * 256, "\U0001f600" * 64]) + "x" * beyond
        return encoded({"account_id": "limits", "metrics": rng.choice([[name], {name: 1}, name])}, reason=reason)
    names = [f"m{number}" for number in range(256 + beyond)]
    changed: Any = rng.choice([names, dict.fromkeys(names)])
    return encoded({"account_id": "limits", "metrics": changed}, reason="too-many-names" if beyond else None)


def record_key(rng: random.Random) -> bytes | None:
    """Draw any record key: it does not determine the group."""
    drawn = text(rng).encode()
    fixed = [None, b"", b"\0", b"\xff\xfe", b"null", b'"k"', b"{tag}", b"k" * rng.choice([512, 513, 20_000])]
    return rng.choice([*fixed, drawn, drawn, rng.randbytes(rng.randint(1, 600))])


STAMPS = [0, 1, 10**9, 10**12, 4 * 10**12, 2**53, 2**62, 2**63 - 1]
HEADERS = ["fold-id", "reason", "fold", "source-offset", "", "faust", "content-type", "codec", "serializer", "__faust"]
NO_NAMES = [None, True, 0, 1.5, [7], ["a", None], [["a"]], [{"a": 1}]]
CLASSES: dict[str, Callable[[random.Random], Case]] = {
    "random bytes": lambda rng: Case(
        rng.choice([None, b"", rng.randbytes(rng.randint(1, 600))]), rng.randbytes(rng.randint(1, 300)), ANY
    ),
    "broken json": broken_json,
    "no object": lambda rng: encoded([shaped(rng)] if rng.random() < 0.5 else shaped(rng, 0), reason="not-an-object"),
    "any object": any_object,
    "no group": no_group,
    "no changed": lambda rng: encoded(
        {"account_id": text(rng), rng.choice(["metrics", "m"]): rng.choice(NO_NAMES)}, reason="no-changed"
    ),
    "tombstone": lambda rng: Case(rng.choice([b"", text(rng).encode(), rng.randbytes(20)]), rng.choice([None, b""]), "tombstone"),
    "odd groups": lambda rng: Case(*event(text(rng), "a")),
    "record keys": lambda rng: Case(record_key(rng), event(f"k{rng.randrange(5)}", "a")[1]),
    "odd names": odd_names,
    "surrogates": surrogates,
    "numbers": numbers,
    "deep": deep,
    "twice named": twice_named,
    "times": lambda rng: Case(*event(f"t{rng.randrange(5)}", "a"), timestamp_ms=rng.choice([*STAMPS, rng.randint(0, 2**62)])),
    "headers": lambda rng: Case(
        *event(f"h{rng.randrange(5)}", "a"),
        headers=tuple(
            (rng.choice([*HEADERS, text(rng)]), rng.choice([b"", b"pickle", b"raw", rng.randbytes(20)]))
            for _ in range(rng.choices([1, 3, 500], [49, 49, 2])[0])
        ),
    ),
    "limits": limits,
}
FEW = {"limits": 240}
"""Maximum numbers of cases, as some are large: a few dozen at and beyond each of five limits."""
