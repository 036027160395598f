"""Answers that browsers share: one question at a time, for some seconds, bounded."""

from __future__ import annotations

import asyncio

import pytest

from streams_app.console.reading.console_reader import MOST, MOST_WAITING, SHARED_MS, SharedAnswers
from streams_app.errors import TryAgainError
from tests.helpers.manual_clock import ManualClock
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 30


class Question:
    """Counts how often it is asked; answers once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()

    async def __call__(self) -> int:
        self.asked += 1
        await self.may_answer.wait()
        return self.asked


async def test_question_is_asked_once_for_all_who_ask_meanwhile() -> None:
    shared, question = SharedAnswers(ManualClock()), Question()
    waiting = [asyncio.create_task(shared.get("k", question)) for _ in range(100)]
    await wait_until(lambda: question.asked == 1, LIMIT_SECONDS, "the question is asked")
    question.may_answer.set()

    assert [1] * 100 == await asyncio.gather(*waiting)


async def test_answer_is_shared_for_two_seconds() -> None:
    clock, question = ManualClock(), Question()
    shared = SharedAnswers(clock)
    question.may_answer.set()
    await shared.get("k", question)
    clock.advance_ms(SHARED_MS - 1)
    repeated = await shared.get("k", question)
    clock.advance_ms(1)

    assert (1, 2) == (repeated, await shared.get("k", question))


async def test_slow_answer_is_shared_for_five_times_as_long_as_it_took() -> None:
    clock, question = ManualClock(), Question()
    shared = SharedAnswers(clock)
    waiting = asyncio.create_task(shared.get("k", question))
    await wait_until(lambda: question.asked == 1, LIMIT_SECONDS, "the question is asked")
    clock.advance_ms(3_000)
    question.may_answer.set()
    await waiting
    clock.advance_ms(14_999)

    assert 1 == await shared.get("k", question)


async def test_question_goes_on_if_one_of_those_who_ask_leaves() -> None:
    shared, question = SharedAnswers(ManualClock()), Question()
    first, second = (asyncio.create_task(shared.get("k", question)) for _ in range(2))
    await wait_until(lambda: question.asked == 1, LIMIT_SECONDS, "the question is asked")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    question.may_answer.set()

    assert (True, 1) == (first.cancelled(), await second)


async def test_error_is_shared_like_an_answer() -> None:
    shared, asked = SharedAnswers(ManualClock()), []

    async def fail() -> None:
        asked.append(1)
        raise TryAgainError("away")

    for _ in range(2):
        with pytest.raises(TryAgainError, match="away"):
            await shared.get("k", fail)

    assert [1] == asked


async def test_too_many_waiting_questions_are_rejected() -> None:
    shared, question = SharedAnswers(ManualClock()), Question()
    waiting = [asyncio.create_task(shared.get(number, question)) for number in range(MOST_WAITING)]
    await wait_until(lambda: question.asked == MOST_WAITING, LIMIT_SECONDS, "all questions are asked")

    with pytest.raises(TryAgainError, match="too many questions"):
        await shared.get("one more", question)

    await shared.close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_answers_to_a_week_of_different_questions_are_not_all_kept() -> None:
    clock = ManualClock()
    shared = SharedAnswers(clock)

    async def ask() -> str:
        return "x" * 100

    for number in range(3 * MOST):
        await shared.get(("page", number), ask)
        clock.advance_ms(SHARED_MS)
    kept = len(shared._entries)
    await shared.close()

    assert kept <= MOST + 1
