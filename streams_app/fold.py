"""The declaration of a fold: how events are grouped, what a record contains, and when it is emitted (pure).

A declaration is immutable, and is validated when it is created; all faults are reported at once.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from streams_app.conditions import Conditions
from streams_app.envelopes import BESIDE, COLUMNS, UNAVAILABLE, Format, id_path_faults, placeholder_faults
from streams_app.formatting import Duration, milliseconds
from streams_app.quiet_period import AutoQuietPeriod, QuietPeriod, checked_quiet_period

TOPIC_NAME: Final = re.compile(r"^[a-zA-Z0-9._-]{1,249}$")
FOLD_NAME: Final = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")
RECORD_KEY: Final = "@key"

EVENTS: Final = "events"
"""Name of the field of a record that contains the events of the group, with ``keep = "events"``."""

MAX_AGGREGATED: Final = 1_500
"""Maximum of ``max_changed`` if ``keep`` is a table of aggregates, because one Redis command writes all values of a group."""

Aggregate = Literal["sum", "mean", "max", "min", "count", "first", "last"]

MAX_DEDUPED: Final = 100_000
DEFAULT_DEDUPED: Final = 10_000
"""Maximum and default of ``max_events`` with ``dedupe_by``: Redis keeps the ids of open groups."""

MAX_CLOSING_VALUES: Final = 1_000
"""Maximum number of values that ``close_when`` may list for one field."""


def _checked_keep(keep: Any) -> Any:
    if keep in ("names", "last", EVENTS):
        return keep
    if isinstance(keep, Mapping) and all(isinstance(name, str) and kind in get_args(Aggregate) for name, kind in keep.items()):
        return dict(keep)
    *kinds, last = get_args(Aggregate)
    table = f'a table of names with {", ".join(kinds)} or {last}: {{likes = "sum"}}'
    raise ValueError(f'must be "names", "last", "events", or {table}')


Scalar = StrictBool | StrictStr | StrictInt | StrictFloat


def _checked_close_when(value: Any) -> Any:
    """Check the types in the setting ``close_when``, so that no message has the types of pydantic."""
    if value is None or callable(value):
        return value
    if not isinstance(value, Mapping) or not all(isinstance(path, str) for path in value):
        raise ValueError(CLOSE_WHEN)
    for path, values in value.items():
        if not isinstance(values, list | tuple):
            raise ValueError(f"{CLOSE_WHEN}; {path!r} has no list")  # noqa: TRY004  # pydantic turns a ValueError into a validation error
        for one in values:
            if type(one) not in (str, int, float, bool):
                raise ValueError(f"{CLOSE_WHEN}; {path!r} lists {one!r}, which is no string, number or boolean")
            if type(one) is float and not math.isfinite(one):
                raise ValueError(f"{path!r} lists {one}, which no event can have")
    return value


CLOSE_WHEN: Final = 'must be a table of fields, each with a list of values: {status = ["done", "cancelled"]}'


class Fold(BaseModel):
    """Declaration of a fold: how events are grouped, what a record contains, and when it is emitted.

    In Python, ``group_key`` and ``changed`` may also be functions of the event. ``group_key`` returns a string, a number or a
    boolean; ``changed`` returns a name, several names, or a mapping from each name to its value. If such a function changes, open
    groups are not converted: rename the fold, or flush it first. ``docs/reference/folds.md`` describes how other changes
    affect open groups.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the fold, used in fold ids, metrics and the default names of topics."""
    source: str
    """Topic of raw events, keyed by the group key."""
    output: str = ""
    """Topic of folded records."""
    dead_letters: str = ""
    """Topic of rejected events."""
    group_key: str | tuple[str, ...] | Callable[[Any], Any]
    """A field, a dotted path, a list of them, or ``@key`` for the record key."""
    changed: str | Callable[[Any], Any]
    """Field or dotted path with the changed names: the keys of an object, the items of an array, or a string. Default with
    ``format = "debezium"``: the changed columns. Omitted with ``keep = "events"``."""
    keep: Annotated[Literal["names", "last", "events"] | dict[str, Aggregate], BeforeValidator(_checked_keep)] = "names"
    """``names``; ``last``: also the last value of each name; a table of names with ``sum``, ``mean``, ``max``, ``min``, ``count``,
    ``first`` or ``last``, in which ``"*"`` stands for all other names; or ``events``: the events themselves, in order."""
    fields: tuple[str, ...] = ()
    """With ``keep = "events"``: fields or dotted paths of the events that are kept; empty: the whole events."""
    max_bytes: int = Field(500_000, ge=100, le=700_000)
    """Maximum size of the events of one fold of a group with ``keep = "events"``: bytes of JSON, plus one per event. An event that
    would exceed this size begins another fold; an event that is larger by itself is rejected."""
    quiet_period: Annotated[timedelta | QuietPeriod | AutoQuietPeriod, BeforeValidator(checked_quiet_period)]
    """X: a group is due if it has had no event for longer than this. With a table
    ``{field = "wait", default = "15m", at_most = "1h"}``, the last event of the group determines this period. With
    ``{auto = "knee", at_least = "10s", at_most = "1h"}``, it sets itself."""
    max_hold: Duration = timedelta(hours=6)
    """M: a group is due when it has been open for this long, even if it is never quiet."""
    max_events: int = Field(0, ge=0, le=2**40)
    """Maximum number of events in one fold of a group; 0: no limit. With ``dedupe_by``, 1 to 100000, and 10000 by default."""
    max_changed: int = Field(10_000, ge=1, le=100_000)
    """Maximum number of names in one fold of a group; an event that would exceed this number begins another fold. With a table as
    ``keep``, at most 1500, which is then the default."""
    close_when: Annotated[dict[str, tuple[Scalar, ...]] | Callable[[Any], Any] | None, BeforeValidator(_checked_close_when)] = None
    """A table with a list of values for each field or dotted path, for example ``{status = ["done", "cancelled"]}``: an event with
    one of the values is added to its group and closes the group at once. In Python, also a function from the event to a boolean."""
    leading: bool = False
    """Whether the first event of a quiet group makes a record at once, with the reason ``leading``; later events are folded."""
    backlog: Literal["merge", "sessions"] = "merge"
    """Behaviour while the worker catches up. ``merge``: quiet groups stay open; ``sessions``: groups close exactly at gaps of
    record time."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where the fold begins at its first start: with the oldest events (``earliest``), or with new events (``latest``). A partition
    that is added later is read from its beginning."""
    tombstones: Literal["dead-letter", "ignore"] = "dead-letter"
    """Whether events with an empty value become dead letters (``dead-letter``) or are skipped (``ignore``)."""
    format: Format = "json"
    """``json``; ``debezium`` for change events of Debezium, whose row is the event; ``cloudevents`` for CloudEvents in structured
    mode, whose ``data`` is the event; ``avro``, ``protobuf`` or ``json-schema`` for values framed by a schema registry."""
    unavailable_value: str = UNAVAILABLE
    """With ``format = "debezium"``: the property ``unavailable.value.placeholder`` of the connector, if it was changed. Debezium
    sends it for a large value that an update did not change."""
    only: Conditions = Field({})
    """Field or dotted path → value or list of values: only events in which each of these fields has one of its values are folded;
    others are skipped."""
    dedupe_by: str | Callable[[Any], Any] | None = None
    """Field or dotted path with the id of an event, or ``header:NAME``: an event whose id is in its open group already, because the
    producer has sent it twice, is ignored. In Python, also a function from the event to the id."""
    decode: Callable[[bytes], Any] | None = None
    """Python only: a function from the bytes of the value to the event, usually a dict; none: JSON."""
    source_filter: Callable[[Any], Any] | None = None
    """Python only: a function from the event to a boolean; events with a false result are skipped."""
    group_as: str | None = None
    """If ``group_key`` is a function: name of the field of records that contains its result; none: ``key``."""
    changed_as: str | None = None
    """If ``changed`` is a function, or means the changed columns of Debezium: name of the field of records that contains the
    changed names; none: ``changed``."""

    if TYPE_CHECKING:
        # For type checkers: a field accepts more types than it holds after validation.
        def __init__(
            self,
            *,
            name: str,
            source: str,
            group_key: str | Sequence[str] | Callable[[Any], Any],
            quiet_period: str | timedelta | QuietPeriod | AutoQuietPeriod | Mapping[str, Any],
            changed: str | Callable[[Any], Any] = ...,
            output: str = ...,
            dead_letters: str = ...,
            keep: Literal["names", "last", "events"] | Mapping[str, Aggregate] = ...,
            fields: Sequence[str] = ...,
            max_bytes: int = ...,
            max_hold: str | timedelta = ...,
            max_events: int = ...,
            max_changed: int = ...,
            close_when: Mapping[str, Sequence[str | int | float | bool]] | Callable[[Any], Any] | None = ...,
            leading: bool = ...,
            backlog: Literal["merge", "sessions"] = ...,
            start: Literal["earliest", "latest"] = ...,
            tombstones: Literal["dead-letter", "ignore"] = ...,
            format: Format = ...,
            unavailable_value: str = ...,
            only: Mapping[str, str | float | bool | Sequence[str | float | bool]] = ...,
            dedupe_by: str | Callable[[Any], Any] | None = ...,
            decode: Callable[[bytes], Any] | None = ...,
            source_filter: Callable[[Any], Any] | None = ...,
            group_as: str | None = ...,
            changed_as: str | None = ...,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("source"), str):
            values = dict(values)
            values["output"] = values.get("output") or f"{values['source']}.{values.get('name', '')}"
            values["dead_letters"] = values.get("dead_letters") or f"{values['source']}.dead"
            if isinstance(values.get("keep"), Mapping):
                values.setdefault("max_changed", MAX_AGGREGATED)
            if values.get("dedupe_by") is not None:
                values.setdefault("max_events", DEFAULT_DEDUPED)
            if values.get("keep") == EVENTS:
                values.setdefault("changed", "")
            elif values.get("format") == "debezium":
                values.setdefault("changed", COLUMNS)
        return values

    @model_validator(mode="after")
    def _check(self) -> Fold:
        faults = [
            *self._name_faults(), *self._group_faults(), *self._alias_faults(), *self._keep_faults(), *self._time_faults(),
            *self._close_when_faults(), *self._only_faults(), *self._dedupe_faults(),
        ]  # fmt: skip
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _name_faults(self) -> list[str]:
        faults = []
        if not FOLD_NAME.fullmatch(self.name):
            faults.append(f"the name {self.name!r} may hold a-z, 0-9, _ and -, at most 63")
        for label, topic in (("source", self.source), ("output", self.output), ("dead_letters", self.dead_letters)):
            if not TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
                faults.append(f"{label} = {topic!r} is not a Kafka topic name (a-z A-Z 0-9 . _ -, at most 249)")
        if len({self.source, self.output, self.dead_letters}) < 3:  # noqa: PLR2004  # three topics
            faults.append("source, output and dead_letters must be three different topics")
        return faults

    def _group_faults(self) -> list[str]:
        faults = []
        fields = self.group_fields
        if not fields or len(set(fields)) != len(fields):
            faults.append("group_key must name at least one field, each once")
        if RECORD_KEY in fields:
            faults.append("@key cannot be combined with fields")
        if any(not all(path.split(".")) for path in fields):
            faults.append("group_key holds an empty path")
        for path in fields if self.format == "json" else ():
            if path.startswith(BESIDE) and path != RECORD_KEY:
                near = ", did you mean '@key'?" if difflib.get_close_matches(path, [RECORD_KEY]) else ""
                faults.append(f"{path!r} begins with @ and is not @key, the record key{near}")
        if "fold" in fields or self.changed_field == "fold":
            faults.append("a field named 'fold' would clash with the record's own")
        if self.changed_field in fields:
            faults.append(f"the changed field {self.changed_field!r} cannot also be a group field")
        if not self.changed_field:
            faults.append('changed must name a field, unless keep = "events"')
        elif isinstance(self.changed, str) and not self.keeps_events and not all(self.changed.split(".")):
            faults.append("changed holds an empty path")
        return faults

    def _alias_faults(self) -> list[str]:
        faults = placeholder_faults(self.format, self.unavailable_value)
        for label, alias, taken in (("group_as", self.group_as, self.group_key), ("changed_as", self.changed_as, self.changed)):
            if alias is not None and not callable(taken) and taken != COLUMNS:
                faults.append(f"{label} = {alias!r} is only for a function: a field keeps its name, the record key is 'key'")
            elif alias == "":
                faults.append(f"{label} = '' is not a name")
        if self.decode is not None and self.format != "json":
            faults.append(f"format = {self.format!r} and decode exclude each other: both say how the value is read")
        return faults

    def _keep_faults(self) -> list[str]:
        faults = []
        if self.keeps_events:
            if self.changed:
                faults.append('changed does not go with keep = "events": the record has the events, not the names')
            faults += ["fields holds an empty path" for path in self.fields if not all(path.split("."))]
            if len(set(self.fields)) != len(self.fields):
                faults.append("fields must name each field once")
        else:
            fields = type(self).model_fields
            given = [name for name in ("fields", "max_bytes") if getattr(self, name) != fields[name].default]
            faults += [f'{name} is only for keep = "events"' for name in given]
        if self.aggregates is not None:
            if not self.aggregates:
                faults.append("keep must name at least one aggregate")
            if self.max_changed > MAX_AGGREGATED:
                faults.append(f"max_changed must be at most {MAX_AGGREGATED} if keep is a table")
        return faults

    def _time_faults(self) -> list[str]:
        faults = ["quiet_period must be at least 1ms"] if self.quiet_period_ms < 1 else []
        if not isinstance(self.quiet_period, timedelta):
            faults += self.quiet_period.faults()
        if self.max_hold_ms < self.quiet_period_ms and "max_hold" in self.model_fields_set:
            faults.append("max_hold must not be shorter than quiet_period")
        elif self.max_hold_ms < self.quiet_period_ms:
            faults.append("quiet_period is longer than max_hold, which is 6h by default: set max_hold, too")
        return faults

    def _close_when_faults(self) -> list[str]:
        if self.close_when is None or callable(self.close_when):
            return []
        faults = [] if self.close_when else ["close_when must name at least one field"]
        for path, values in self.close_when.items():
            if not all(path.split(".")):
                faults.append(f"close_when holds an empty path: {path!r}")
            if not 0 < len(values) <= MAX_CLOSING_VALUES:
                faults.append(f"close_when.{path} must list 1 to {MAX_CLOSING_VALUES} values")
        return faults

    def _only_faults(self) -> list[str]:
        beside = [field for field in self.only if field.startswith(BESIDE)] if self.format == "json" else []
        return [f"only: {field!r} begins with @, which no field of plain JSON may: name a field of the event" for field in beside]

    def _dedupe_faults(self) -> list[str]:
        if self.dedupe_by is None:
            return []
        faults = [] if callable(self.dedupe_by) else id_path_faults(self.format, self.dedupe_by)
        if not 1 <= self.max_events <= MAX_DEDUPED:
            faults.append(f"max_events must be 1 to {MAX_DEDUPED} with dedupe_by: Redis keeps an id of each event of an open group")
        if self.leading:
            faults.append("dedupe_by does not go with leading: after a loss of Redis, the id of an early record would not be known")
        return faults

    def __hash__(self) -> int:
        # By the name, which is unique in an application: some settings may be tables, which have no hash.
        return hash(self.name)

    @property
    def group_fields(self) -> tuple[str, ...]:
        """Names of the fields that contain the group key in a folded record."""
        if callable(self.group_key):
            return ("key" if self.group_as is None else self.group_as,)
        if self.group_key == RECORD_KEY:
            return ("key",)
        return (self.group_key,) if isinstance(self.group_key, str) else self.group_key

    @property
    def changed_field(self) -> str:
        """Name of the field that contains the changed names or, with ``keep = "events"``, the events in a folded record."""
        if self.keeps_events:
            return EVENTS
        if callable(self.changed) or self.changed == COLUMNS:
            return "changed" if self.changed_as is None else self.changed_as
        return self.changed

    @property
    def changed_path(self) -> str:
        """Dotted path of the changed names in events; "" if a function returns them, and with ``keep = "events"``."""
        return "" if callable(self.changed) else self.changed

    @property
    def is_by_functions(self) -> bool:
        """Whether functions of the user decode or filter events, or read parts of them."""
        own = isinstance(self.quiet_period, QuietPeriod) and callable(self.quiet_period.field)
        others = self.group_key, self.changed, self.decode, self.source_filter, self.close_when, self.dedupe_by
        return own or any(map(callable, others))

    @property
    def keeps_events(self) -> bool:
        """Whether records contain the events themselves (``keep = "events"``)."""
        return self.keep == EVENTS

    @property
    def aggregates(self) -> dict[str, Aggregate] | None:
        """The table ``keep``, which maps changed names to aggregates; None if ``keep`` is not a table: no values are aggregated."""
        return self.keep if isinstance(self.keep, dict) else None

    @property
    def kept(self) -> Literal["names", "last", "events", "aggregates"]:
        """What records contain of events: the setting ``keep``, or ``"aggregates"`` if that setting is a table."""
        return self.keep if isinstance(self.keep, str) else "aggregates"

    @property
    def keeps_values(self) -> bool:
        """Whether records contain values or events, and not only the changed names."""
        return self.keep != "names"

    @property
    def may_read_otherwise(self) -> bool:
        """Whether two workers may read different events from the same record.

        They may have different versions of the user's functions. With a format other than ``json``, one may have read the record
        before its schema was registered.
        """
        return self.is_by_functions or self.format != "json"

    @property
    def reads_details(self) -> bool:
        """Whether the reader needs more of each event than its group and changed names.

        This may be whether the event closes its group, the quiet period after it, its id, its values to aggregate, or its JSON.
        """
        is_by_event = not isinstance(self.quiet_period, timedelta) or self.close_when is not None or self.leading
        return is_by_event or self.keeps_events or self.aggregates is not None or self.dedupe_by is not None

    @property
    def auto_quiet(self) -> AutoQuietPeriod | None:
        """The setting ``quiet_period`` if the quiet period sets itself."""
        return self.quiet_period if isinstance(self.quiet_period, AutoQuietPeriod) else None

    @property
    def quiet_period_ms(self) -> int:
        """The quiet period in milliseconds; the maximum quiet period if it is read from each event, or sets itself."""
        return milliseconds(self.quiet_period if isinstance(self.quiet_period, timedelta) else self.quiet_period.at_most)

    @property
    def default_quiet_period_ms(self) -> int:
        """The quiet period in milliseconds; the default quiet period if it is read from each event, or sets itself."""
        if isinstance(self.quiet_period, AutoQuietPeriod):
            return self.quiet_period.default_ms
        return milliseconds(self.quiet_period.default if isinstance(self.quiet_period, QuietPeriod) else self.quiet_period)

    @property
    def max_hold_ms(self) -> int:
        """The setting ``max_hold`` in milliseconds."""
        return milliseconds(self.max_hold)
