"""Broken variants of journals: storing each event once, compression, removal and reading."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

SHARD = "journal.agents.shard:JournalShard"
KEEPER = "journal.agents.keeper:Keeper"
BEGINNING = "journal.agents.beginning:_create_state"
ROWS_IN = "journal.reading.shard_position:rows_in"
ANYTHING = ("history", "", "lossy crash rebalance history")
DEATHS = (
    "dying:append crash:9 history",
    "dying:append crash:6 zombie:6 lossy history",
    "dying:append zombie:9 rebalance:3 history",
)
DYING = ("dying:append history", "dying:append crash:3 rebalance:3 history", "dying:append lossy crash zombie history")
TAKEOVERS = ("lossy crash zombie:4 rebalance:3 history", "zombie:9 history", "fragile:append fragile:stage zombie:6 history")
PACKING = ("fragile:stage fragile:swap history", "fragile:stage fragile:swap lossy rebalance:2 history")
LOSSES = ("wipe:4", "wipe:4 history", "wipe:3 rollback:2 crash")

JOURNALS: Final = (
    Mutant(
        "a claim keeps segments above the fence",
        "Another owner stores their range once more, in another segment.",
        DEATHS,
        (Change("journal/claim.lua", "if is_kept and tonumber(first) <= fence then", "if is_kept then"),),
    ),
    Mutant(
        "append counts a half-written segment as complete",
        "A script that failed between the two writes leaves a segment that no reader finds.",
        DYING,
        (Change("journal/append.lua", "not call('ZSCORE', segments, arg.first)", "not stored"),),
    ),
    Mutant(
        "append moves the fence first",
        "A script that fails afterwards has lost its events.",
        DYING,
        (
            Change(
                "journal/append.lua",
                "call('HSET', about, arg.first, arg.about)",
                "call('HSET', meta, 'clock', arg.clock, 'fence', arg.to)\ncall('HSET', about, arg.first, arg.about)",
            ),
        ),
    ),
    Mutant(
        "append checks neither token nor fence",
        "A former owner overwrites the events of the next one.",
        TAKEOVERS,
        (Change("journal/append.lua", "local refused = refusal()", "local refused"),),
    ),
    Mutant(
        "stage does not check the token",
        "A former owner removes the blocks that the next one has staged.",
        TAKEOVERS,
        (Change("journal/stage.lua", "local refused = refusal()", "local refused"),),
    ),
    Mutant(
        "drop does not check the token",
        "A former owner, whose clock may differ, removes segments.",
        ("zombie:9 history", "fragile:drop zombie:6 history"),
        (Change("journal/drop.lua", "local refused = refusal()", "local refused"),),
    ),
    Mutant(
        "a claim does not remove staged blocks",
        "Blocks that no swap will use stay in Redis.",
        ("crash:5 history", *TAKEOVERS),
        (Change("journal/claim.lua", "remove_staged()", "local unchanged"),),
    ),
    Mutant(
        "stage accepts a delayed request",
        "A delayed copy of a request leaves blocks that no entry names.",
        PACKING,
        (
            Change(
                "journal/stage.lua",
                "if staged[1] ~= arg.first or staged[2] ~= arg.generation then return {'gone'} end",
                "local unchanged",
            ),
        ),
    ),
    Mutant(
        "raw blocks are removed before packed ones are named",
        "A script that fails in between loses a segment.",
        ("dying:swap history", "dying:swap crash rebalance history"),
        (
            Change(
                "journal/swap.lua",
                "call('HSET', about, arg.first, arg.about)",
                "call('UNLINK', blocks_key(arg.first, stored))\ncall('HSET', about, arg.first, arg.about)",
            ),
        ),
    ),
    Mutant(
        "packed blocks are not read back",
        "Blocks that were damaged in memory replace intact ones.",
        ("flips history", "flips:2"),
        (Change(f"{KEEPER}._pack", "if actual != expected:", "if False:"),),
    ),
    Mutant(
        "a swap is abandoned after a lost reply",
        "The owner, which does not query the result either, counts the segment as removed and never removes it.",
        PACKING,
        (
            Change(f"{KEEPER}._swap", "self._failed_with(error)", "raise error"),
            Change(f"{KEEPER}._packed_or_gone", "await self._shard.store.close(raw.first)", "False"),
        ),
    ),
    Mutant(
        "append accepts a closed segment",
        "Events that are appended during compression are lost.",
        ANYTHING,
        (
            Change(f"{SHARD}.open", "newest.is_closed or ", ""),
            Change("journal/append.lua", "(stored and stored.is_closed) or ", ""),
        ),
    ),
    Mutant(
        "the wall clock applies although the journal lags",
        "Events of past days are stored in today's segment, and are kept too long.",
        ("history", "freeze:3 history", "behind freeze:3"),
        (Change("journal.agents.processor:JournalProcessor._check_state", "caught_up=is_known", "caught_up=True"),),
    ),
    Mutant(
        "a future record time moves the clock",
        "After one event dated 2099, every event counts as old.",
        ANYTHING,
        (
            Change(
                "journal.core.day:clock_after",
                "min(-1 if record_ms is None else record_ms, trusted_ms)",
                "-1 if record_ms is None else record_ms",
            ),
        ),
    ),
    Mutant(
        "the day of an idle partition never ends",
        "Its last segment is neither packed nor removed.",
        ANYTHING,
        (Change(f"{SHARD}.close_day", "known is None or day_of(self.clock_ms) <= known.day", "True"),),
    ),
    Mutant(
        "the open segment is dropped",
        "The next append has no segment.",
        ANYTHING,
        (
            Change(f"{SHARD}.closed", "self.segments if self.open is None else self.segments[:-1]", "self.segments"),
            Change(
                "journal/drop.lua",
                "oldest ~= arg.first or not (segment.is_closed or first_after(arg.first))",
                "oldest ~= arg.first",
            ),
        ),
    ),
    Mutant(
        "a lost journal is restored only from the commit on",
        "Older events are missing for as long as the journal would have kept them.",
        LOSSES,
        (Change(BEGINNING, "max(bounds.begin, start)", "max(bounds.begin, claim.committed.offset if claim.committed else start)"),),
    ),
    Mutant(
        "a NUL byte in a key is not escaped",
        "Events of one key appear under another.",
        ANYTHING,
        (Change("journal.core.block:escaped", 'key.replace(b"\\0", b"\\0\\xff") + b"\\0"', 'key + b"\\0"'),),
    ),
    Mutant(
        "an escaped byte is taken for an offset",
        "The block of a longer key ends the search, although it begins with rows of this one.",
        ANYTHING,
        (Change("journal/read.lua", " and block:byte(#prefix + 1) ~= 255", ""),),
    ),
    Mutant(
        "offsets are little endian",
        "Blocks are not in the order of their offsets.",
        ANYTHING,
        (
            Change("journal.core.block:position", "_OFFSET.pack(offset)", 'offset.to_bytes(8, "little")'),
            Change(
                "journal.core.block:_parsed",
                "_OFFSET.unpack_from(member, end + 1)[0]",
                'int.from_bytes(member[end + 1 : at], "little")',
            ),
        ),
    ),
    Mutant(
        "a block of a later key is not returned",
        "Its first rows are the last ones of the key.",
        ANYTHING,
        (Change("journal/read.lua", "if is_packed then found", "if false then found"),),
    ),
    Mutant(
        "a reader looks up the segment of its last offset",
        "A reader at the end of a segment never reaches the next one.",
        ANYTHING,
        (Change("journal/read.lua", "first_up_to(up_to + 1)", "first_up_to(up_to)"),),
    ),
    Mutant(
        "a read without results does not advance",
        "The reader reads the same segments forever.",
        ANYTHING,
        (Change("journal/read.lua", "  up_to = last", "  local unchanged"),),
    ),
    Mutant(
        "a reader skips gaps",
        "A reader gets no report of the events that the source has lost.",
        ("retention:9 freeze:3", "retention:9 crash:3 history", "retention:9 zombie:3"),
        (Change("journal/read.lua", "elseif segment.form == 'gap' then", "elseif false then"),),
    ),
    Mutant(
        "a reader returns all rows of a block",
        "It returns events twice, and those of other keys.",
        ANYTHING,
        (
            Change("journal.core.block:rows_of_key", "lambda row: row[0] == key", "lambda row: True"),
            Change(ROWS_IN, "not after < row.offset <= up_to", "False"),
        ),
    ),
    Mutant(
        "a reader returns rows below its cursor",
        "It returns the events of a block that begins below its cursor twice.",
        ANYTHING,
        (Change(ROWS_IN, "not after < row.offset <= up_to", "row.offset > up_to"),),
    ),
    Mutant(
        "blocks beyond the fence are returned",
        "A reader returns events that were never appended, and returns them again once they are.",
        DYING,
        (Change("journal/read.lua", "if to > last then return true end", "local unchanged"),),
    ),
)

NUMBER_OF_CHANGES: Final = (
    Mutant(
        "the change number is not compared",
        "If Redis loses a swap, the segment is never packed; if it loses a drop, nothing is removed any more.",
        (),
        (Change("journal.agents.processor:JournalProcessor._check_state", " or int(change or 0) < changed", ""),),
    ),
)

SHOWN_BY_TESTS: Final = (
    Mutant(
        "only one partition is read",
        "Events of the key in other partitions are missing.",
        (),
        (Change("journal.reading.all_partitions:Reading._begin", "*range(known)", "*range(min(known, 1))"),),
    ),
    Mutant(
        "a segment's form is looked up before the read",
        "A swap in between has removed the blocks, and the reader reports them as damaged.",
        (),
        (
            Change(
                "journal.store.journal_store:JournalShardReader.read",
                '"read", keys, prefix',
                '"read", keys, forms=vars(self).setdefault("forms", await self._redis.hgetall(keys.about)), prefix',
            ),
            Change("journal/read.lua", "first and segment_at(first)", "first and unpacked(arg.forms[first])"),
        ),
    ),
)
"""Variants that schedules cannot detect, because there a reader reads one partition: a separate test fails with each."""
