"""What all actions have in common: their input, the plan, the result, and how far they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from streams_app.clock import Clock
from streams_app.console.reading.asking import MAX_TEXT, PageError
from streams_app.console.reading.hiding import Hidden
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

MAX_VALUES: Final = 500
"""Maximum number of values of one field, such as selected dead letters."""

_LONGEST_NUMBER: Final = 9

Stage = Literal["object", "plan", "confirmation"]
OBJECT: Final[Stage] = "object"
PLAN: Final[Stage] = "plan"
CONFIRMATION: Final[Stage] = "confirmation"


class ActionField(msgspec.Struct, frozen=True):
    """A field of the form of an action.

    Attributes:
        stage: What it belongs to: the object of the action, which is given by a link; the plan; or its confirmation.
        choices: Texts that are allowed, with what they mean; empty: any text.
        is_many: Whether it has several values, one a line.
    """

    name: str
    label: str
    what: str
    stage: Stage = "object"
    kind: Literal["text", "number", "check", "choice", "lines"] = "text"
    choices: dict[str, str] = {}
    is_required: bool = False


class ActionTable(msgspec.Struct, frozen=True):
    """Rows that belong to a plan or a result."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class ActionPlan(msgspec.Struct, frozen=True):
    """What an action would do now.

    Attributes:
        lines: The plan that the command prints.
        fingerprint: Stands for the state on which the plan depends: as long as it is the same, the plan holds.
        obstacle: Why it cannot be done now; empty: it can.
        hints: What else to know before it is confirmed.
    """

    lines: list[str]
    fingerprint: str
    obstacle: str = ""
    hints: list[str] = []
    table: ActionTable | None = None


class ActionResult(msgspec.Struct, frozen=True):
    """What an action has done.

    Attributes:
        lines: What the command prints.
        error: Why it has not done all; empty: it has.
    """

    lines: list[str]
    error: str = ""
    table: ActionTable | None = None


class ActionInput:
    """The values that a request gives to an action: of a query, a form, or JSON."""

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self._given = given

    def texts(self, name: str) -> list[str]:
        """Return all values of a field that are not empty; a value of several lines is several values.

        Raises:
            PageError: They are too many, or one is too long (400).
        """
        found = [text for value in self._given.get(name, ()) if (text := value.strip("\r"))]
        if len(found) > MAX_VALUES or any(len(text) > MAX_TEXT for text in found):
            raise PageError(400, f"{name}: at most {MAX_VALUES} values with at most {MAX_TEXT:,} characters")
        if any("\0" in text for text in found):  # a form of HTML cannot have it
            raise PageError(400, f"{name} has the character NUL: write a key as the list of open groups shows it, in quotes")
        return found

    def lines(self, name: str) -> list[str]:
        """Return all lines of a field that are not empty.

        Raises:
            PageError: They are too many, or one is too long (400).
        """
        lines = [line.strip("\r") for value in self._given.get(name, ()) for line in value.split("\n")]
        return ActionInput({name: lines}).texts(name)

    def text(self, name: str) -> str:
        """Return the only value of a field; empty if it has none.

        Raises:
            PageError: It has several, or is too long (400).
        """
        found = self.texts(name)
        if len(found) > 1:
            raise PageError(400, f"{name} is given {len(found)} times")
        return found[0] if found else ""

    def flag(self, name: str) -> bool:
        """Return whether a box is ticked."""
        return self.text(name) in ("yes", "true")

    def number(self, name: str) -> int | None:
        """Return a number from 1; None if the field is empty.

        Raises:
            PageError: It is no number (400).
        """
        text = self.text(name).strip()
        if text and not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER and int(text)):
            raise PageError(400, f"{name} must be a number from 1")
        return int(text) if text else None


@dataclass(slots=True)
class ActionProgress:
    """How far an action is."""

    text: str = ""
    done: int = 0
    total: int | None = None

    def show(self, text: str, done: int, total: int | None) -> None:
        self.text, self.done, self.total = text, done, total


@dataclass(frozen=True, slots=True)
class ActionContext:
    """What actions work with."""

    settings: Settings
    declarations: Declarations
    clock: Clock

    @property
    def hidden(self) -> Hidden:
        return Hidden(self.settings)


@dataclass(slots=True)
class ActionTarget:
    """The object of an action, as it is shown.

    Attributes:
        name: Its name, which is typed to confirm what cannot be undone; a hash if values are hidden.
        kind: What it is, such as "group of fold likes".
        back: Path of its page.
        lock: Two actions with the same lock do not run at the same time.
        values: The input, as it is sent with the confirmation.
        secrets: Texts that must not be shown, with what is shown instead.
    """

    name: str
    kind: str
    back: str
    lock: str
    values: dict[str, list[str]]
    secrets: dict[str, str] = field(default_factory=dict)

    def safe(self, text: str) -> str:
        """Return a text, such as that of an error, without what must not be shown."""
        for secret, instead in self.secrets.items():
            text = text.replace(secret, instead)
        return text


class PreparedAction(Protocol):
    """An action on one object.

    Attributes:
        must_type: Whether the name of the object must be typed.
    """

    target: ActionTarget
    must_type: bool

    async def plan(self, progress: ActionProgress) -> ActionPlan:
        """Return what the action would do, without changing anything.

        Raises:
            ConfigurationError: There is nothing to do.
            TryAgainError: A server does not answer.
        """

    def holds(self, fingerprint: str, now: ActionPlan) -> bool:
        """Return whether a plan that somebody has seen still holds."""

    async def run(self, seen: str, now: ActionPlan, given: ActionInput, by: str, progress: ActionProgress) -> ActionResult:
        """Do it, and write the audit line.

        Args:
            seen: Fingerprint of the plan that was confirmed.
            now: The same plan as it is now.
            given: Fields of the confirmation.
            by: Who has confirmed it.

        Raises:
            StreamsAppError: Nothing, or not all, was done; see the function in ``operations``.
        """

    def stop(self) -> bool:
        """End after the step in progress; return False if the action can only be cancelled."""


class ActionKind(NamedTuple):
    """A kind of action.

    Attributes:
        name: The last part of its path.
        title: What it does, as a title.
        verb: Text of the button that does it.
        what: What it does, in sentences.
        prepare: Checks the input; raises PageError or ConfigurationError if it is wrong.
        is_slow: Whether its plan takes long, so that it is made on request, with progress.
        can_stop: Whether it can be stopped in the middle, as the command by Ctrl-C.
    """

    name: str
    title: str
    verb: str
    what: str
    command: str
    fields: tuple[ActionField, ...]
    prepare: Callable[[ActionContext, ActionInput], PreparedAction]
    is_slow: bool = False
    can_stop: bool = False

    def fields_of(self, *stages: Stage) -> list[ActionField]:
        return [one for one in self.fields if one.stage in stages]


def digest(*facts: Any) -> str:
    """Return a fingerprint of facts."""
    return sha256(repr(facts).encode("utf-8", "backslashreplace")).hexdigest()[:32]
