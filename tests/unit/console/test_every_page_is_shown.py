"""The list of pages that browser tests look at has every page and every action of the console."""

from __future__ import annotations

import re

import pytest

from streams_app.console.actions.registry import ACTIONS
from streams_app.console.pages.action_links import ACTIONS_PATH
from streams_app.console.pages.registry import PAGES
from tests.helpers.console.shown import PAGES as SHOWN


@pytest.mark.parametrize("path", [*(page.path for page in PAGES), *(f"{ACTIONS_PATH}/{kind.name}" for kind in ACTIONS)])
def test_page_is_in_the_list_of_those_that_are_looked_at(path: str) -> None:
    pattern = re.compile(re.sub(r"{\w+}", "[^/]+", path))

    assert [name for name, shown in SHOWN.items() if pattern.fullmatch(shown.partition("?")[0])]
