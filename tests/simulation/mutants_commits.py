"""Broken variants of commits that name begun events: their generation, and commits without an answer."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

COMMIT_AS = "kafka.member_requests:commit_as"
SEND = "delivery.commits:Commits.send"
MEMBERS = ("stale:3 zombie:6 rebalance:6 history", "stale:3 crash:6 zombie:6 rebalance:6")
UNANSWERED = ("overtaken:2 crash:4", "overtaken crash:4 history")

CURRENT_GENERATION: Final = Change(
    COMMIT_AS,
    "coordinator._send_req(request)",
    "coordinator._send_req("
    "_commit_request(coordinator.group_id, positions, Member(coordinator.generation, coordinator.member_id)))",
)

COMMITS_WITH_BEGINS: Final = (
    Mutant(
        "a commit uses the client's current generation",
        "A commit from before a rejoin overwrites the begins that the owner in between has committed.",
        MEMBERS,
        (CURRENT_GENERATION,),
    ),
    Mutant(
        "a rejected commit is repeated without a generation",
        "A group without members accepts it from anyone, and it overwrites the begins that the last owner has committed.",
        MEMBERS,
        (
            Change(
                COMMIT_AS,
                "await coordinator.ensure_coordinator_known()",
                "nonlocal request\nawait coordinator.ensure_coordinator_known()",
            ),
            Change(
                COMMIT_AS,
                "raise NotOwnerError(str(error)) from error",
                "if request._consumer_group_generation_id < 0:\n    raise NotOwnerError(str(error)) from error\n"
                "request = _commit_request(coordinator.group_id, positions, Member(-1, ''))\n"
                "raise GroupCoordinatorNotAvailableError() from error",
            ),
        ),
    ),
    Mutant(
        "the claim continues after a commit without an answer",
        "The broker may apply it after a newer commit of the same member, and events that began in between run again.",
        UNANSWERED,
        (Change(SEND, "if self._on_doubt is not None and member == self._in_doubt and not is_last:", "if False:"),),
    ),
    Mutant(
        "a commit without an answer is sent again",
        "The broker may apply the first of the two after a newer commit.",
        UNANSWERED,
        (Change(COMMIT_AS, "while_retriable(commit, final=_UNANSWERED)", "while_retriable(commit)"),),
    ),
)
