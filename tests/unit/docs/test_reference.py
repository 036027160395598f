"""The lists in README and docs/ agree with the code: tables, settings, metrics, folders, log lines."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import RejectingComponent, dead_letter_of, without_content
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.errors import StreamsAppError
from streams_app.health.http import ASYNCAPI_PAGE, EVENTS_PAGE
from streams_app.health.metric_table import METRICS
from streams_app.live.hub.server import PAGE as LIVE_PAGE
from streams_app.live.hub.tokens import COOKIE
from streams_app.operations.dead_letter import RECEIPT_HEADER
from streams_app.operations.flush_page import FLUSH_PAGE
from streams_app.settings import Settings
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.subscriber import subscriber
from streams_app.subscribers.execution.dead_letter_writer import DeadLetterWriter
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.retry_decision import dead_lettering
from tests.checkout import layers
from tests.checkout.pages import PAGES, ROOT, name_of
from tests.checkout.reference import REFERENCE, blocks, settings, written


def columns(page: Path, heading: str, column: int = 0) -> list[str]:
    """Return the cells of one column of the table that follows a line."""
    _, _, rest = page.read_text("utf-8").partition(f"{heading}\n")
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table, f"no table below {heading!r}"
    return [re.split(r"(?<!\\)\|", row)[1:-1][column] for row in table[0].splitlines()[2:]]


def quoted(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("page", blocks(), ids=name_of)
def test_reference_tables_match_the_code(page: Path) -> None:
    text = page.read_text("utf-8")

    assert written(text, blocks()[page]) == text, "run `make docs`, which is `python -m tests.checkout.reference`"


def test_picture_of_the_layers_matches_the_order_of_imports() -> None:
    text = layers.PAGE.read_text("utf-8")

    assert layers.written(text) == text, "run `make docs`, which is `python -m tests.checkout.reference`"
    changed = text.replace("\ncli ", "\nclimate ")
    assert text != changed
    assert text == layers.written(changed)


def test_differing_table_is_detected() -> None:
    page = REFERENCE / "settings.md"
    text = page.read_text("utf-8")
    changed = text.replace("| `kafka.partitions` | `4` |", "| `kafka.partitions` | `5` |")

    assert text != changed
    assert text == written(changed, blocks()[page])


def test_page_without_the_placeholder_of_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="<!-- commands -->"):
        written("", {"commands": ""})


def test_subscribers_page_lists_the_options_of_a_declaration_with_their_defaults() -> None:
    page = ROOT / "docs/reference/subscribers.md"
    options = inspect.signature(subscriber).parameters.values()

    expected = {
        one.name: "none"
        if one.default is inspect.Parameter.empty
        else "`Retries()`"
        if one.name == "retry"
        else f"`{one.default!r}`"
        for one in options
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert expected == dict(
        zip(
            quoted(columns(page, "## Declaring")),
            [cell.strip().replace('"', "'") for cell in columns(page, "## Declaring", 1)],
            strict=True,
        )
    )


def test_subscribers_page_lists_the_arguments_of_a_function() -> None:
    cells = columns(ROOT / "docs/reference/subscribers.md", "A function takes one argument:")
    documented = {re.sub(r"^await |\(.*$", "", name) for name in quoted(cells)}

    public = {name for name in dir(Received) if not name.startswith("_")}
    inner = {"publisher", "parent", "subscriber", "deadline_ms", "timestamp_ms"}
    assert public - inner == documented


def test_reference_lists_every_exit_code() -> None:
    classes = [StreamsAppError]
    for one in classes:
        classes += one.__subclasses__()

    assert {"0", *(str(one.exit_code) for one in classes)} == set(quoted(columns(REFERENCE / "errors.md", "## Exit codes")))


def test_reference_lists_every_page_of_the_worker_and_of_the_live_view_server() -> None:
    page = (REFERENCE / "http.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `(?:POST )?(/[^?`]*)", page, re.MULTILINE))
    served = [(ROOT / "streams_app" / name).read_text("utf-8") for name in ("health/http.py", "live/hub/server.py")]
    literal = {path for source in served for path in re.findall(r'\badd(?:_get)?\("(/[^"]*)"', source)}
    live = LIVE_PAGE.replace("{page:[^/]+}", "PAGE")

    assert {*literal, EVENTS_PAGE, ASYNCAPI_PAGE, FLUSH_PAGE, live, f"{live}/events", "/journal/NAME"} == documented


def test_reference_lists_every_header_of_a_dead_letter() -> None:
    rejected = RejectedEvent(SimpleNamespace(offset=0, key=b"k", value=b"v"), "not-json", "")
    smallest = without_content(
        without_content(dead_letter_of(RejectingComponent("fold", "f", "app", "dead"), TP("s", 0), rejected, 0))
    )
    documented = quoted(columns(REFERENCE / "errors.md", "Its headers are text:"))
    record = SimpleNamespace(offset=0, key=None, value=None, timestamp=0, headers=())
    error = ValueError("no such article")
    work = InFlightEvent(record, 0, first_failed_ms=1)
    writer = DeadLetterWriter(TP("s", 0), "ship", None, None)  # type: ignore[arg-type]  # nothing is sent
    of_subscriber = writer._rejected(work, dead_lettering(work, "failed", "", error)).headers
    names = {name for name, _ in [*smallest.headers, *of_subscriber]}

    assert sorted({*names, "store", "subscriber", "header-bytes-not-kept", "error", "fold-id", RECEIPT_HEADER}) == sorted(
        documented
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_documented_setting_and_metric_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    existing = {name.strip("`") for name, _, _ in settings(Settings)}
    sections = "|".join(sorted({name.partition(".")[0] for name in existing if "." in name}))
    metrics = {metric.name for metric in METRICS}

    no_settings = set(re.findall(rf"`((?:{sections})\.[a-z_]+)`", text)) - existing
    no_metrics = set(re.findall(r"\bstreams_app_[a-z_]+\b", text)) - metrics - {COOKIE}
    assert set() == no_settings, "these read as `section.setting`, and are none; write a file with its folder"
    assert set() == no_metrics, "these read as metrics, and are not in health/metric_table.py"


def test_every_broken_variant_named_in_internals_exists() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "simulation").glob("mutants*.py"))
    documented = quoted(columns(ROOT / "docs" / "explained" / "internals.md", "A variant that is not caught fails the tests.", -1))

    assert documented
    assert [] == [name for name in documented if f'"{name}",' not in sources]


def test_every_file_and_proof_of_a_mechanism_exists() -> None:
    page, heading = (
        ROOT / "docs" / "explained" / "internals.md",
        "column is a broken variant, or a test that fails without the mechanism.",
    )
    files, proofs = (columns(page, heading, column) for column in (4, 5))
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))

    assert [] == [cell for cell in (*files, *proofs) if not quoted([cell])]
    assert [] == [name for name in quoted(files) if not (ROOT / "streams_app" / name).is_file()]
    assert [] == [name for name in quoted(proofs) if f"def {name}(" not in sources and f'"{name}",' not in sources]


def test_every_code_location_of_the_glossary_exists() -> None:
    package = ROOT / "streams_app"
    sources = "".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    rows = re.findall(r"^\|.*$", (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    named = quoted([row.split("|")[3] for row in rows])

    assert len(named) > len(rows) // 2
    assert [] == [
        name for name in named if not (package / name).exists() and not re.search(rf"^class {name}\b", sources, re.MULTILINE)
    ]


def logged() -> set[str]:
    """Return the log messages of a worker above DEBUG, without ``key=value`` and with … for each argument."""
    found = set()
    for path in (ROOT / "streams_app").rglob("*.py"):
        if path.parent.name in ("demo", "embedded", "local"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level), args=args) if level != "debug":
                    text = ast.literal_eval(args[level == "log"])
                    found.add(re.sub(r"%[.0-9]*[a-z]", "…", re.split(r"[ ,;(]*\b[a-z_]+=", text)[0]))
    return {text for text in found if re.search("[a-z]", text)}


def test_documented_log_lines_are_exactly_those_of_the_code() -> None:
    documented = quoted(columns(ROOT / "docs" / "reference" / "log-lines.md", "The table has … in place of a number or a name."))
    documented = [text.replace("no progress …", "…") for text in documented if "=" not in text and text != "new"]

    lines = logged()

    assert [] == sorted(line for line in lines if not line.startswith(tuple(documented)))
    assert [] == [text for text in documented if not any(line.startswith(text) for line in lines)]
