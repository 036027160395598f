"""The column of a name, as configured in ``streams.toml`` and the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streams_app.errors import ConfigurationError
from streams_app.settings import ReadStoreSettings, Settings
from tests.unit.settings.settings_file import MINIMAL, READ_STORE, load

GROUPS = MINIMAL + READ_STORE + "shape = 'groups'\n"


def columns(given: Any) -> dict[str, str]:
    return ReadStoreSettings.model_validate(
        {"name": "d", "url": "sqlite:///read.db", "folds": ["f"], "source": "carried", "shape": "groups", "columns": given}
    ).columns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("columns = ['likes', 'Shares']", {"likes": "likes", "Shares": "Shares"}),
        ("columns = { likes = 'likes_count', 'click-rate' = 'click_rate' }", {"likes": "likes_count", "click-rate": "click_rate"}),
        ("[read_stores.dashboard.columns]\nlikes = 'n'", {"likes": "n"}),
    ],
)
def test_columns_are_a_list_or_a_table(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    assert expected == load(tmp_path / "streams.toml", GROUPS + text).read_stores[0].columns


def test_columns_of_the_environment_are_a_list(tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text(GROUPS, "utf-8")
    found = Settings.load(file, {"STREAMS_APP_READ_STORES_DASHBOARD_COLUMNS": "likes, shares"})

    assert {"likes": "likes", "shares": "shares"} == found.read_stores[0].columns


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            ["click-rate"],
            "'click-rate' is not a column (letters, digits and _; at most 63); give 'click-rate' another one: columns = {",
        ),
        (['a"; DROP TABLE b; --'], "is not a column"),
        ({"likes": 'a"b'}, "'a\"b' is not a column"),
        ([""], "'' is not a column"),
        (["größe"], "'größe' is not a column"),
        (["1st"], "'1st' is not a column"),
        (["n" * 64], "at most 63"),
        (["likes", "Versions"], "'Versions' is a column the table has for itself"),
        ({"likes": "group_key"}, "'group_key' is a column the table has for itself"),
        (["likes", "Likes"], "'likes' and 'Likes' have the same column 'Likes', as case does not count"),
        ({"likes": "n", "shares": "n"}, "'likes' and 'shares' have the same column 'n'"),
        (["likes", "likes"], "a name stands there twice"),
        (["likes", 3], "expected a list of names"),
        ({"likes": 3}, "expected a list of names"),
        ("likes", "expected a list of names"),
        ([f"n{number}" for number in range(1_001)], "at most 1000 items"),
    ],
)
def test_invalid_column_is_a_fault(given: Any, expected: str) -> None:
    with pytest.raises(ValueError, match="columns") as caught:
        columns(given)

    assert expected in str(caught.value)


def test_all_invalid_columns_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "streams.toml", GROUPS + "columns = ['a-b', 'fold']")
    (fault,) = caught.value.faults

    assert fault.startswith("read_stores.dashboard.columns: 'a-b' is not a column")
    assert "'fold' is a column the table has for itself" in fault


def test_column_name_of_maximum_length_is_valid() -> None:
    assert {"n" * 63: "n" * 63} == columns(["n" * 63])
