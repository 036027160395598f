"""Bad input at scale: many generated cases of each class, by the tests that have a few of each."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from tests.chaos.run import Duration, Run
from tests.servers.cache import ROOT

TESTS = ("tests/integration/folding/test_bad_input.py", "tests/integration/folding/test_untrusted_bytes.py")


class BadInput(Run):
    """One run of these tests."""

    share = Duration(0)

    async def perform(self) -> None:
        """Run the tests; their output is not captured."""
        redis = self.options.redis_of(self.seed)
        environment = {
            "STREAMS_APP_TEST_KAFKA": self.options.kafka or "apache",
            "STREAMS_APP_TEST_REDIS": "embedded" if redis == "valkey" else "redis",
            "STREAMS_APP_TEST_CASES": str(self.options.cases),
            "CI": "true",  # a missing server is a failure
        }
        command = [sys.executable, "-m", "pytest", "-q", *TESTS]
        ran = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env={**os.environ, **environment}, check=False)
        if ran.returncode:
            self.wrong.append(f"the tests ended with {ran.returncode}")

    def line(self) -> str:
        """Return a summary."""
        return f"bad input, {self.options.cases:,} generated cases of each class: {'FAILED' if self.wrong else 'ok'}"
