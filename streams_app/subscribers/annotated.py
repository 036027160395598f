"""Whether a function takes what its subscriber is given, as far as its annotation says so (pure).

A type checker finds this out, and more; who runs none would find it out by the dead letters of the first events.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

from streams_app.subscribers.received import Received


def annotation_faults(function: Callable[..., Any], payload: Any) -> list[str]:
    """What is certainly wrong with the annotation of the argument, a sentence; nothing where nobody can tell.

    Args:
        function: Takes one argument.
        payload: The payload of its event.
    """
    hint = _hint_of(function)
    called = getattr(payload, "__name__", repr(payload))
    if get_origin(hint) is Received:
        taken = get_args(hint)[0]
        if _takes(taken, payload):
            return []
        return [f"the function takes Received[{getattr(taken, '__name__', taken)}], and is given Received[{called}]"]
    if _takes(hint, Received):
        return []
    beside = ", whose .data that is" if hint is payload else ""
    return [f"the function takes {getattr(hint, '__name__', hint)}, and is given Received[{called}]{beside}"]


def _hint_of(function: Callable[..., Any]) -> Any:
    """The type that its argument has; ``Any`` where there is none, or it cannot be told."""
    if hasattr(function, "__wrapped__"):
        return Any  # the annotations are those of another function, which may be given something else
    try:
        hints = get_type_hints(function)
        (parameter,) = (name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty)
    except Exception:  # noqa: BLE001  # names that only type checkers know, and whatever annotations of the user's raise
        return Any
    return hints.get(parameter, Any)


def _takes(hint: Any, given: Any) -> bool:
    """Whether an argument of this type may be given that type; True unless both are plain classes that have nothing in common."""
    if not (isinstance(hint, type) and isinstance(given, type)) or hint is Any:
        return True
    try:
        return issubclass(given, hint)
    except TypeError:  # of protocols and typed dicts only a type checker knows
        return True
