"""The package includes its files that are not Python."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_non_module_file_is_package_data() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["streams_app"]
    package = ROOT / "streams_app"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}

    assert set() == others - packed


def test_sdist_holds_every_tracked_file_except_those_only_a_checkout_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the setuptools class that reads MANIFEST.in; it adds the package and the files named in pyproject.toml by itself."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    egg_info = pytest.importorskip("setuptools.command.egg_info")
    subprocess.run(["git", "checkout-index", "--all", f"--prefix={tmp_path}{os.sep}"], cwd=ROOT, check=True)
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    files = egg_info.FileList()
    files.findall()
    for line in Path("MANIFEST.in").read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            files.process_template_line(line)
    by_itself = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"} | {
        name for name in kept if name.startswith("streams_app/")
    }

    assert {".ci", ".dockerignore", ".github", ".gitignore"} == {
        name.partition("/")[0] for name in kept - set(files.files) - by_itself
    }
    assert set() == set(files.files) - kept


def test_release_page_has_no_dead_link_and_names_every_user_extra() -> None:
    page = (ROOT / PROJECT["project"]["readme"]).read_text("utf-8")
    extras = set(PROJECT["project"]["optional-dependencies"]) - {"dev", "pyright"}

    assert [] == [link for link in re.findall(r"\]\(([^)]*)\)", page) if not link.startswith("https://")]
    assert extras == {name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}


def test_release_page_matches_the_readme() -> None:
    page, readme = ((ROOT / name).read_text("utf-8") for name in (PROJECT["project"]["readme"], "README.md"))
    blocks = re.findall(r"^```toml\n[\s\S]*?^```$|^streams-app .*$|^streams_app turns .*$|^> .*$", page, re.MULTILINE)

    assert len(blocks) >= 3
    assert [] == [block for block in blocks if block not in readme]


def test_changelog_contains_the_version() -> None:
    version, changelog = PROJECT["project"]["version"], (ROOT / "CHANGELOG.md").read_text("utf-8")

    assert re.search(rf"^#+ .*{re.escape(version)}", changelog, re.MULTILINE)
