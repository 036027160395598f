"""What a fold reads of an event besides its group and its changed names (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams_app.codec import at_path
from streams_app.fold import Fold


def closing_rule(fold: Fold) -> Callable[[Any], bool] | None:
    """Return a function that says whether an event closes its group; None if no event does.

    A number equals any number of the same value, and no boolean. A field that is missing, null, an array or an object has no value.
    """
    rule = fold.close_when
    if rule is None or callable(rule):
        return rule
    wanted = [(path.split("."), {(type(value) is bool, value) for value in values}) for path, values in rule.items()]

    def closes(event: Any) -> bool:
        for path, values in wanted:
            value = at_path(event, path)
            if type(value) in (str, bool, int, float) and (type(value) is bool, value) in values:
                return True
        return False

    return closes
