"""Takes fetched records out of an aiokafka consumer, with their ranges. Functions run on the event loop of the consumer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.client import ConnectionGroup
from aiokafka.consumer.fetcher import FetchResult
from aiokafka.errors import IllegalStateError
from aiokafka.structs import TopicPartition

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.group_consumer import NotOwnerError
from streams_app.kafka.patches.fetch_times import asked_ms
from streams_app.kafka.patches.records import take_records
from streams_app.native import NativeCore

PREFETCH_BACKOFF: Final = 0.005
"""Longest time, in seconds, for which aiokafka does not fetch from a broker because fetched records of some partitions wait.

With its default of 0.1, the partitions of a broker are fetched in step, so that all of them wait for the slowest one. With 0, each
request names few partitions, and small events are read at three fifths of the speed.
"""


def take_fetched(
    fetcher: Any, active: Collection[TP], seek_numbers: Mapping[TP, int], room: int, max_records: int | None = None,
    core: NativeCore | None = None,
) -> dict[TP, Batch]:  # fmt: skip
    """Take fetched records out of an aiokafka consumer; return one batch for each partition whose position has moved.

    A range begins at the position of the fetch that returned its records. No await separates reading the position from taking the
    records, so a seek cannot intervene.

    Args:
        active: Partitions to take records of. Fetched records of other assigned partitions remain in the consumer; those of
            partitions that are no longer assigned are discarded.
        room: Maximum number of records; a few more may be returned, because the batch of a partition is not split.
        core: The native core, to take records as its columns; None for objects.
    """
    batches: dict[TP, Batch] = {}
    for fetched in list(fetcher._records):
        tp = TP(fetched.topic, fetched.partition)
        if tp not in active:
            if not fetcher._subscriptions.is_assigned(fetched):
                del fetcher._records[fetched]
            continue
        result = fetcher._records[fetched]
        if type(result) is not FetchResult:
            if batches:
                return batches  # the next call raises the error
            del fetcher._records[fetched]
            fetcher._notify(fetcher._wait_consume_future)
            result.check_raise()
            continue
        state = fetcher._subscriptions.subscription.assignment.state_value(fetched)
        begin = state.position if state.has_valid_position else None
        if room <= 0:
            break
        records = take_records(result, fetched, max_records, core)
        room -= len(records)
        if not result.has_more():
            del fetcher._records[fetched]
            fetcher._notify(fetcher._wait_consume_future)
        if begin is None or not state.has_valid_position or state.position <= begin:
            continue
        batches[tp] = Batch(
            tp,
            records,
            begin,
            state.position,
            stable_offset=stable_offset(state),
            fetched_at_ms=asked_ms(state),
            seek_number=seek_numbers[tp],
            connection=connection_of(fetcher._client, fetched),
        )
    return batches


def connection_of(client: Any, tp: TopicPartition) -> object:
    """Return the connection to the leader of a partition, over which the partition is fetched; None if there is none."""
    return client._conns.get((client.cluster.leader_for_partition(tp), ConnectionGroup.DEFAULT))


def is_behind(batches: Iterable[Batch]) -> bool:
    """Return whether one of the batches ends below the end of its partition, so that more records can be fetched."""
    return any(batch.end < (batch.stable_offset or 0) for batch in batches)


def view_of(consumer: AIOKafkaConsumer | None, tp: TP) -> tuple[ReaderView, int | None]:
    """Return the end offsets in a partition's last fetch reply, and the position of its reader."""
    subscription = consumer._subscription.subscription if consumer is not None else None
    assignment = subscription.assignment if subscription is not None else None
    if assignment is None or tp not in assignment.tps:
        return ReaderView(None, None), None
    state = assignment.state_value(TopicPartition(tp.topic, tp.partition))
    position = state.position if state.has_valid_position else None
    asked = asked_ms(state)  # read before the end: if a reply arrives in between, the end is newer than the time, never older
    high = state.highwater  # likewise: if it is older than the stable offset, no record counts as hidden
    return ReaderView(stable_offset(state), asked, high), position


def stable_offset(state: Any) -> int | None:
    """Return the last stable offset in a partition's last fetch reply, or else its high watermark; None before the first reply."""
    lso, highwater = state.lso, state.highwater
    if lso is not None and lso >= 0:
        return int(lso)
    return None if highwater is None else int(highwater)


def seek_and_count(consumer: AIOKafkaConsumer, seek_numbers: MutableMapping[TP, int], tp: TP, offset: int) -> int:
    """Seek a partition and return the number of the seek, see :meth:`.GroupConsumer.seek`."""
    try:
        consumer.seek(TopicPartition(tp.topic, tp.partition), offset)
    except IllegalStateError as error:
        raise NotOwnerError(str(error)) from error
    seek_numbers[tp] += 1
    return seek_numbers[tp]


def notify_waiters(consumer: AIOKafkaConsumer) -> None:
    """Wake tasks that wait for records of a consumer; call this after a partition was resumed."""
    fetcher = consumer._fetcher
    for waiter in list(fetcher._fetch_waiters if fetcher is not None else ()):
        fetcher._notify(waiter)
