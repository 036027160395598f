"""A loop for each test, without garbage of others."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from streams_app.kafka.patches.frames import ReceivingLoop


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> Iterator[None]:
    """What was there before is not looked at by each of the collections of these tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def loop() -> Iterator[ReceivingLoop]:
    """Without garbage collection, as it next to never happens in a worker; whatever a callback raises is a failure."""
    loop = ReceivingLoop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    gc.collect()
    gc.disable()
    yield loop
    gc.enable()
    loop.close()
    assert [] == faults
