"""A browser without JavaScript that uses the forms of the console, and a program that uses its JSON."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import Any, NamedTuple

from tests.helpers.console.consoles import RunningConsole
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 60


class SeenForm(NamedTuple):
    """A form of a page: its path, how it is sent, and the values of its fields."""

    path: str
    method: str
    values: dict[str, list[str]]


class _Forms(HTMLParser):
    """Collects the forms of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[SeenForm] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self.found.append(SeenForm(given.get("action") or "", given.get("method") or "get", {}))
        is_off = given.get("type") == "checkbox" and "checked" not in given
        if tag == "input" and self.found and given.get("name") and not is_off:
            self.found[-1].values.setdefault(str(given["name"]), []).append(given.get("value") or "")


def forms_in(text: str, path: str = "/actions/") -> list[SeenForm]:
    """Return the forms of a page whose path begins with a text."""
    parser = _Forms()
    parser.feed(text)
    return [form for form in parser.found if form.path.startswith(path)]


class FormBrowser:
    """A browser with its cookies."""

    def __init__(self, console: RunningConsole, **headers: str) -> None:
        self.console = console
        self.cookies: dict[str, str] = {}
        self.headers = headers

    def _headers(self) -> dict[str, str]:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {**self.headers, "Cookie": cookie} if cookie else dict(self.headers)

    def _keep(self, headers: Any) -> None:
        for text in headers.getall("Set-Cookie", []):
            self.cookies |= {name: one.value for name, one in SimpleCookie(text).items()}

    async def open(self, path: str) -> tuple[int, str]:
        status, text, headers = await self.console.get(path, headers=self._headers())
        self._keep(headers)
        return status, text

    async def send(self, form: SeenForm, *, origin: str | None = "", **values: str) -> tuple[int, str, str]:
        """Send a form with other values; return status, text, and the path to which the browser is sent."""
        data = [(name, value) for name, list_ in form.values.items() if name not in values for value in list_]
        headers = self._headers() | ({} if origin is None else {"Origin": origin or self.console.url})
        status, text, answered = await self.console.post(form.path, data=[*data, *values.items()], headers=headers)
        self._keep(answered)
        return status, text, answered.get("Location", "")

    async def ended(self, path: str) -> str:
        """Wait until a job has ended, and return its page."""
        assert path.startswith("/actions/jobs/"), path

        async def is_ended() -> bool:
            return bool((await self.job(path))["state"] != "running")

        await wait_until(is_ended, LIMIT_SECONDS, "the action has ended")
        return (await self.open(path))[1]

    async def job(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await self.console.get(f"{path}.json", headers=self._headers()))[1])
        return found
