"""Checks that a function is idempotent: it is called once, twice, and interrupted at every possible point.

A function is interrupted before each ``await`` in its own module, and before and after each publication, by an exception that it
does not expect, like the end of its process. Then it is called again, like a worker does.
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
from streams_app.testing.made import made_event

_AWAIT: Final = dis.opmap["GET_AWAITABLE"]


class Cut(BaseException):
    """Ends the attempt."""


class State(NamedTuple):
    """The effects of attempts.

    Attributes:
        observed: The state that the test observed.
        published: Id → event and payload.
    """

    observed: Any
    published: Mapping[str, tuple[str, Any]]


class AttemptCutter:
    """Counts the points at which an attempt can be interrupted, and interrupts it at one of them.

    Attributes:
        places: Descriptions of the points that were passed.
    """

    def __init__(self, at: int | None) -> None:
        """Interrupt at point number ``at``, starting at 0; None: nowhere."""
        self.places: list[str] = []
        self._at = at

    def passes(self, place: str) -> None:
        """Record a point.

        Raises:
            Cut: The attempt ends at this point.
        """
        self.places.append(place)
        if len(self.places) - 1 == self._at:
            raise Cut(place)


class Recorder:
    """A publisher that records what a function publishes."""

    def __init__(self, cutter: AttemptCutter, published: dict[str, tuple[str, Any]], *, is_async: bool) -> None:
        """Record into ``published``, for functions with and without ``async``."""
        self._cutter = cutter
        self._published = published
        self._is_async = is_async

    def publish_child(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> Coroutine[Any, Any, str]:
        """See :class:`streams_app.events.parent.Publisher`."""
        if not self._is_async:
            raise RuntimeError(UNAWAITED)  # like a worker
        return self._recording_async(parent, event, data)

    def publish_child_sync(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> str:
        """See :class:`streams_app.events.parent.Publisher`."""
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
    """See :meth:`streams_app.testing.SubscriberTester.assert_idempotent`.

    Args:
        subscriber: Whose function.
        data: Payload of the event.
        now_ms: Wall clock.
        run: Runs an attempt to its end.
        observe: Returns what is compared.
        reset: Brings that back to the beginning; None: it stays as it is.
    """

    def left(*cuts: int | None) -> tuple[State, AttemptCutter]:
        """Return the effects of attempts for one event, each interrupted somewhere or not."""
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
    for number, place in enumerate(cutter.places):
        _compare(subscriber, once, left(number, None)[0], f"cut off {place}, and called again")


def _copied(observed: object) -> object:
    """Return a copy of the observed state: a test may return the very list to which its function appends."""
    try:
        copied = copy.deepcopy(observed)
    except (TypeError, copy.Error):  # such as rows of a database, which do not change afterwards
        return observed
    # Without its own ==, each copy of an object would be another state.
    return copied if copied == observed else observed


async def _attempt(function: Callable[[Any], Any], event: Any, cutter: AttemptCutter, *, is_async: bool) -> None:
    """Call a function once.

    Raises:
        Cut: The attempt was interrupted.
    """
    if is_async:
        await _traced(function(event), _tracer(function, cutter))
    else:
        call_inline(function, event)


@contextmanager
def _cutting() -> Iterator[None]:
    """Run an attempt that is interrupted: its errors, and coroutines that were not awaited, are not reported."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        with suppress(Cut, Exception):
            yield
        # Collected here, where warnings are suppressed, and not at the next garbage collection.
        gc.collect()


def _compare(subscriber: Subscriber[Any, Any, Any], expected: State, found: State, when: str) -> None:
    """Compare effects.

    Raises:
        AssertionError: They differ; the message has a diff.
    """
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
    """Create a trace function that records each ``await`` in the module of a function."""
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
    """Await with a trace function that is set only during the steps of this coroutine."""
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
