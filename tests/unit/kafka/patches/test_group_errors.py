"""A coordinator that cannot read commits reports an error beside an empty list: this is not taken for no commit."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import GroupAuthorizationFailedError
from aiokafka.protocol.commit import OffsetFetchResponse_v1, OffsetFetchResponse_v3
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from streams_app.kafka.patches import install

LOADING, NOT_COORDINATOR, NOT_AUTHORIZED = 14, 16, 30
TP = TopicPartition("orders", 0)
COMMITTED = [("orders", [(0, 7, "note", 0)])]


class ScriptedCoordinator(GroupCoordinator):
    """Requests the commits of a group from a coordinator with scripted answers."""

    def __init__(self, *answers: Any) -> None:
        self._client = self
        self._retry_backoff_ms = 0
        self.group_id, self.coordinator_id = "shop.ship", 1
        self.answers, self.moved = list(answers), 0

    async def send(self, node: int, request: Any, group: Any) -> Any:
        return self.answers.pop(0)

    async def ensure_coordinator_known(self) -> None:
        """Do nothing: it is known."""

    def coordinator_dead(self) -> None:
        self.moved += 1


@pytest.fixture(autouse=True)
def _installed() -> None:
    install()


@pytest.mark.parametrize(("code", "moved"), [(LOADING, 0), (NOT_COORDINATOR, 1)])
async def test_coordinator_that_cannot_answer_yet_is_retried(code: int, moved: int) -> None:
    asking = ScriptedCoordinator(OffsetFetchResponse_v3(0, [], code), OffsetFetchResponse_v3(0, COMMITTED, 0))

    assert {TP: OffsetAndMetadata(7, "note")} == await asking.fetch_committed_offsets([TP])
    assert moved == asking.moved


async def test_authorization_failure_is_an_error() -> None:
    with pytest.raises(GroupAuthorizationFailedError):
        await ScriptedCoordinator(OffsetFetchResponse_v3(0, [], NOT_AUTHORIZED)).fetch_committed_offsets([TP])


async def test_first_response_version_has_no_group_error() -> None:
    assert {TP: OffsetAndMetadata(7, "note")} == await ScriptedCoordinator(
        OffsetFetchResponse_v1(COMMITTED)
    ).fetch_committed_offsets([TP])
