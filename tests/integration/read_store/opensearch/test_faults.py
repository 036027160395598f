"""A read store in a real OpenSearch that is unavailable, or that rejects requests temporarily or permanently."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streams_app.embedded.ports import free_port
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.operations.repairing import repaired
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import CheckpointStep, Counts, NotStorableError, ReadStore, Repair
from streams_app.read_store.opensearch.documents import document_id
from tests.helpers.read_store.searching import Search
from tests.helpers.read_store.stores import P0, write
from tests.helpers.waiting import wait_until
from tests.integration.conftest import searching
from tests.servers.http_front import http_front
from tests.servers.opensearch import OpenSearch
from tests.servers.tls import Authority

pytestmark = pytest.mark.timeout(200)

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")
SMALL = ("thread_pool.write.queue_size=1", "thread_pool.write.size=1", "http.max_content_length=1mb")


@dataclass
class Small:
    """A server of this file alone, which accepts only small requests."""

    running: OpenSearch

    def table(self, shape: str) -> Search:
        return Search(self.running.port, f"t_{secrets.token_hex(6)}", shape)

    def killed_and_started(self) -> None:
        self.running.kill()
        self.running = self.running.restart()


@pytest.fixture(scope="module")
def small(opensearch: OpenSearch) -> Iterator[Small]:
    """Yield the server; the fixture of the shared one decides whether tests can have one."""
    made = Small(OpenSearch.start(settings=SMALL))
    yield made
    made.running.stop()


async def until_taken(store: ReadStore, changes: list[CellChange], step: CheckpointStep) -> tuple[Counts, int]:
    """Write until accepted, as the processor does, without delays; return the number of rejections."""
    failures = 0
    while True:
        with suppress(TryAgainError):
            return await store.apply(changes, step, 0), failures
        failures += 1


# Unavailable


@pytest.mark.long
async def test_killed_server_is_awaited_and_nothing_is_missing(small: Small) -> None:
    search = small.table("groups")
    await search.store.initialise()
    total = 60
    written: list[int] = []

    async def sync() -> None:
        for number in range(total):
            changes = [CellChange(Cell("f", f"g{group}", f"n{number % 7}"), number, number) for group in range(40)]
            await until_taken(search.store, changes, CheckpointStep(P0, number or None, number + 1))
            written.append(number)

    syncing = asyncio.create_task(sync())
    await wait_until(lambda: len(written) > total // 4, 60, "a part is written")
    await asyncio.to_thread(small.killed_and_started)
    await syncing
    found, progress = search.cells(), await search.store.checkpoints()
    await search.close()
    expected = {(f"g{group}", f"n{number % 7}"): (number, number) for number in range(total) for group in range(40)}

    assert (expected, {P0: total}) == (found, progress)


async def test_absent_server_is_named_without_its_password() -> None:
    search = Search(1, "t", "cells", url=f"opensearch+http://u:s3cret@127.0.0.1:{free_port()}")
    for call in (search.store.checkpoints(), search.store.initialise(), search.store.probe(), search.store.missing()):
        with pytest.raises(
            TryAgainError, match=r"read store dashboard opensearch\+http://127\.0\.0\.1:\d+: Cannot connect"
        ) as caught:
            await call

        assert "s3cret" not in str(caught.value)
    await search.store.close()


async def test_unresponsive_server_times_out() -> None:
    came: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda reader, writer: came.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    store = Search(port, "t", "cells", timeout="200ms").store
    with pytest.raises(TryAgainError, match="no answer in time"):
        await store.checkpoints()
    await store.close()
    silent.close()
    for writer in came:
        writer.close()


async def test_server_other_than_opensearch_is_retried() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    front = await asyncio.start_server(serve, "127.0.0.1", 0)
    store = Search(front.sockets[0].getsockname()[1], "t", "cells").store
    with pytest.raises(TryAgainError, match="its answer is not JSON"):
        await store.missing()
    await store.close()
    front.close()


async def test_tls_works_with_a_password_file_that_may_change(search: Search, tmp_path: Path) -> None:
    authority, other = Authority.make(tmp_path / "ca"), Authority.make(tmp_path / "other")
    password, file = ["p/a:s#s"], tmp_path / "password"
    file.write_text("p/a:s#s\n")
    async with http_front(search.port, authority.sign("search"), "u", password) as port:
        given = {"url": f"opensearch+https://u@localhost:{port}", "password_file": file, "ssl_cafile": authority.certificate}
        store = Search(search.port, search.table, search.shape, **given).store
        assert Counts(written=1) == await write(store, [CellChange(LIKES, 1, 7)], 2)

        password[0] = "changed"
        with pytest.raises(TryAgainError, match="Unauthorized") as caught:
            await store.checkpoints()
        file.write_text("changed")

        assert {P0: 2} == await store.checkpoints()
        assert "p/a:s#s" not in str(caught.value)
        await store.close()

        stranger = Search(search.port, search.table, search.shape, **{**given, "ssl_cafile": other.certificate}).store
        with pytest.raises(TryAgainError, match="certificate verify failed"):
            await stranger.checkpoints()
        await stranger.close()

        file.unlink()
        with pytest.raises(ConfigurationError, match=r"read_stores\.dashboard\.password_file: cannot read"):
            await stranger.checkpoints()


# Temporary rejections


async def test_full_queue_is_retried_until_everything_is_accepted_and_counted_once(small: Small) -> None:
    search = small.table("cells")
    await search.store.initialise()

    async def sync(partition: int) -> tuple[Counts, int]:
        cells = [Cell("f", f"g{partition}", f"n{number}") for number in range(500)]
        step = CheckpointStep(P0._replace(partition=partition), None, 9)
        return await until_taken(search.another(), [CellChange(cell, 1, 1) for cell in cells], step)

    outcomes = await asyncio.gather(*(sync(partition) for partition in range(8)))
    rows = len(search.cells())
    await search.close()

    assert ([Counts(written=500)] * 8, 4_000) == ([counts for counts, _ in outcomes], rows)
    assert sum(failures for _, failures in outcomes) > 0


async def test_alias_of_two_indices_blames_no_document(search: Search) -> None:
    search.ask("PUT", f"/{search.table}-000002", {"aliases": {f"{search.table}-{search.shape}": {}}})
    with pytest.raises(TryAgainError, match="no write index is defined"):
        await write(search.store, [CellChange(LIKES, 1, 7)])
    search.ask("DELETE", f"/{search.table}-000002")

    assert Counts(written=1) == await write(search.store, [CellChange(LIKES, 1, 7)])


# Permanent rejections


async def test_corrupted_document_is_named_and_the_others_are_written(search: Search) -> None:
    parts = ("f", "a", "likes") if search.shape == "cells" else ("f", "a")
    spoilt = {"fold": "f", "group_key": "a", "name": "likes", "version": {"a": 1}, "versions": {"likes": {"a": 1}, "shares": 0}}
    search.ask("PUT", f"/{search.table}-000001/_mapping", {"properties": {}})
    search.store = search.another()
    quoted = document_id(parts).replace('"', "%22").replace("[", "%5B").replace("]", "%5D").replace(",", "%2C")
    answer = search.ask(
        "PUT", f"/{search.table}/_doc/{quoted}", {**spoilt, **({"version": 0, "guarded": 2} if search.shape == "groups" else {})}
    )
    other = CellChange(Cell("f", "b", "likes"), 1, 2)
    step = CheckpointStep(P0, None, 2)
    if search.shape == "cells":
        # The type of the field rejects such a version: the corrupted value is the text of a number.
        assert 400 == answer["status"]
        spoilt["version"] = "7"
        search.ask("PUT", f"/{search.table}/_doc/{quoted}", spoilt)
    with pytest.raises(NotStorableError) as caught:
        await search.store.apply([CellChange(LIKES, 1, 7), CellChange(SHARES, 1, 7), other], step, 0)

    assert {LIKES} == caught.value.cells.keys()
    assert "failed to execute script" in caught.value.cells[LIKES]
    assert {} == await search.store.checkpoints()

    counts = await search.store.apply([CellChange(SHARES, 1, 7), other], step, 0)

    assert (Counts(written=2), {P0: 2}) == (counts, await search.store.checkpoints())


@pytest.mark.filterwarnings("ignore:Sending a large body directly")  # of aiohttp, which only the client library knows
async def test_value_beyond_the_server_limit_is_named_and_the_others_are_written(small: Small) -> None:
    for shape in ("cells", "groups"):
        search = small.table(shape)
        await search.store.initialise()
        # Together they are too large for one request, which is then split.
        good = [CellChange(Cell("f", f"g{number}", "n"), 1, "x" * 300_000) for number in range(7)]
        with pytest.raises(NotStorableError, match="Entity Too Large") as caught:
            await search.store.apply([CellChange(LIKES, 1, "x" * 1_100_000), *good], CheckpointStep(P0, None, 2), 0)
        counts = await search.store.apply(good, CheckpointStep(P0, None, 2), 0)
        found = search.cells()
        await search.close()

        assert ([LIKES], Counts(written=7), 7) == (list(caught.value.cells), counts, len(found))


@pytest.mark.filterwarnings("ignore:Sending a large body directly")  # as above
async def test_repair_rejected_by_the_server_is_reported_and_the_rest_is_repaired(small: Small) -> None:
    for shape in ("cells", "groups"):
        search = small.table(shape)
        await search.store.initialise()
        await write(search.store, [CellChange(LIKES, 1, 1), CellChange(SHARES, 1, 1)])
        good = [Cell("f", f"g{number}", "n") for number in range(3)]
        repairs = [Repair(CellChange(LIKES, 1, "x" * 1_100_000), 1), *(Repair(CellChange(cell, 1, 2), None) for cell in good)]
        written, rejected = await repaired(search.store, repairs, lambda: 0)
        found = search.cells()
        await search.close()

        assert (3, {LIKES: "Request Entity Too Large"}) == (written, rejected)
        assert {("a", "likes"): (1, 1), ("a", "shares"): (1, 1), **{(cell.group_key, "n"): (2, 1) for cell in good}} == found


@pytest.mark.parametrize("limit", ["fields", "type"])
async def test_name_without_an_index_field_is_stored_beside_the_fields(opensearch: OpenSearch, limit: str) -> None:
    search = Search(opensearch.port, f"t_{secrets.token_hex(6)}", "groups")
    await search.store.initialise()
    if limit == "fields":
        search.settled(**{"index.mapping.total_fields.limit": 25})
    else:
        search.ask("PUT", f"/{search.table}/_mapping", {"properties": {"n1": {"type": "date"}}})
    changes = [CellChange(Cell("f", "a", f"n{number}"), 1, f"x{number}") for number in range(40)]
    counts = await write(search.store, changes)
    repeated = await write(search.store, changes)
    (document,) = search.documents()
    await search.close()
    beside: dict[str, Any] = document.get("other", {})

    assert (Counts(written=40), Counts(unchanged=40)) == (counts, repeated)
    assert {f"n{number}": f"x{number}" for number in range(40)} == {
        name: value for name, value in {**document, **beside}.items() if name[0] == "n"
    }
    assert "n1" in beside


async def test_repair_of_a_name_without_an_index_field_is_stored_beside_the_fields(opensearch: OpenSearch) -> None:
    search = searching(opensearch, "groups")
    await search.store.initialise()
    search.ask("PUT", f"/{search.table}/_mapping", {"properties": {"likes": {"type": "date"}}})
    repairs = [Repair(CellChange(LIKES, 1, "many"), None), Repair(CellChange(SHARES, 1, 2), None)]
    done = await repaired(search.store, repairs, lambda: 0)
    (document,) = search.documents()
    await search.close()

    assert ((2, {}), {"likes": "many", "shares": 2}) == (done, document["other"])
