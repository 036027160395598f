"""Settings as they are shown: marked where they were changed, and without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from streams_app.console.pages.settings import SettingsPage, html, result_of, sections_of
from streams_app.finding import Finding, Level
from streams_app.settings import Settings

CANARY = "canary-7f3a"
FOLDS = [{"name": "likes", "source": "posts", "group_key": "id", "changed": "names", "quiet_period": "15m"}]
SECRETS: dict[str, Any] = {
    "redis": {"url": f"redis://user:{CANARY}@localhost:6379/0"},
    "read_stores": [
        {
            "name": "main", "url": f"postgresql://user:{CANARY}@localhost/db?sslpassword={CANARY}", "folds": ["likes"],
            "table": "t", "source": "sql",
            "source_url": f"postgresql://user:{CANARY}@localhost/values", "sql": "SELECT 1",
        }
    ],
    "kafka": {
        "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_command": f"get --secret {CANARY}",
        "sasl_oauth_extensions": {"logicalCluster": CANARY},
    },
}  # fmt: skip


def settings_of(**given: Any) -> Settings:
    return Settings.model_validate({"app_id": "shop", "folds": FOLDS, **given})


def page_of(settings: Settings, *found: Finding) -> SettingsPage:
    return SettingsPage(sections_of(settings), 0, 0, "/settings", "/settings?check=run", result_of(list(found), 0), 0)


def shown_in(settings: Settings) -> dict[str, tuple[str, str | None, bool]]:
    return {row.path: (row.value, row.default, row.is_changed) for one in sections_of(settings) for row in one.settings}


@pytest.mark.parametrize("section", SECRETS)
def test_secret_is_in_neither_html_nor_json(section: str) -> None:
    page = page_of(settings_of(**{section: SECRETS[section]}))

    assert CANARY not in html(page) and CANARY.encode() not in msgspec.json.encode(page)


def test_setting_of_a_secret_file_shows_its_path_only(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(CANARY, "utf-8")
    page = page_of(settings_of(http={"token_file": tmp_path / "token"}, console={"token_file": tmp_path / "token"}))

    assert CANARY not in html(page) and str(tmp_path / "token") in html(page)


def test_quiet_period_that_sets_itself_has_a_row_for_each_of_its_settings() -> None:
    rule = {"auto": {"target_ratio": 0.95}, "at_least": "10s", "at_most": "1h"}
    found = shown_in(settings_of(folds=[FOLDS[0] | {"quiet_period": rule}]))
    table = "folds.likes.quiet_period"

    assert [("target_ratio = 0.95", None), ("10s", None), ("none", "none"), ("1h", None)] == [
        found[f"{table}.{name}"][:2] for name in ("auto", "at_least", "default", "at_most")
    ]


def test_setting_is_marked_if_it_differs_from_its_default() -> None:
    found = shown_in(settings_of(worker={"tick": "500ms", "grace": "15s"}, http={"token_file": Path("/etc/token")}))

    assert ("500ms", "1s", True) == found["worker.tick"]
    assert ("15s", "15s", False) == found["worker.grace"]
    assert ("/etc/token", "none", True) == found["http.token_file"]
    assert ("shop", None, False) == found["app_id"]


def test_default_that_follows_from_other_settings_is_not_marked() -> None:
    found = shown_in(settings_of(folds=[*FOLDS, {**FOLDS[0], "name": "views", "output": "folded"}]))

    assert ("posts.likes", "posts.likes", False) == found["folds.likes.output"]
    assert ("folded", "posts.views", True) == found["folds.views.output"]


def test_every_setting_has_a_description() -> None:
    sections = sections_of(settings_of(**SECRETS))

    assert [] == [row.path for section in sections for row in section.settings if not row.what]


def test_text_that_attacks_is_shown_as_text() -> None:
    attack = "<script>alert(1)</script>\0\u202e"
    folds = [{**FOLDS[0], "close_when": {attack: [attack]}}]
    text = html(page_of(settings_of(folds=folds), Finding(Level.ERROR, attack, attack)))

    assert not any(raw in text for raw in ("<script>", "\0", "\u202e"))


def test_level_of_a_finding_is_a_word_beside_its_sign() -> None:
    page = page_of(settings_of(), Finding(Level.OK, "fine"), Finding(Level.WARNING, "hm", "do this"), Finding(Level.ERROR, "no"))
    text = html(page)

    assert "1 error, 1 warning" in text and "do this" in text
    for state, sign, word in (("ok", "●", "ok"), ("attention", "▲", "warning"), ("trouble", "■", "error")):
        assert f'<span class="state {state}"><span class="sign" aria-hidden="true">{sign}</span> {word}</span>' in text
