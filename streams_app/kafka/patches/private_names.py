"""Private names of aiokafka, Faust, mode and asyncio that this project uses.

If a release renamed one of them, a patch would have no effect, or a worker would fail while it folds. So this table lists them with
the parameters of calls and replacements, and ``tests/unit/kafka/patches/test_private_names.py`` compares the table with the code.
"""

from __future__ import annotations

import inspect
import platform
import sys
from functools import cache
from importlib.metadata import version
from typing import Any, Final

DISTRIBUTIONS: Final = {"aiokafka": "aiokafka", "faust": "faust-streaming", "mode": "mode-streaming"}
"""Name of the distribution of each package, as pip knows it; asyncio is part of Python."""

TOUCHED: Final[dict[str, tuple[str, ...]]] = {
    "aiokafka.admin:AIOKafkaAdminClient": ("_client", "_send_request(self, request, node_id)"),
    "aiokafka.client:AIOKafkaClient": ("_conns", "_maybe_wait_metadata(self)", "_metadata_update(self, cluster_metadata, topics)"),
    "aiokafka.conn:": ("READER_LIMIT",),
    "aiokafka.conn:AIOKafkaConnection": (
        "_send_sasl_token(self, payload)",
        "_versions",
        "close(self, reason)",
        "send(self, request)",
    ),
    "aiokafka.conn:OAuthAuthenticator": ("_sasl_oauth_token_provider", "_token_sent", "step(self, payload)"),
    "aiokafka.conn:AIOKafkaProtocol": ("_stream_reader",),
    "aiokafka.consumer.consumer:AIOKafkaConsumer": ("_client", "_closed", "_coordinator", "_fetcher", "_subscription"),
    "aiokafka.consumer.fetcher:": ("MemoryRecords", "READ_COMMITTED"),
    "aiokafka.consumer.fetcher:FetchResult": (
        "_assignment",
        "_partition_records",
        "_update_position(self)",
        "check_assignment(self, tp)",
        "has_more(self)",
    ),
    "aiokafka.consumer.fetcher:Fetcher": (
        "_client",
        "_closed",
        "_create_fetch_waiter(self)",
        "_fetch_max_wait_ms",
        "_fetch_waiters",
        "_notify(self, future)",
        "_prefetch_backoff",
        "_proc_fetch_request(self, assignment, node_id, request)",
        "_records",
        "_subscriptions",
        "_wait_consume_future",
    ),
    "aiokafka.consumer.fetcher:PartitionRecords": (
        "_aborted_producers",
        "_check_crcs",
        "_consume_aborted_up_to(self, batch_offset)",
        "_contains_abort_marker(self, next_batch)",
        "_isolation_level",
        "_records",
        "_records_iterator",
        "_tp",
        "next_fetch_offset",
    ),
    "aiokafka.consumer.group_coordinator:GroupCoordinator": (
        "_commit_lock",
        "_commit_refresh_task",
        "_coordination_task",
        "_heartbeat_task",
        "_send_req(self, request)",
        "coordinator_dead(self)",
        "ensure_coordinator_known(self)",
        "fetch_committed_offsets(self, partitions)",
        "generation",
        "member_id",
        "request_rejoin(self)",
        "reset_generation(self)",
    ),
    "aiokafka.producer.message_accumulator:MessageAccumulator": ("_batches", "_pending_batches", "fail_all(self, exception)"),
    "aiokafka.producer.message_accumulator:MessageBatch": ("_drain_waiter", "future"),
    "aiokafka.producer.producer:AIOKafkaProducer": ("_message_accumulator", "_sender"),
    "aiokafka.producer.sender:Sender": ("sender_task",),
    "aiokafka.protocol.metadata:MetadataRequest": ("_allow_auto_topic_creation", "_topics", "build(self, request_struct_class)"),
    "aiokafka.record.default_records:_DefaultRecordBatchPy": ("_buffer", "_maybe_uncompress(self)"),
    "asyncio.selector_events:BaseSelectorEventLoop": ("_make_socket_transport(self, sock, protocol)",),
    "faust.app.base:App": (
        "_create_directories(self)",
        "_new_consumer(self)",
        "_on_partitions_assigned(self, assigned)",
        "_on_partitions_revoked(self, revoked)",
    ),
    "faust.tables.manager:TableManager": ("_tables_finalized", "_tables_registered", "on_start(self)"),
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread": (
        "_consumer",
        "_create_worker_consumer(self, transport)",
        "_ensure_consumer(self)",
        "_fetch_records(self, consumer, active_partitions)",
    ),
    "faust.transport.drivers.aiokafka:Consumer": (
        "_get_active_partitions(self)",
        "_new_consumer_thread(self)",
        "_read_offset",
        "_thread",
        "_to_message(self, tp, record)",
        "_wait_next_records(self, timeout)",
        "on_buffer_drop(self, tp)",
        "on_buffer_full(self, tp)",
        "perform_seek(self)",
        "verify_event_path(self, now, tp)",
    ),
    "mode.services:Service": ("_crash(self, reason)",),
    "mode.threads:ServiceThread": ("_start_thread(self)", "_stopped_set(self)", "thread_loop"),
}
"""For each ``module:class``, or ``module:`` without a class, the names in it that the project relies on.

They are private, or public but not meant for users of the library, so any release may change them. The parentheses after the name
of a function contain the parameters that the project uses; any further parameter must have a default.
"""

