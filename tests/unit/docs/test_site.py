"""The pages of the site of the documentation, and the checks of what Zensical has built."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.checkout.pages import ROOT, name_of, without_blocks
from tests.checkout.site import (
    DOCS,
    PAGES,
    WORKER_SHIM,
    faults,
    finish_pages,
    for_narrow_screens,
    llms_txt,
    navigation,
    page_of,
    relinked,
    site_path,
    write_pages,
)  # fmt: skip


def test_navigation_has_each_page_of_the_docs_once() -> None:
    named = [name for _, name in navigation()]
    pages = [str(target) for target in PAGES.values() if target.parts[0] != "files"]

    assert sorted(pages) == sorted(named), "add the page to the navigation in docs/zensical.toml"


def test_only_the_publishing_job_may_request_a_token() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text("utf-8"))["jobs"]

    assert {"publish": {"pages": "write", "id-token": "write"}} == {
        name: job["permissions"] for name, job in jobs.items() if "permissions" in job
    }
    assert [] == [step for step in jobs["publish"]["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=name_of)
def test_workflow_runs_valid_shell_and_make_targets_that_exist(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]
    scripts = "\n".join(step["run"] for job in jobs.values() for step in job["steps"] if "run" in step)
    checked = subprocess.run(
        ["bash", "-n"], input=re.sub(r"\$\{\{.*?\}\}", "x", scripts), text=True, capture_output=True, check=False
    )
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

    assert "" == checked.stderr
    assert set() == set(re.findall(r"\bmake ([a-z-]+)", scripts)) - targets


def test_workflow_calls_the_site_with_options_that_exist() -> None:
    text = (ROOT / ".github" / "workflows" / "docs.yml").read_text("utf-8")
    options = set(re.findall(r"(--[a-z]+) (?:\$|main)", text))

    assert {"--published", "--name"} == options
    assert options <= set(re.findall(r'add_argument\("(--[a-z]+)"', (ROOT / "tests" / "checkout" / "site.py").read_text("utf-8")))


def test_page_links_to_other_pages_and_to_pages_that_show_files() -> None:
    linked: set[Path] = set()
    text = "[a](README.md#guarantees) [b](examples/shop.py) [c](https://example.com) [d](#here)\n```\n[e](README.md)\n```\n"

    expected = (
        "[a](index.md#guarantees) [b](files/examples/shop.py.md) [c](https://example.com) [d](#here)\n```\n[e](README.md)\n```\n"
    )
    assert expected == relinked(text, ROOT / "CHANGELOG.md", linked)
    assert {ROOT / "README.md", ROOT / "examples" / "shop.py"} == linked


def test_page_of_a_file_shows_it_and_page_of_a_folder_its_files() -> None:
    manifests = ROOT / "deploy" / "kubernetes"

    assert (ROOT / "examples" / "shop.py").read_text("utf-8").rstrip() in page_of(ROOT / "examples" / "shop.py")
    assert "## workers.yaml\n\n````yaml\n" in page_of(manifests)
    assert Path("files/deploy/kubernetes.md") == site_path(manifests)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_list_within_a_list_is_indented_by_four_spaces(page: Path) -> None:
    """GitHub accepts fewer; the site would continue the outer list."""
    assert [] == re.findall(r"^ {1,3}(?:[*-]|\d+\.) .*", without_blocks(page.read_text("utf-8")), re.MULTILINE)


def test_llms_txt_has_each_page_with_a_sentence(tmp_path: Path) -> None:
    write_pages(tmp_path)
    lines = [line for line in llms_txt(tmp_path).splitlines() if line.startswith("- ")]

    assert len(navigation()) == len(lines)
    assert [] == [line for line in lines if not line.endswith((".", "?"))]
    assert [] == [line for line in lines if "exclude:" in line]
    assert not (tmp_path / "pypi.md").exists()
    assert (tmp_path / "pictures" / "folding-curve.png").exists()
    assert DOCS == ROOT / "docs"


def test_cell_of_a_table_has_the_name_of_its_column_and_breaks_long_names() -> None:
    head = "<table><thead><tr><th>metric</th><th>what <em>it</em> is</th></tr></thead>"
    row = "<tr><td><code>streams_app_lag_events</code></td><td>Lag.</td></tr>"
    after = "</table> <code>streams_app_lag_events</code>"

    name = "streams_<wbr>app_<wbr>lag_<wbr>events"
    expected = f'<tr><td data-label="metric"><code>{name}</code></td><td data-label="what it is">Lag.</td></tr>'
    assert f"{head}{expected}{expected}{after}" == for_narrow_screens(f"{head}{row}{row}{after}")


def test_page_loads_the_worker_of_the_search_from_its_own_site(tmp_path: Path) -> None:
    worker = tmp_path / "assets" / "javascripts" / "workers" / "search.0.min.js"
    for path, text in ((worker, "onmessage = '</x>'"), (tmp_path / "how-to" / "a.html", f"<head>{WORKER_SHIM}</head>")):
        path.parent.mkdir(parents=True)
        path.write_text(text, "utf-8")

    finish_pages(tmp_path)

    assert [] == faults(tmp_path)
    assert '<script src="../assets/javascripts/file-worker.js">' in (tmp_path / "how-to" / "a.html").read_text("utf-8")
    assert "onmessage = '</x>'" in (tmp_path / "assets" / "javascripts" / "file-worker.js").read_text("utf-8")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="b.html#there">', None),
        ('<a href="https://example.com/">', None),
        ('<a href="c.html">', "a.html: broken link c.html"),
        ('<a href="b.html#nowhere">', "a.html: broken link b.html#nowhere"),
        ('<img src="missing.svg">', "a.html: broken link missing.svg"),
        ('<script src="https://unpkg.com/x"></script>', "a.html: loads https://unpkg.com/x"),
        ("<p><code>**kwargs</code></p>", None),
        ("<p>**bold**</p>", "a.html: not rendered: **bold**"),
    ],
)
def test_broken_link_foreign_server_and_unrendered_markdown_are_faults(body: str, fault: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(body, "utf-8")
    (tmp_path / "b.html").write_text('<h2 id="there">', "utf-8")

    assert ([fault] if fault else []) == faults(tmp_path)
