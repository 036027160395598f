"""Runs the demo, from the start of the servers to the final check."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import aiohttp
from rich.console import Console

from streams_app.clock import Clock, SystemClock
from streams_app.delivery.producer import OutgoingRecord
from streams_app.demo.explaining import HOT_KEY, Explanation, explained, follow_command
from streams_app.demo.fields import fault_of
from streams_app.demo.kept import FirstEvents, program
from streams_app.demo.load import Load, LoadEvents, Update
from streams_app.demo.observer import Observer, WorkerGauges, scrape
from streams_app.demo.recomputing import prepare, recomputed, undone
from streams_app.demo.replay import TIME_FIELDS, EventReplay
from streams_app.demo.stage import (
    FOLD,
    PARTITIONS,
    STORE,
    ConsoleProcess,
    HubProcess,
    Servers,
    WorkerProcess,
    demo_fold,
    demo_settings,
    servers,
    stage_folder,
    topics_and_tables,
)
from streams_app.demo.view import Outcome, Snapshot, View, check_lines, check_text, story_lines, table_lines
from streams_app.demo.write_side import WriteSide, differences
from streams_app.errors import ConfigurationError, InternalError, TryAgainError
from streams_app.fold import Fold
from streams_app.formatting import counted, shown, span
from streams_app.kafka.producer import AckedProducer
from streams_app.settings import Settings

STEP_SECONDS: Final = 0.05
SAMPLE_EVERY_MS: Final = 500
STALLED_MS: Final = 60_000
"""Time without any progress after which the demo no longer waits for the last records. The check at the end then fails."""

SHOWN_DIFFERENCES: Final = 10
HOT_PAGE: Final = f"/?page={HOT_KEY}"
"""Path of the live page that shows an account that is always active."""

CONSUMERS: Final = """\
  read store  SQLite: the changed values of each folded record, recomputed
  subscriber  recomputes a score for each folded record; every tenth fails at first, on purpose, and is retried
  journal     keeps each raw event by its account"""
"""Lines for display about the components of the worker other than the fold."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ``streams-app demo``; 0 ``seconds`` or ``events`` are no limit.

    Attributes:
        rate: Mean number of events per second; of a file, for events without a time.
        bootstrap: Address of the user's broker; None: an embedded broker is started.
        redis: URL of the user's Redis; None: an embedded Redis is started.
        replay: File of JSON lines whose events are produced; None: the load is generated.
        is_verbose: Whether all figures are shown, instead of a few sentences.
    """

    seconds: float
    events: int
    rate: float
    groups: int
    bootstrap: str | None
    redis: str | None
    replay: Path | None
    group_key: str
    changed: str
    is_verbose: bool = False


def run(options: Options, console: Console) -> None:
    """Run the demo, from the start of the servers to the final check.

    Raises:
        ConfigurationError: No event of the file can be folded (exit code 1).
        InternalError: The check or the worker failed (exit code 70).
        TryAgainError: A server does not answer (exit code 75).
        KeyboardInterrupt: A signal stopped the demo; its servers were stopped, and its files were removed.
    """
    view = View(console, group_field=options.group_key, changed=options.changed, is_verbose=options.is_verbose)
    source = open_source(options)
    interruption = Interruption()
    with interruption.handled(), stage_folder() as folder:
        view.step("starting broker and Redis ...")
        with servers(options.bootstrap, options.redis, folder) as on:
            config, settings = demo_settings(on, folder, group_key=options.group_key, changed=options.changed)
            fold = fold_text(settings.fold(FOLD))
            about = [f"  pace        {source.rate_text}"] if isinstance(source, EventReplay) else []
            about.append(f"  broker      {on.broker}\n  redis       {on.redis}\n  fold        {fold}\n{CONSUMERS}")
            try:
                asyncio.run(_play(options, view, source, folder, on, settings, config, interruption, about))
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None
            finally:
                interruption.begin_exit()


def open_source(options: Options) -> LoadEvents:
    """Return the events to produce: those of the file that ``--replay`` names, or else a generated load.

    Raises:
        ConfigurationError: The file cannot be read, or none of its first events can be folded.
    """
    if options.replay is None:
        return Load(groups=options.groups, rate=options.rate)
    fold = demo_fold(group_key=options.group_key, changed=options.changed)
    replay = EventReplay(options.replay, group_key=options.group_key, rate=options.rate)
    if fault := fault_of(replay.head, fold, TIME_FIELDS):
        raise ConfigurationError([f"--replay {options.replay}: {replay.fault or fault}"])
    return replay


def fold_text(fold: Fold) -> str:
    """Describe the group key, quiet period and max_hold of the fold, for the first lines of the demo."""
    group = ", ".join(map(shown, fold.group_fields))
    return f"by {group}, quiet period {span(fold.quiet_period_ms)}, max_hold {span(fold.max_hold_ms)}"


async def _play(*what: Any) -> None:
    # Created here, because the clients of the demo need a running loop.
    await _Demo(*what).run()


class _Demo:
    def __init__(
        self,
        options: Options,
        view: View,
        source: LoadEvents,
        folder: Path,
        on: Servers,
        settings: Settings,
        config: Path,
        interruption: Interruption,
        about: Sequence[str],
    ) -> None:
        self._options = options
        self._view = view
        self._source = source
        self._folder = folder
        self._on = on
        self._settings = settings
        self._config = config
        self._interruption = interruption
        self._about = about
        self._clock: Clock = SystemClock()
        self._fold = settings.fold(FOLD)
        self._producer = AckedProducer(settings.kafka, client_id="demo-load")
        self._observer = Observer(settings, self._fold)
        self._write_side = WriteSide(folder / "write.db", self._fold, settings.limits)
        prepare(folder)
        self._kept = FirstEvents(folder, group_key=options.group_key, changed=options.changed)
        self._gauges = WorkerGauges()
        self._enough = asyncio.Event()
        self._is_loading = False
        self._is_asked_to_end = False
        self._is_stopped_at_once = False
        self._sent = self._sent_bytes = 0
        self._explained: Explanation | None = None
        self._begin_ms = self._began_ms = 0
        self._load_ms = 1
        self._rate_seen: tuple[int, int, float] = (0, 0, 0.0)

    async def run(self) -> None:
        self._listen()
        try:
            console = ConsoleProcess(self._config, self._folder)
            try:
                await console.ready(self._clock)
                self._view.step(f"  console     {console.url}  shows all of it in a browser")
                await self._perform()
            finally:
                self._interruption.begin_exit()
                await asyncio.to_thread(console.stop, at_once=self._is_stopped_at_once)
            self._summary()
        finally:
            self._write_side.close()
            self._kept.close()

    async def _perform(self) -> None:
        """Play the load with a worker and a hub, and stop both at the end."""
        if self._options.is_verbose:
            for text in self._about:
                self._view.step(text)
        async with topics_and_tables(self._settings, self._on):
            self._view.step("starting a worker ...")
            worker = WorkerProcess(self._config, self._folder)
            hub = HubProcess(self._config, self._folder)
            try:
                await self._use(worker, hub)
            finally:
                self._interruption.begin_exit()
                await self._observer.stop()
                await self._producer.stop()
                stops = (asyncio.to_thread(process.stop, at_once=self._is_stopped_at_once) for process in (worker, hub))
                await asyncio.gather(*stops)

    async def _use(self, worker: WorkerProcess, hub: HubProcess) -> None:
        await worker.ready(self._clock)
        await hub.ready(self._clock)
        page = "/" if self._options.replay else HOT_PAGE
        self._view.step(f"  live page   {hub.url}{page}")
        if self._options.is_verbose:
            self._view.step(f"  metrics     {worker.url}/metrics")
            follow = follow_command(self._config, "KEY" if self._options.replay else HOT_KEY)
            self._view.command("  one account ", follow, "  (in a second terminal)")
        self._view.step("")
        await self._observer.start(PARTITIONS)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            with self._view.running():
                self._is_loading = True
                await self._play(worker, session)
                await self._drain(worker, session)
                if (largest := self._observer.seen.largest) is not None:
                    self._explained = await explained(self._settings, largest)

    def _listen(self) -> None:
        """Handle signals in the event loop: the first Ctrl-C ends the load, and any other signal stops the demo."""
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        assert main is not None  # a coroutine always runs in a task

        def interrupted(number: int) -> None:
            if self._interruption.is_exiting:  # the signal arrived just before the exit began, which must not be interrupted
                return
            if number == signal.SIGINT and self._is_loading and not self._is_asked_to_end:
                self._is_asked_to_end = True
                self._enough.set()
                self._view.step("finishing, Ctrl-C again to stop at once")
            else:
                self._interruption.begin_exit()
                self._is_stopped_at_once = True
                main.cancel()

        self._interruption.listen(lambda number: loop.call_soon_threadsafe(interrupted, number))

    async def _play(self, worker: WorkerProcess, session: aiohttp.ClientSession) -> None:
        """Produce the load. The metrics of each event are written into the write database before the event is produced."""
        self._begin_ms, self._began_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        next_sample_ms = 0
        while not self._enough.is_set():
            elapsed_ms = self._clock.monotonic_ms() - self._begin_ms
            over = bool(self._options.seconds) and elapsed_ms >= self._options.seconds * 1000
            now_ms = min(elapsed_ms, self._options.seconds * 1000) if self._options.seconds else elapsed_ms
            updates = self._source.until(now_ms)
            if self._options.events:
                updates = updates[: self._options.events - self._sent]
            await self._produce(updates)
            if over or self._source.is_exhausted or (self._options.events and self._sent >= self._options.events):
                self._enough.set()
            if elapsed_ms >= next_sample_ms:
                next_sample_ms = elapsed_ms + SAMPLE_EVERY_MS
                await self._sample(worker, session, "load")
            await asyncio.sleep(STEP_SECONDS)
        self._load_ms = max(1, self._clock.monotonic_ms() - self._begin_ms)

    async def _produce(self, updates: list[Update]) -> None:
        if not updates:
            return
        self._write_side.write(updates)
        outcomes = await self._producer.send([OutgoingRecord(self._fold.source, update.key, update.value) for update in updates])
        failed = next((outcome for outcome in outcomes if outcome is not None), None)
        if failed is not None:
            raise TryAgainError(f"the broker does not accept events: {failed!r}") from failed
        self._sent += len(updates)
        self._sent_bytes += sum(len(update.key or b"") + len(update.value) for update in updates)
        self._kept.add(updates, self._began_ms)

    async def _drain(self, worker: WorkerProcess, session: aiohttp.ClientSession) -> None:
        """Wait until all events are folded, emitted, synced and handled, or until nothing has changed for a minute."""
        before, moved_ms = None, self._clock.monotonic_ms()
        while not self._is_complete():
            await self._sample(worker, session, "silence")
            seen = self._observer.seen
            gauges = self._gauges
            now = (
                seen.records,
                seen.dead_letters,
                gauges.values_written,
                gauges.read_store_lag,
                gauges.recomputed,
                gauges.journaled,
            )
            if now != before:
                before, moved_ms = now, self._clock.monotonic_ms()
            elif self._clock.monotonic_ms() - moved_ms > STALLED_MS:
                return  # the check reports what is missing
            await asyncio.sleep(SAMPLE_EVERY_MS / 1000)
        await self._sample(worker, session, "done")

    def _is_complete(self) -> bool:
        seen = self._observer.seen
        # Metrics of the subscriber lag by a second: wait for them, because the last ones stay on the screen.
        is_recorded = self._gauges.recomputed >= seen.records and self._gauges.journaled >= self._sent
        return is_recorded and seen.events + seen.dead_letters >= self._sent and not self._differences()

    def _differences(self) -> list[str]:
        expected = self._write_side.expected()
        found = differences(self._folder / "read.db", self._settings.read_store(STORE).table, expected)
        return found + undone(self._observer.ids, expected, recomputed(self._folder))

    async def _sample(self, worker: WorkerProcess, session: aiohttp.ClientSession, phase: str) -> None:
        worker.check()
        self._gauges = await scrape(session, worker.url) or self._gauges
        elapsed_ms = self._clock.monotonic_ms() - self._begin_ms
        at_ms, events, rate = self._rate_seen
        if elapsed_ms - at_ms >= 2 * SAMPLE_EVERY_MS:
            rate = (self._sent - events) * 1000 / (elapsed_ms - at_ms)
            self._rate_seen = elapsed_ms, self._sent, rate
        self._view.show(self._snapshot(elapsed_ms, phase, rate))

    def _snapshot(self, elapsed_ms: int, phase: str, rate: float) -> Snapshot:
        seen, gauges = self._observer.seen, self._gauges
        return Snapshot(
            elapsed_ms, phase, self._sent, rate, gauges.open_groups, gauges.lag_events, seen.records, seen.events,
            gauges.values_written, list(seen.latest), gauges.recomputed, gauges.retried, gauges.journaled,
            self._sent_bytes, gauges.journal_bytes,
        )  # fmt: skip

    def _summary(self) -> None:
        seen, step = self._observer.seen, self._view.step
        expected, done = self._write_side.expected(), recomputed(self._folder)
        outcome = Outcome(
            snapshot=self._snapshot(self._load_ms, "", 0.0),
            measured_on=f"{self._on.broker}; {self._on.redis}; one worker",
            redelivered=seen.redelivered,
            dead_letters=seen.dead_letters,
            done=len(done.ids),
            retried=done.retried,
            accounts=len({account for account, _ in expected}),
            values=len(expected),
        )
        if isinstance(self._source, EventReplay) and self._source.fault:
            step(f"broken off         {self._source.fault}")
        for line in table_lines(outcome) if self._options.is_verbose else story_lines(outcome):
            step(line)
        if faults := self._faults():
            listed = "\n".join(f"  {fault}" for fault in faults[:SHOWN_DIFFERENCES])
            raise InternalError(f"check FAILED, {counted(len(faults), 'difference')}:\n{listed}")
        if self._options.is_verbose:
            for line in [*check_lines(outcome), *(self._explained.lines if self._explained is not None else ())]:
                step(line)
        else:
            step(check_text(self._sent))
        self._suggest()

    def _suggest(self) -> None:
        """Save the first events, and show the command that draws their curve."""
        found = self._kept.save()
        if self._options.is_verbose:
            for line in found.lines:
                self._view.step(line)
        if found.command and self._options.is_verbose:
            self._view.command("draw the curve     ", found.command)
        elif found.command:
            self._view.command("which quiet period?  ", [*program(), "demo", "--curve"])

    def _faults(self) -> list[str]:
        """Return a sentence for each difference between what went in and what came out."""
        seen = self._observer.seen
        faults = self._differences()
        if seen.events + seen.dead_letters != self._sent:
            out = seen.events + seen.dead_letters
            faults.insert(0, f"{self._sent:,} events went in, {out:,} came out in folded records and dead letters")
        if seen.dead_letters != self._write_side.rejected:
            faults.insert(0, f"{self._write_side.rejected:,} events cannot be folded, {seen.dead_letters:,} are dead letters")
        if self._gauges.journaled != self._sent:
            faults.append(f"{self._sent:,} events went in, the journal has {self._gauges.journaled:,}")
        faults += self._explained.faults if self._explained is not None else []
        if not faults and seen.events == 0:
            faults = ["no event was folded: there is nothing that could be wrong, and nothing that was checked"]
        return faults


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Handles SIGINT, SIGTERM and SIGHUP to this process during the demo. Only the main thread may use this object."""

    def __init__(self) -> None:
        self._listener: Callable[[int], object] | None = None
        self._is_exiting = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals during the ``with`` block, and restore the former handlers after it.

        If there is no listener, the first signal raises ``KeyboardInterrupt``, and later ones are ignored.
        """
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self, listener: Callable[[int], object]) -> None:
        """Pass signals to a listener, which may be called between any two instructions of the main thread."""
        self._listener = listener

    @property
    def is_exiting(self) -> bool:
        return self._is_exiting

    def begin_exit(self) -> None:
        """Ignore signals from now on, because the exit of the demo begins."""
        self._is_exiting = True

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._is_exiting:
            return
        if self._listener is not None:
            self._listener(number)
            return
        self._is_exiting = True
        raise KeyboardInterrupt
