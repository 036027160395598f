"""What is not Python belongs to the package, too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_file_that_is_no_module_is_package_data() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["streams_app"]
    package = ROOT / "streams_app"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}

    assert set() == others - packed


def test_the_version_is_in_the_changelog() -> None:
    version, changelog = PROJECT["project"]["version"], (ROOT / "CHANGELOG.md").read_text("utf-8")

    assert re.search(rf"^#+ .*{re.escape(version)}", changelog, re.MULTILINE)
