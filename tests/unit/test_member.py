"""A member of a group before its client has found the group."""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer

from streams_app.fold import Fold
from streams_app.kafka.member import NO_GENERATION, GroupMember
from streams_app.settings import Settings


async def test_a_member_whose_client_is_starting_has_neither_generation_nor_id() -> None:
    fold = Fold(name="f", source="s", group_key="g", changed="c", quiet_period="1s")
    member = GroupMember(Settings(app_id="a", folds=(fold,)), "g", ["t"])
    member._consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    found = member.generation, member.member_id
    await member._consumer.stop()

    assert (NO_GENERATION, "") == found
