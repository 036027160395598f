"""The page of the settings over HTTP: its findings are those of the command, and no secret leaves the process."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from streams_app.settings import Settings
from tests.helpers.cli.commands import Place, run
from tests.helpers.console.consoles import running_console, token_file, with_console
from tests.helpers.kafka.topics import create_topics

CANARY = "canary-7f3a"


def without_numbers(text: str) -> str:
    """Return a finding without what differs from one run to the next, such as free memory."""
    return re.sub(r"\d[\d,.]*", "N", text)


async def test_findings_equal_those_of_the_command(app: Place) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    async with running_console(Settings.load(Path(app.config()), {})) as console:
        plain = await console.json("/settings.json")
        checked = (await console.json("/settings.json?check=run"))["checked"]
        _, page, _ = await console.get("/settings?check=run")
    ran = await asyncio.to_thread(run, "check", "--config", app.config())
    lines = [line for found in checked["findings"] for line in (f"{found['level']:<8} {found['text']}", *(
        [f"         -> {found['advice']}"] if found["advice"] else []))] + [checked["summary"]]  # fmt: skip

    assert plain["checked"] is None
    assert [without_numbers(line) for line in lines] == [without_numbers(line) for line in ran.out.splitlines()[: len(lines)]]
    assert checked["summary"] in page


async def test_secrets_are_on_no_page(app: Place, tmp_path: Path) -> None:
    """The server rejects the user, so that the findings are about the credentials."""
    settings = Settings.load(Path(app.config()), {})
    url = settings.redis.url.replace("redis://", f"redis://user:{CANARY}@")
    redis = {**dict(settings.redis), "url": url}
    secret = with_console(
        Settings.model_validate({**dict(settings), "redis": redis}), token_file=token_file(tmp_path, f"token-{CANARY}")
    )
    bearer = {"Authorization": f"Bearer token-{CANARY}"}
    async with running_console(secret) as console:
        answers = [
            await console.get(path, headers=bearer)
            for path in ("/settings?check=run", "/settings.json?check=run", "/overview.json", "/", "/openapi.json")
        ]

    assert [200] * 5 == [status for status, _, _ in answers]
    assert not any(CANARY in text for _, text, _ in answers)


@pytest.mark.parametrize("query", ["check=%00", "check=" + "x" * 6_000, "check=%E2%80%AE"])
async def test_unknown_question_is_refused(app: Place, query: str) -> None:
    async with running_console(Settings.load(Path(app.config()), {})) as console:
        status, text, _ = await console.get(f"/settings?{query}")

    assert 400 == status and "check must be one of no, run" in text
