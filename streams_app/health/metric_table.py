"""The table of all metrics: name, help, and advice for operators (pure).

Metrics have base units (seconds, bytes, counts). Group keys are never labels, because a time series per group would overload
Prometheus.
"""

from __future__ import annotations

import math
from typing import Final

from streams_app.health.metric_description import Description

DELAY_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3_600, 21_600)
GAP_BUCKETS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400)
"""Bucket bounds for the gaps between the events of a group, and for added latency, in seconds. They are common quiet
periods: for each of them, the histogram of gaps shows exactly how many gaps are longer."""

CALL_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
ATTEMPT_BUCKETS: Final = (1, 2, 3, 5, 8, 13, 20)
WORK_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5)


METRICS: Final = (
    Description(
        "streams_app_events_folded_total", "counter", ("fold",), "Events folded.",
        "Zero while lag rises: see /health/ready.",
    ),
    Description(
        "streams_app_records_emitted_total", "counter", ("fold", "reason"), "Folded records acknowledged by the broker.",
        "Mostly max_hold or max_changed: the bound closes groups, not silence; raise it or accept it.",
    ),
    Description(
        "streams_app_open_groups", "gauge", ("fold",), "Open groups in the partitions of this worker.",
        "Each costs about 250 bytes of Redis; shorten the quiet period or the hold.",
    ),
    Description(
        "streams_app_groups_dropped_total", "counter", ("fold",), "Open groups dropped on request, without a record.",
        "Above 0: a user ran `streams-app groups drop`; the log of the worker has the user, the group and the reason.",
    ),
    Description(
        "streams_app_outbox_records", "gauge", ("fold",), "Records sealed and not yet acknowledged by the broker.",
        "Stays above 0: the broker does not acknowledge; check it and the output topic.",
    ),
    Description(
        "streams_app_lag_events", "gauge", ("fold",),
        "Source offsets not yet folded, of all partitions, including those of other workers: use the maximum over workers, "
        "not the sum.",
        "Rising: see /health/ready; else add workers up to the number of partitions.",
    ),
    Description(
        "streams_app_oldest_overdue_seconds", "gauge", ("fold",),
        "Time by which the oldest due group, or the oldest record that waits for the broker, is overdue.",
        "Above a few ticks: emission is behind; see outbox and /health/ready.",
    ),
    Description(
        "streams_app_emit_delay_seconds", "histogram", ("fold",), "Time from a group being due to its emission.",
        "Grows after downtime and falls again; otherwise as for oldest_overdue.", DELAY_BUCKETS,
    ),
    Description(
        "streams_app_folding_ratio", "gauge", ("fold",), "1 - records / events folded into them, since this worker started.",
        "Near 0: the quiet period is shorter than the gaps between events of a group.",
    ),
    Description(
        "streams_app_folding_ratio_last_hour", "gauge", ("fold",), "The same for the last hour; NaN if nothing was emitted.",
        "Falls while the other is stable: the load has changed; `streams-app tune` recommends a window.", initial=math.nan,
    ),
    Description(
        "streams_app_events_emitted_total", "counter", ("fold",), "Events that are contained in the emitted records.",
        "1 - rate of records_emitted / rate of this is the folding ratio for any period and all workers together.",
    ),
    Description(
        "streams_app_split_folds_total", "counter", ("fold",),
        "Folds that opened within the quiet period after the previous fold of their group was closed; from the sample.",
        "Many compared with records_emitted: twice the quiet period would fold them; `streams-app tune` shows the curve.",
    ),
    Description(
        "streams_app_gap_seconds", "histogram", ("fold",),
        "Time between consecutive events of a group, also across its folds; from the sample.",
        "Gaps longer than X plus groups_begun give the records of a window X: see `streams-app tune --live`.", GAP_BUCKETS,
    ),
    Description(
        "streams_app_groups_begun_total", "counter", ("fold",),
        "Groups seen for the first time by this worker, or again after it forgot them; from the sample.",
        "Nearly as many as events: this key leaves no events to fold.",
    ),
    Description(
        "streams_app_added_latency_seconds", "histogram", ("fold",),
        "Time from each event to the acknowledgement of its record; from the sample, evenly spread between first and last event.",
        "Too long: shorten the quiet period, or max_hold.", GAP_BUCKETS,
    ),
    Description(
        "streams_app_sample_share", "gauge", ("fold",),
        "Share of groups from which gap, split_folds, groups_begun and added_latency are estimated; 1: all groups, so the "
        "values are exact.",
        "Halves when 1024 groups are watched, and rises again with the next start.", initial=1,
    ),
    Description(
        "streams_app_sample_error_ratio", "gauge", ("fold",),
        "Relative standard error of those estimates, computed from the sample; 0 if all groups are watched.",
        "Above 0.1: few groups make most of the records; `streams-app tune` reads the topic.",
    ),
    Description(
        "streams_app_quiet_period_seconds", "gauge", ("fold", "partition"), "Quiet period of a partition, if it sets itself.",
        "Is at_most for long: a longer limit might fold more; `streams-app tune` shows the curve. The log has each change.",
    ),
    Description(
        "streams_app_merging_backlog", "gauge", ("fold",), "1 while a backlog is merged and quiet groups stay open.",
        "1 for long: the worker does not catch up; see lag.",
    ),
    Description(
        "streams_app_dead_letters_total", "counter", ("fold", "reason"), "Rejected events that are in the dead-letter topic.",
        "`streams-app dead-letters list` shows key, value and reason; fix the producer.",
    ),
    Description(
        "streams_app_duplicate_events_total", "counter", ("fold",), "Duplicates ignored by `dedupe_by`; they count as folded, too.",
        "Many: a producer retries often; see its timeouts, and whether it is idempotent.",
    ),
    Description(
        "streams_app_misrouted_events_total", "counter", ("fold",), "Events whose record key is not their group key.",
        "Produce with the group key as record key, or a group may be split over partitions.",
    ),
    Description(
        "streams_app_events_read_total", "counter", ("fold", "reader"),
        "Events read: `reader` is `native` for the native core, `python` for all others.",
        "With the native core, `python` counts what it leaves to Python: unusual events, and folds that do not keep names.",
    ),
    Description(
        "streams_app_resyncs_total", "counter", ("fold", "cause"),
        "Number of times that a partition was claimed again because its state was not as expected.",
        "A few after rebalances or Redis restarts are normal; a steady rate is not: read the log.",
    ),
    Description(
        "streams_app_known_loss_events_total", "counter", ("fold",), "Source offsets removed by retention before they were folded.",
        "Must stay 0: lengthen the retention of the source, and find out why workers were down.",
    ),
    Description(
        "streams_app_log_went_back_events_total", "counter", ("name",),
        "Events that were read and then lost by the broker, because its log went back; by fold, subscriber, read store or "
        "view.",
        "Find out why the broker lost them (unclean election, restored disk). The events that are now at these offsets are read.",
    ),
    Description(
        "streams_app_read_store_writes_total", "counter", ("store", "result"), "Changed names synced: written, stale or unchanged.",
        "Mostly stale: two writers, or a replay.",
    ),
    Description(
        "streams_app_read_store_dead_letters_total", "counter", ("store", "reason"),
        "Folded records that a read store sent to its dead-letter topic.",
        "`streams-app dead-letters list --store NAME` shows why; fix the source or the store, then `replay`.",
    ),
    Description(
        "streams_app_read_store_known_loss_records_total", "counter", ("store",),
        "Offsets of output topics removed by retention before the read store had read them.",
        "Must stay 0: names of those groups may be out of date, `streams-app read-store verify` lists them; `rebuild`.",
    ),
    Description(
        "streams_app_read_store_absent_values_total", "counter", ("store",),
        "Requested values that the source does not have, so that they become NULL.",
        "As high as the writes: the source returns other groups or names than records have; `streams-app check` shows them.",
    ),
    Description(
        "streams_app_read_store_lag_records", "gauge", ("store",), "Folded records not yet in the read store.",
        "Rising: the store or its source is down or slow; the log has the cause.",
    ),
    Description(
        "streams_app_read_store_oldest_unsynced_seconds", "gauge", ("store",),
        "Age of the oldest folded record not yet in the read store.",
        "Above a few seconds: as for the lag. It also rises while no new events are folded.",
    ),
    Description(
        "streams_app_published_total", "counter", ("event", "result"),
        "Events published: acknowledged, rejected before they were sent (refused), or of unknown outcome.",
        "unknown: the broker is down, see the log; refused: the program publishes payloads that do not fit the declaration.",
    ),
    Description(
        "streams_app_publish_seconds", "histogram", ("event",), "Duration of publishing, acknowledgement included.",
        "Rising: the broker is slow, or its replicas are.", WORK_BUCKETS,
    ),
    Description(
        "streams_app_subscriber_finished_total", "counter", ("subscriber", "event", "result"),
        "Events that a subscriber has finished: done, dead-letter, duplicate, skipped (another event), or lost (removed by "
        "retention).",
        "Rate 0 while events wait: no event is processed, see suspended, waiting_for and running. Lost must stay 0.",
    ),
    Description(
        "streams_app_subscriber_attempts_total", "counter", ("subscriber", "event", "outcome"),
        "Attempts: done, retry (requested by the function), error, timeout, interrupted, or crash of the process.",
        "Other than done: the function or its dependency fails; dead letters and the log have the errors.",
    ),
    Description(
        "streams_app_subscriber_dead_letters_total", "counter", ("subscriber", "reason"), "Events that became dead letters.",
        "Read the dead-letter topic: key, value, reason and trace are there.",
    ),
    Description(
        "streams_app_subscriber_waiting_events", "gauge", ("subscriber",),
        "Events in the partitions of this worker whose first attempt has not begun, including those not read yet.",
        "Rising: more workers up to the number of partitions, a higher concurrency, or a faster function.",
    ),
    Description(
        "streams_app_subscriber_running_events", "gauge", ("subscriber",),
        "Running attempts in this worker, including overdue ones that occupy their slot.",
        "Stays at the concurrency: all slots are in use; as for waiting_events.",
    ),
    Description(
        "streams_app_subscriber_retrying_events", "gauge", ("subscriber",),
        "Events that have failed and wait for their next attempt.",
        "Many: see attempts by outcome.",
    ),
    Description(
        "streams_app_subscriber_oldest_waiting_seconds", "gauge", ("subscriber",),
        "Age, from the time of its record, of the oldest event whose first attempt has not begun.",
        "Rises while other metrics are constant: see running (back-pressure), suspended and waiting_for.",
    ),
    Description(
        "streams_app_subscriber_handler_seconds", "histogram", ("subscriber", "outcome"), "Duration of one call of the function.",
        "Near the timeout: raise it, or speed up the dependency of the function.", CALL_BUCKETS,
    ),
    Description(
        "streams_app_subscriber_wait_seconds", "histogram", ("subscriber",), "From the time of a record to its first attempt.",
        "As for oldest_waiting.", DELAY_BUCKETS,
    ),
    Description(
        "streams_app_subscriber_attempts_per_event", "histogram", ("subscriber",), "Number of attempts of finished events.",
        "Mostly 1; more: see attempts by outcome.", ATTEMPT_BUCKETS,
    ),
    Description(
        "streams_app_subscriber_suspended", "gauge", ("subscriber",),
        "1 while the circuit breaker is open: all attempts fail, and probes are made one at a time, up to a minute apart.",
        "Fix the dependency of the function; the first success ends the suspension.",
    ),
    Description(
        "streams_app_subscriber_loop_lag_seconds", "gauge", ("subscriber",),
        "Longest time in the last minute for which a function of the subscriber blocked the loop of all async functions.",
        "Above 0.1: the function blocks instead of awaiting; make it a plain def, which runs in a thread. Above 1 the log has "
        "its stack.",
    ),
    Description(
        "streams_app_subscriber_note_bytes", "gauge", ("subscriber",),
        "Size of the largest commit metadata, which lists finished events above the oldest unfinished one; at most 3000.",
        "Stays near 3000: an old event holds back the watermark while very many others finish out of order.",
    ),
    Description(
        "streams_app_subscriber_resyncs_total", "counter", ("subscriber", "cause"),
        "Number of times that a partition was claimed again because its state was not as expected.", "As for resyncs of folds.",
    ),
    Description(
        "streams_app_live_events_total", "counter", ("view", "result"),
        "Events of a live view: put, removed, late (older than its expiry), other (not selected) or refused (a dead letter).",
        "Mostly other: few events of the topic are for this view. late: producers or an import are late. refused: see "
        "dead-letters list.",
    ),
    Description(
        "streams_app_live_expired_total", "counter", ("view",), "Items of a live view that have expired.",
        "Constant while put rises: the clock of the view does not advance, see lag_records and the clock of the worker.",
    ),
    Description(
        "streams_app_live_pages", "gauge", ("view",), "Pages of a live view that have items, in the partitions of this worker.",
        "Rises without end: `page` names a unique id instead of a page.",
    ),
    Description(
        "streams_app_live_lag_records", "gauge", ("view",), "Records not yet in a live view.",
        "Rising: the view is shown as behind; add workers, or check Redis.",
    ),
    Description(
        "streams_app_live_reading", "gauge", ("view",),
        "1 while a live view is read again, after a loss of Redis or with another definition; pages get no values meanwhile.",
        "1 for long: lag_records shows how much is left.",
    ),
    Description(
        "streams_app_live_connections", "gauge", (), "Open pages that are connected to this live view server.",
        "Near live_server.connections: start another server.",
    ),
    Description(
        "streams_app_live_open_pages", "gauge", (), "Distinct pages among them, each of which is polled.",
        "Normally far below connections: many browsers show the same page.",
    ),
    Description(
        "streams_app_live_state", "gauge", ("view",),
        "State of a live view as shown to pages: 0 ok, 1 incomplete, 2 behind, 3 reading.",
        "2: no worker runs it, it lags, or Redis does not answer. 3 for long: see live_reading of the workers.",
    ),
    Description(
        "streams_app_live_messages_total", "counter", ("view",), "States of live views written to browsers.",
        "At most one each interval and connection.",
    ),
    Description(
        "streams_app_live_replaced_total", "counter", (),
        "States that were replaced by a newer one before a slow browser received them.",
        "Rising: the view changes faster than browsers read, which does no harm; a longer interval saves work.",
    ),
    Description(
        "streams_app_live_delay_seconds", "histogram", (),
        "Time from the timestamp of the newest record in a message to writing it to a browser.",
        "Grows: workers lag, or producers stamp records early; see live_lag_records and live_look_seconds.", DELAY_BUCKETS,
    ),
    Description(
        "streams_app_live_look_seconds", "histogram", (), "Duration of one poll of Redis for all open pages.",
        "Above live_server.interval: Redis is busy, or far away.", WORK_BUCKETS,
    ),
    Description(
        "streams_app_live_refused_total", "counter", ("reason",),
        "Rejected requests for live views: token, page-not-in-token, origin, host, view, views, page, tab, full or redis; "
        "stalled: connections of browsers that read nothing.",
        "token: sessions end, or the secrets differ; full: see live_connections; origin, host: add it to live_server.origins or "
        "live_server.hosts.",
    ),
    Description(
        "streams_app_journal_entries_total", "counter", ("journal",), "Events stored in a journal.",
        "Zero while lag_records rises: see /health/ready and the log of the worker.",
    ),
    Description(
        "streams_app_journal_bytes", "gauge", ("journal", "form"),
        "Size of a journal in Redis in bytes, raw or packed (compressed), in the partitions of this worker.",
        "raw near max_bytes: compression does not keep up, see compressed_bytes_total.",
    ),
    Description(
        "streams_app_journal_segments", "gauge", ("journal", "form"),
        "Segments of a journal, raw, packed or gap (a range that retention had removed), in the partitions of this worker.",
        "raw rises: compression does not keep up; raise compress_rate, or add workers.",
    ),
    Description(
        "streams_app_journal_oldest_seconds", "gauge", ("journal",),
        "How far back a journal reaches: the minimum over the partitions of this worker.",
        "Below keep although the journal is older: max_bytes limits it, see dropped_segments_total.",
    ),
    Description(
        "streams_app_journal_lag_records", "gauge", ("journal",), "Records not yet in a journal.",
        "Rising: readers wait; add workers up to the number of partitions, or check Redis.",
    ),
    Description(
        "streams_app_journal_dropped_segments_total", "counter", ("journal", "cause"),
        "Segments that were removed, by cause: age (older than keep), size (beyond the share of max_bytes) or memory (Redis was "
        "full).",
        "size: raise max_bytes, or accept a shorter history; memory: raise maxmemory.",
    ),
    Description(
        "streams_app_journal_compressed_bytes_total", "counter", ("journal", "side"),
        "Bytes of segments before and after they were compressed.",
        "Constant while raw segments rise: the log of the worker has the cause.",
    ),
    Description(
        "streams_app_journal_gap_offsets_total", "counter", ("journal",),
        "Offsets that retention removed from the source before they were stored; readers receive them as gaps.",
        "Keep the source for longer than an outage, and the workers running.",
    ),
    Description(
        "streams_app_journal_unkeyed_total", "counter", ("journal", "reason"),
        "Events stored without a key: not-json, not-an-object, wrong-format, unknown-schema, no-key or key-too-large.",
        "Check the producers, or journals.NAME.key.",
    ),
    Description(
        "streams_app_journal_damaged_blocks_total", "counter", ("journal",),
        "Blocks that could not be decoded for compression.",
        "Above 0: the memory or the disk of Redis is damaged, or another program writes there.",
    ),
    Description(
        "streams_app_assigned_partitions", "gauge", ("consumer_group", "topic"),
        "Partitions of a topic that a consumer group assigned to this worker in its last rebalance.",
        "0 in some workers: more workers than partitions. The sum below the number of partitions: a rebalance is in progress.",
    ),
    Description(
        "streams_app_rebalances_total", "counter", ("consumer_group", "change"),
        "Rebalances of a consumer group, by what they changed for this worker: joined (the first), gained, lost, moved (both) or "
        "same.",
        "A few at each start and stop of a worker are normal; a steady rate is not: a member is removed again and again, see the "
        "logs of the workers.",
    ),
    Description(
        "streams_app_last_rebalance_timestamp_seconds", "gauge", ("consumer_group", "change"),
        "Time of the last rebalance of a consumer group with this change, in seconds since 1970.",
        "Compare it with starts and stops of workers.",
    ),
    Description(
        "streams_app_waiting_for", "gauge", ("subscriber", "what"),
        "1 while a subscriber waits for redis, redis-memory, schema-registry, broker, dead-letters (their topic does not "
        "acknowledge), window (too many unfinished events), note (full commit metadata) or operator (a command is required). "
        "With yes, a subscriber continues without redis.",
        "redis-memory: raise maxmemory; redis, broker: see up; schema-registry: see the log. window: 1 for long is "
        "back-pressure; note: see note_bytes. dead-letters, operator: the remarks of /health/ready name the topic or the "
        "command.",
    ),
    Description(
        "streams_app_script_seconds", "histogram", ("script",), "Duration of one Redis script: wait for its turn, and reply.",
        "Above 0.02 at the median: Redis is busy or far away, or the worker has more requests than the 16 that it sends at once: "
        "add workers.", WORK_BUCKETS,
    ),
    Description(
        "streams_app_produce_seconds", "histogram", ("fold",), "Duration of producing a batch of records, reply included.",
        "Rising: the broker is slow.", WORK_BUCKETS,
    ),
    Description(
        "streams_app_open_transaction_records", "gauge", ("reader", "topic"),
        "Offsets of a topic that an open transaction hides from a reader (folds, a subscriber, read store, live view or journal), "
        "in the partitions of this worker.",
        "Above 0 now and then: a producer works with transactions. For long: see open_transaction_seconds.",
    ),
    Description(
        "streams_app_open_transaction_seconds", "gauge", ("reader", "topic"), "Time since the oldest of these was first seen.",
        "Rising: its producer has neither committed nor aborted it; `kafka-transactions.sh find-hanging` names it.",
    ),
    Description(
        "streams_app_up", "gauge", ("component",), "1 while kafka, redis or a store (read_store.NAME) answers, otherwise 0.",
        "0: the log has the cause and the time; lag, open groups and overdue keep their last known values and continue to rise.",
    ),
    Description(
        "streams_app_not_ready", "gauge", ("cause",),
        "1 while the worker is not ready, by the cause in /health/ready: start, claim, kafka, redis, redis-memory, "
        "schema-registry, topic (missing, or not acknowledging), subscriber, clock-skew, stuck, lifespan, loop (it hangs), "
        "poll (of a hub, failed), end (about to end) or other.",
        "/health/ready has the details; the action for each is in docs/reference/health.md.",
    ),
    Description(
        "streams_app_redis_refuses_writes", "gauge", ("cause",),
        "1 while Redis answers but rejects writes: memory (full), read-only (it is a replica) or other; checked every second.",
        "memory: raise maxmemory; read-only: name the primary; other: check the log and the disk of Redis.",
    ),
    Description(
        "streams_app_build_info", "gauge", ("version", "app_id"),
        "Always 1; the labels are the version and the application of this worker.",
        "More than one for long: a rolling upgrade has stopped half-way.",
    ),
)  # fmt: skip
