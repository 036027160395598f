"""A loop for each test, without garbage of other tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from streams_app.kafka.patches.frames import ReceivingLoop


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Freeze existing objects, so that garbage collections in these and later tests do not visit them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def loop() -> Iterator[ReceivingLoop]:
    """Yield a loop without garbage collection, which is rare in a worker; an error in a callback fails the test."""
    loop = ReceivingLoop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    gc.collect()
    gc.disable()
    yield loop
    gc.enable()
    loop.close()
    assert [] == faults
