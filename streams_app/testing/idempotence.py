"""Checks that the function of a subscriber is idempotent.

The effects of one call are compared with those of two calls, and with those of an interrupted call that is followed by a complete
one. A call can be interrupted at each ``await`` in the module of the function, and before and after each publication. An
exception that the function does not expect interrupts it, to simulate a crash.
"""

from __future__ import annotations

import asyncio
import copy
import difflib
import dis
import gc
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pprint import pformat
from types import CodeType, FrameType, coroutine
from typing import Any, Final, NamedTuple

from streams_app.events.declaration import Event, M, T
from streams_app.events.parent import UNAWAITED, Parent
from streams_app.subscribers.declaration.subscriber import Subscriber
from streams_app.subscribers.execution.thread_executor import call_inline
from streams_app.testing.made_events import made_event

_AWAIT: Final = dis.opmap["GET_AWAITABLE"]


class Cut(BaseException):
    """Raised within the function of a subscriber, to interrupt the attempt that runs it.

    It is a ``BaseException``, so that an ``except Exception`` in the function does not catch it.
    """


class State(NamedTuple):
    """Effects of the attempts for one event: the result of ``observe()``, and key and payload of the published events by id."""

    observed: Any
    published: Mapping[str, tuple[str, Any]]


class AttemptCutter:
    """Counts the points at which an attempt can be interrupted, and interrupts it at point ``at``, counted from 0; None: nowhere.

    Attributes:
        points: Descriptions of the points that the attempt has reached, in order.
    """

    def __init__(self, at: int | None) -> None:
        self.points: list[str] = []
        self._at = at

    def passes(self, point: str) -> None:
        """Record that the attempt has reached a point; raise :class:`Cut` if it must be interrupted there."""
        self.points.append(point)
        if len(self.points) - 1 == self._at:
            raise Cut(point)


class Recorder:
    """Publisher that records the events of a function in ``published`` instead of sending them."""

    def __init__(self, cutter: AttemptCutter, published: dict[str, tuple[str, Any]], *, is_async: bool) -> None:
        self._cutter = cutter
        self._published = published
        self._is_async = is_async

    def publish_child(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> Coroutine[Any, Any, str]:
        if not self._is_async:
            raise RuntimeError(UNAWAITED)  # like a worker
        return self._recording_async(parent, event, data)

    def publish_child_sync(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> str:
        return self._record(parent, event, data)

    async def _recording_async(self, parent: Parent, event: Event[Any, Any], data: Any) -> str:
        return self._record(parent, event, data)

    def _record(self, parent: Parent, event: Event[Any, Any], data: Any) -> str:
        event_id = parent.child_id(event.key)
        self._cutter.passes(f"before {event.key} was published")
        self._published[event_id] = (event.key, data)
        self._cutter.passes(f"after {event.key} was published")
        return event_id


def assert_idempotent(
    subscriber: Subscriber[Any, Any, Any],
    data: Any,
    now_ms: Callable[[], int],
    run: Callable[[Coroutine[Any, Any, None]], None],
    observe: Callable[[], object],
    reset: Callable[[], object] | None,
) -> None:
    """Check that the function of a subscriber is idempotent, see :meth:`.SubscriberTester.assert_idempotent`."""

    def left(*cuts: int | None) -> tuple[State, AttemptCutter]:
        """Reset the state, and make an attempt for each item of ``cuts``, the point of its interruption or None.

        Return the effects of all attempts together, and the cutter of the last attempt.
        """
        if reset is not None:
            reset()
        published: dict[str, tuple[str, Any]] = {}
        cutter = AttemptCutter(None)
        for number, cut in enumerate(cuts, 1):
            cutter = AttemptCutter(cut)
            recorder = Recorder(cutter, published, is_async=subscriber.is_async)
            received = made_event(subscriber, data, number, now_ms(), recorder)
            with nullcontext() if cut is None else _cutting():
                run(_attempt(subscriber.function, received, cutter, is_async=subscriber.is_async))
        return State(_copied(observe()), published), cutter

    untouched, _ = left()
    once, cutter = left(None)
    if reset is not None and once == untouched:
        raise AssertionError(f"{subscriber.name} publishes nothing and changes nothing that observe() returns: nothing is compared")
    second, _ = left(None) if reset is None else left(None, None)
    _compare(subscriber, once, second, "called twice")
    for number, point in enumerate(cutter.points):
        _compare(subscriber, once, left(number, None)[0], f"cut off {point}, and called again")


def _copied(observed: object) -> object:
    """Return a copy of the observed state, because a test may return the same list to which its function appends."""
    try:
        copied = copy.deepcopy(observed)
    except (TypeError, copy.Error):  # such as rows of a database, which do not change afterwards
        return observed
    # Objects without __eq__ differ from their copies, so they are compared without a copy.
    return copied if copied == observed else observed


async def _attempt(function: Callable[[Any], Any], event: Any, cutter: AttemptCutter, *, is_async: bool) -> None:
    """Call a function once. If it is ``async``, the call can be interrupted at each ``await`` in the module of the function."""
    if is_async:
        await _traced(function(event), _tracer(function, cutter))
    else:
        call_inline(function, event)


@contextmanager
def _cutting() -> Iterator[None]:
    """Suppress the errors of an interrupted attempt, and the warnings about coroutines that the attempt has not awaited."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            with suppress(Cut, Exception):
                yield
            # Collected here, where warnings are suppressed. As none was collected since, all coroutines of the attempt are in the
            # youngest generation; a full collection would visit every object of a test run.
            gc.collect(0)
    finally:
        if is_collecting:
            gc.enable()


def _compare(subscriber: Subscriber[Any, Any, Any], expected: State, found: State, when: str) -> None:
    """Raise AssertionError with a diff if the effects of several attempts differ from those of one call of the function."""
    pairs = [
        ("another state", expected.observed, found.observed),
        ("other publications", expected.published, found.published),
    ]
    for what, once, then in pairs:
        if once != then:
            lines = difflib.ndiff(pformat(once).splitlines(), pformat(then).splitlines())
            diff = "\n".join(["- called once", f"+ {when}", *lines])
            raise AssertionError(f"{subscriber.name} is not idempotent: {when} it leaves {what}\n{diff}")


def _tracer(function: Callable[[Any], Any], cutter: AttemptCutter) -> Callable[[FrameType, str, Any], Any]:
    """Create a trace function that reports each ``await`` in the module of ``function`` to a cutter."""
    module, codes = function.__globals__, dict[CodeType, bytes]()

    def in_frame(frame: FrameType, kind: str, _: Any) -> Any:
        if kind == "opcode":
            code = codes.get(frame.f_code) or codes.setdefault(frame.f_code, frame.f_code.co_code)
            if code[frame.f_lasti] == _AWAIT:
                cutter.passes(f"at an await of {frame.f_code.co_name}, line {frame.f_lineno}")
        return in_frame

    def called(frame: FrameType, _: str, __: Any) -> Any:
        if frame.f_globals is not module:
            return None
        frame.f_trace_opcodes = True
        return in_frame

    return called


@coroutine
def _traced(work: Awaitable[Any], tracer: Callable[[FrameType, str, Any], Any]) -> Generator[Any, Any, Any]:
    """Await ``work`` with a trace function. The trace function is set only while ``work`` runs, and not while other tasks run."""
    steps = work.__await__()
    error: BaseException | None = None
    while True:
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            waited_for = steps.send(None) if error is None else steps.throw(error)
        except StopIteration as ended:
            return ended.value
        finally:
            sys.settrace(before)
        error = None
        try:
            yield waited_for
        except asyncio.CancelledError as cancelled:
            error = cancelled