_NOT_THERE: Final = object()


def faults() -> list[str]:
    """Check all names of :data:`TOUCHED` whose modules are loaded; return a message for each change, see :func:`faults_of`."""
    return [fault for owner in TOUCHED if owner.partition(":")[0] in sys.modules for fault in faults_of(owner)]


@cache
def faults_of(owner: str) -> tuple[str, ...]:
    """Check the names that the project uses in one module or class; return a message for each that a release has changed.

    A name has changed if it is missing, or if a function does not have the parameters that the project uses. The result is cached.

    Args:
        owner: A key of :data:`TOUCHED`: ``module:class``, or ``module:`` without a class. The module must be loaded.
    """
    module_name, _, class_name = owner.partition(":")
    module = sys.modules[module_name]
    found = getattr(module, class_name, None) if class_name else module
    full_name = ".".join(filter(None, (module_name, class_name)))
    if found is None:
        return (_fault(module_name, "has no", full_name),)
    faults: list[str] = []
    for declared in TOUCHED[owner]:
        name, _, parameters = declared.rstrip(")").partition("(")
        if not has(found, name):
            faults.append(_fault(module_name, "has no", f"{full_name}.{name}"))
        elif parameters and not _takes(getattr(found, name), parameters.split(", ")):
            faults.append(_fault(module_name, "has changed the parameters of", f"{full_name}.{declared}"))
    return tuple(faults)


def _fault(module_name: str, what: str, name: str) -> str:
    distribution = DISTRIBUTIONS.get(module_name.partition(".")[0])
    installed = f"{distribution} {version(distribution)}" if distribution else f"Python {platform.python_version()}"
    return f"{installed} {what} {name}, which streams_app relies on: install the versions streams_app asks for"


def has(owner: Any, name: str) -> bool:
    """Return whether a module or class has an attribute, or instances of the class have it.

    Attributes of instances are recognised if a class declares them, or uses the name in ``__init__``.
    """
    if inspect.getattr_static(owner, name, _NOT_THERE) is not _NOT_THERE:
        return True
    return any(
        name in vars(base).get("__annotations__", ())
        or name in getattr(getattr(vars(base).get("__init__"), "__code__", None), "co_names", ())
        for base in (owner.__mro__ if inspect.isclass(owner) else ())
    )


def _takes(function: Any, wanted: list[str]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    others = parameters[len(wanted) :]
    return [each.name for each in parameters[: len(wanted)]] == wanted and all(
        each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in others
    )
