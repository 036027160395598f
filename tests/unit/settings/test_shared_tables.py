"""Two read stores that share a table are detected, in any spelling of its location."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from streams_app.settings import Settings


def settings_of(*places: tuple[str, str]) -> Settings:
    stores = [
        {"name": f"s{number}", "url": url, "table": table, "folds": ["f"], "source": "carried"}
        for number, (url, table) in enumerate(places)
    ]
    fold = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "keep": "last", "quiet_period": "1s"}
    return Settings.model_validate({"app_id": "t", "folds": [fold], "read_stores": stores})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("sqlite:///read.db", "cells"), ("sqlite:///./read.db", "cells")),
        (("sqlite:///read.db", "cells"), ("sqlite:///x/../read.db", "cells")),
        (("sqlite:///read.db", "cells"), ("sqlite:///r%65ad.db", "cells")),
        (("sqlite:///read.db", "cells"), ("sqlite:///read.db", "CELLS")),
        (("postgresql://a@db/read", "cells"), ("postgres://b:x@DB:5432/read?sslmode=require", "cells")),
        (("mysql://a@db/read", "cells"), ("mariadb://b:x@DB:3306/read", "cells")),
        (("postgresql://a,b:5433/read", "cells"), ("postgresql://b:5433,a/read", "cells")),
    ],
)
def test_one_table_under_two_spellings_is_rejected(first: tuple[str, str], second: tuple[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"read_stores\.s1 and read_stores\.s0 have the same url and table"):
        settings_of(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [("cells", "cells_progress"), ("cells", "cells_new"), ("cells_old", "Cells"), ("cells", "cells_old_progress")],
)
def test_table_name_that_clashes_with_an_auxiliary_table_is_rejected(first: str, second: str) -> None:
    message = f"read_stores.s1 and read_stores.s0 have the same url and the tables {second} and {first}, but a store has the names"
    with pytest.raises(ValidationError, match=re.escape(message)):
        settings_of(("sqlite:///read.db", first), ("sqlite:///read.db", second))


def test_file_by_its_absolute_path_is_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValidationError, match="have the same url and table"):
        settings_of(("sqlite:///read.db", "cells"), (f"sqlite:///{tmp_path}/read.db", "cells"))


def test_separate_tables_are_accepted() -> None:
    places = [("sqlite:///read.db", "a"), ("sqlite:///read.db", "b"), ("sqlite:///other.db", "a"), ("postgresql://h/read", "a"),
              ("postgresql://h:1/read", "a"), ("postgresql://h/other", "a")]  # fmt: skip

    assert 6 == len(settings_of(*places).read_stores)
