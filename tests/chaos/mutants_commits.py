"""Broken variants of commits that name begun events: the membership of the commit, and late commits."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant

COMMIT_AS = "kafka.member_requests:commit_as"
SEND = "delivery.commits:Commits.send"
MEMBERS = ("stale:3 zombie:6 rebalance:6 history", "stale:3 crash:6 zombie:6 rebalance:6")
LATE = ("overtaken:2 crash:4", "overtaken crash:4 history")

UNDER_THE_PRESENT_GENERATION: Final = Change(
    COMMIT_AS,
    "coordinator._send_req(request)",
    "coordinator._send_req("
    "_commit_request(coordinator.group_id, positions, Member(coordinator.generation, coordinator.member_id)))",
)

COMMITS_OF_NOTES: Final = (
    Mutant(
        "commit under the client's present generation",
        "A window from before a rejoin overwrites what the owner in between has begun.",
        MEMBERS,
        (UNDER_THE_PRESENT_GENERATION,),
    ),
    Mutant(
        "commit under no generation where that of the claim is refused",
        "A group without members takes it from anybody, and what the last owner has begun is overwritten.",
        MEMBERS,
        (
            Change(
                COMMIT_AS,
                "raise NotOwnerError(str(error)) from error",
                "if request._consumer_group_generation_id < 0:\n    raise NotOwnerError(str(error)) from error\n"
                "request = _commit_request(coordinator.group_id, positions, Member(-1, ''))",
            ),
        ),
    ),
    Mutant(
        "goes on after a commit without an answer",
        "It is taken after a newer one of the same member, and what has begun since is called again.",
        LATE,
        (Change(SEND, "if self._on_doubt is not None and member == self._in_doubt and not is_last:", "if False:"),),
    ),
    Mutant(
        "a commit without an answer is sent again",
        "The first of the two is taken after a newer one.",
        LATE,
        (Change(COMMIT_AS, "except _UNANSWERED:", "except ZeroDivisionError:"),),
    ),
)
