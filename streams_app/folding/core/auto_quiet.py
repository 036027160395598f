"""Learns from the events of a shard which quiet period suits them, and changes it when that is worthwhile (pure).

If silence alone closes groups, a quiet period X gives one record for each group, and one more for each gap between two events of a
group that is longer than X. So one histogram of gaps, with a bucket for each candidate, gives the folding ratio of all candidates
at once. Old gaps fade from it.

A gap is only known if the time of the group's last event is remembered, also after the group has closed. The number of such groups
has no limit, so a sample is remembered: the groups whose hash is below a limit, as in
:mod:`streams_app.folding.core.group_sample`. A gap longer than the longest candidate adds one record to each candidate, as a new
group does; so a group that was silent for that long is forgotten.

All times are those of events. The result depends only on the events and their order, not on how they are divided into ranges.
Without events, with late events and while time stands still, the quiet period does not change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import isfinite, log2, sqrt
from typing import Annotated, Final, NamedTuple
from zlib import crc32

import msgspec

from streams_app.fold import Fold
from streams_app.folding.core.group_sample import ALL, LEFT_OF_FULL
from streams_app.formatting import ROUND_MS, milliseconds

MAX_GROUPS: Final = 1_024
"""Maximum number of remembered groups. With their times they take 15 kB when stored, and 0.2 MB in the process."""

STEP_MS: Final = 60_000
"""The quiet period is reconsidered in each minute with events. An event is ignored if it is older than the newest one by more than
this. A silence of the whole shard that is longer is examined, see :meth:`AutoQuiet._is_unusual`."""

FADING_STEPS: Final = 120
"""After this many minutes with events, a gap counts half."""

FEWEST_STEPS: Final = 10
FEWEST_GAPS: Final = 100
"""Before this many minutes with events and sampled gaps, the quiet period does not change."""

POINT: Final = 0.01
"""With the goal ``knee``, twice the quiet period must save this many records per event."""

WORTHWHILE: Final = 0.005
"""With the goal ``knee``, minimum advantage of a change: half a record per hundred events, beyond the standard error."""

TOLERANCE: Final = 0.0025
"""With a target: it is aimed at this much above the target, and a folding ratio this much below it is accepted."""

SHORTER: Final = 1.5
"""With a target: a shorter quiet period must be shorter by this factor."""

SAME_RATIO: Final = 0.001
"""A folding ratio this much below the maximum counts as the maximum."""

FACTOR: Final = 2
"""One change makes the quiet period at most this many times longer or shorter."""


MAX_STORED_BYTES: Final = 32_768
"""What was learned is not decoded if it is longer, because it is then something else."""

Ms = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


@dataclass(frozen=True)
class AutoQuietGoal:
    """What a quiet period that sets itself aims at, and its limits in ms.

    Attributes:
        target_ratio: Folding ratio to reach with the shortest possible quiet period; None for the knee: the quiet period with the
            highest folding ratio, less one point for each time that it is doubled.
    """

    at_least_ms: int
    at_most_ms: int
    default_ms: int
    target_ratio: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.at_least_ms <= self.default_ms <= self.at_most_ms:
            raise ValueError("at_least must not be longer than default, nor default longer than at_most")
        if self.target_ratio is not None and not 0 < self.target_ratio < 1:
            raise ValueError("target_ratio must be between 0 and 1")

    @classmethod
    def of(cls, fold: Fold) -> AutoQuietGoal | None:
        """Return the goal of a fold; None if its quiet period does not set itself."""
        rule = fold.auto_quiet
        if rule is None:
            return None
        return cls(milliseconds(rule.at_least), fold.quiet_period_ms, rule.default_ms, rule.target_ratio)

    @cached_property
    def candidates(self) -> tuple[int, ...]:
        """Return the quiet periods from which one is chosen, in ms and in rising order: round ones, the limits and the default."""
        between = (quiet_ms for quiet_ms in ROUND_MS if self.at_least_ms < quiet_ms < self.at_most_ms)
        return tuple(sorted({self.at_least_ms, self.default_ms, self.at_most_ms, *between}))


class QuietChange(NamedTuple):
    """A change of the quiet period, with the folding ratios that recent events would have had with both values."""

    at_ms: int
    before_ms: int
    after_ms: int
    ratio_before: float
    ratio_after: float


class LearnedGaps(msgspec.Struct):
    """What was learned from a shard, and the quiet period that holds. It is bounded, and can be encoded by msgspec.

    Attributes:
        candidates: Candidates of the goal, in ms.
        counts: Number of gaps in the bucket of each candidate, faded; the last bucket is for longer gaps and new groups.
        events: Number of events, faded.
        weight: Number of groups that each remembered group stands for.
        groups: Hash of a group → time of its last event.
        clock_ms: Time of the newest event; None before the first one. As the times in ``groups``, it is less than the timestamp
            by ``left_out_ms``.
        left_out_ms: Total duration of the unusual silences.
        silences_ms: The last three silences of the whole shard that were longer than :data:`STEP_MS`.
        widened_ms: When the sample was last enlarged; until one longest candidate later, groups with a hash from ``counted_to``
            on are not new when they are first seen.
    """

    candidates: tuple[Ms, ...]
    quiet_ms: int
    counts: list[float]
    events: float = 0.0
    steps: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    weight: Annotated[int, msgspec.Meta(ge=1, le=ALL)] = 1
    groups: dict[Annotated[int, msgspec.Meta(ge=0, lt=ALL)], Ms] = {}
    clock_ms: Ms | None = None
    left_out_ms: Ms = 0
    silences_ms: list[Ms] = []
    widened_ms: Ms | None = None
    counted_to: Annotated[int, msgspec.Meta(ge=0, le=ALL)] = ALL

    @classmethod
    def nothing(cls, goal: AutoQuietGoal) -> LearnedGaps:
        return cls(goal.candidates, goal.default_ms, [0.0] * (len(goal.candidates) + 1))


def packed_gaps(learned: LearnedGaps) -> bytes:
    """Encode what was learned, as ``meta`` of a shard stores it: as msgpack, a map with the names of the fields."""
    return msgspec.msgpack.encode(learned)


_DECODER: Final = msgspec.msgpack.Decoder(LearnedGaps)


def unpacked_gaps(stored: bytes) -> LearnedGaps:
    """Decode the result of :func:`packed_gaps`; fields of other versions are ignored.

    Raises:
        ValueError: It is not valid.
    """
    if len(stored) > MAX_STORED_BYTES:
        raise ValueError(f"it has {len(stored)} bytes, more than {MAX_STORED_BYTES}")
    try:
        learned = _DECODER.decode(stored)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    is_whole = len(learned.counts) == len(learned.candidates) + 1 and learned.quiet_ms in learned.candidates
    counts = learned.events, *learned.counts
    if not is_whole or not all(isfinite(count) and count >= 0 for count in counts) or any(counts[1:]) > (learned.events > 0):
        raise ValueError("its numbers do not fit together")
    return learned


def without_groups(stored: bytes, groups: Iterable[bytes]) -> tuple[bytes, int]:
    """Return the result of :func:`packed_gaps` without some groups, and the number of those that it had.

    A hash is removed because whoever knows a key can tell by it that the key had events. Another key with the same hash loses one
    gap. What is not valid is removed as a whole.
    """
    try:
        learned = unpacked_gaps(stored)
    except ValueError:
        return b"", 0
    found = [one for one in map(crc32, set(groups)) if learned.groups.pop(one, None) is not None]
    return (packed_gaps(learned) if found else stored), len(found)


class AutoQuiet:
    """The quiet period of a shard that sets itself."""

    def __init__(self, goal: AutoQuietGoal, learned: LearnedGaps | None = None) -> None:
        """Continue with what a former owner has learned; begin with the default if there is nothing, or it is for other limits."""
        self.goal = goal
        self.learned = learned if learned and learned.candidates == goal.candidates else LearnedGaps.nothing(goal)
        self._candidates = goal.candidates
        self._limit = ALL // self.learned.weight

    @property
    def quiet_ms(self) -> int:
        """Return the quiet period that follows the last observed event."""
        return self.learned.quiet_ms

    @property
    def shorter_ms(self) -> int:
        """Return by how many ms the quiet period is shorter than the longest one, as an event carries it."""
        return self.goal.at_most_ms - self.learned.quiet_ms

    def observe(self, member: bytes, timestamp_ms: int) -> QuietChange | None:
        """Learn from the next event of the shard.

        Returns:
            The change of the quiet period, if there is one; it applies to this event already.
        """
        learned = self.learned
        at_ms = timestamp_ms - learned.left_out_ms
        if learned.clock_ms is None:
            learned.clock_ms = at_ms
        after_ms, change = at_ms - learned.clock_ms, None
        if after_ms > 0:
            if after_ms > STEP_MS and self._is_unusual(after_ms):
                learned.left_out_ms += after_ms
            else:
                if at_ms // STEP_MS != learned.clock_ms // STEP_MS:
                    change = self._reconsider(learned.clock_ms, timestamp_ms)
                learned.clock_ms = at_ms
        elif after_ms < -STEP_MS:
            return None
        learned.events += 1
        member_hash = crc32(member)
        if member_hash < self._limit:
            self._count(member_hash, learned.clock_ms)
        return change

    def _is_unusual(self, silence_ms: int) -> bool:
        """Return whether a silence of the whole shard is more than twice as long as two of the last three.

        Then an outage or a jump of the clock is likelier than that all groups were silent. It is left out of the gaps.
        """
        silences_ms = self.learned.silences_ms
        self.learned.silences_ms = [*silences_ms[-2:], silence_ms]
        return sum(2 * one >= silence_ms for one in silences_ms) < 2  # noqa: PLR2004  # of three

    # ---- the sample

    def _count(self, member_hash: int, at_ms: int) -> None:
        learned = self.learned
        last_ms = learned.groups.get(member_hash)
        learned.groups[member_hash] = at_ms
        if last_ms is not None:
            learned.counts[bisect_left(self._candidates, at_ms - last_ms)] += learned.weight
            return
        if member_hash < learned.counted_to or self._is_widening_over(at_ms):
            learned.counts[-1] += learned.weight
        if len(learned.groups) > MAX_GROUPS:
            self._forget_silent(at_ms)
            while len(learned.groups) > LEFT_OF_FULL * MAX_GROUPS:
                learned.weight *= 2
                self._limit = ALL // learned.weight
                learned.groups = {one: last_ms for one, last_ms in learned.groups.items() if one < self._limit}

    def _forget_silent(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._candidates[-1]
        self.learned.groups = {one: last_ms for one, last_ms in self.learned.groups.items() if last_ms >= oldest_ms}

    def _is_widening_over(self, now_ms: int) -> bool:
        widened_ms = self.learned.widened_ms
        return widened_ms is None or now_ms - widened_ms > self._candidates[-1]

    def _widen(self, now_ms: int) -> None:
        """Watch twice as many groups if few are left of the sample, once in the time of the longest candidate."""
        learned = self.learned
        if learned.weight > 1 and len(learned.groups) < MAX_GROUPS // 8 and self._is_widening_over(now_ms):
            learned.widened_ms, learned.counted_to = now_ms, self._limit
            learned.weight //= 2
            self._limit = ALL // learned.weight

    # ---- the choice

    def ratios(self) -> list[float]:
        """Return the folding ratio that each candidate would have given, as far as the gaps have not faded."""
        longer = list(accumulate(reversed(self.learned.counts[1:])))
        return [1 - records / self.learned.events for records in reversed(longer)]

    def _reconsider(self, until_ms: int, timestamp_ms: int) -> QuietChange | None:
        learned, change = self.learned, None
        learned.steps += 1
        if learned.steps >= FEWEST_STEPS and sum(learned.counts) >= FEWEST_GAPS * learned.weight:
            change = self._change(timestamp_ms)
        fading = 0.5 ** (1 / FADING_STEPS)
        learned.events *= fading
        learned.counts = [count * fading for count in learned.counts]
        if learned.steps % FEWEST_STEPS == 0:
            self._forget_silent(until_ms)
            self._widen(until_ms)
        return change

    def _change(self, timestamp_ms: int) -> QuietChange | None:
        candidates, ratios = self._candidates, self.ratios()
        now = candidates.index(self.learned.quiet_ms)
        wanted = self._by_target(ratios, now) if self.goal.target_ratio is not None else self._by_knee(ratios, now)
        chosen = _within_factor(candidates, now, wanted)
        if chosen == now:
            return None
        self.learned.quiet_ms = candidates[chosen]
        return QuietChange(timestamp_ms, candidates[now], candidates[chosen], ratios[now], ratios[chosen])

    def _by_knee(self, ratios: Sequence[float], now: int) -> int:
        worth = [ratio - POINT * log2(quiet_ms) for ratio, quiet_ms in zip(ratios, self._candidates, strict=True)]
        wanted = max(range(len(worth)), key=worth.__getitem__)
        needed = WORTHWHILE + self._error(abs(ratios[wanted] - ratios[now]))
        return wanted if worth[wanted] - worth[now] >= needed else now

    def _by_target(self, ratios: Sequence[float], now: int) -> int:
        target, best = self.goal.target_ratio or 0.0, max(ratios) - SAME_RATIO
        aim = min(target + TOLERANCE, best)
        wanted = next(at for at, ratio in enumerate(ratios) if ratio >= aim)
        if wanted > now:
            is_enough = ratios[now] >= min(target, best) - TOLERANCE - self._error(1 - ratios[now])
            return now if is_enough else wanted
        return wanted if self._candidates[wanted] * SHORTER <= self._candidates[now] else now

    def _error(self, share: float) -> float:
        """Return the standard error of a number of records, given and returned as a fraction of the events."""
        return sqrt(max(0.0, share) * self.learned.weight / self.learned.events)


def _within_factor(candidates: Sequence[int], now: int, wanted: int) -> int:
    """Return the candidate between two that is nearest to the wanted one, and at most :data:`FACTOR` times longer or shorter.

    If candidates are further apart, it is the next one.
    """
    quiet_ms, step = candidates[now], 1 if wanted > now else -1
    chosen = now
    while chosen != wanted:
        following = candidates[chosen + step]
        if chosen != now and max(following / quiet_ms, quiet_ms / following) > FACTOR:
            break
        chosen += step
    return chosen
