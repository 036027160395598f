"""Build the site of the documentation. ``make site``.

``python -m tests.checkout.site`` writes build/site: the pages of docs/, README.md as its start page, and each file of the
repository that a page links to. It fails if a link or an anchor is broken, if Markdown is not rendered, or if a page loads anything
from another server.

``--published FOLDER`` writes the site into a folder of its version instead, beside those of other versions, for the version
selector: FOLDER/versions.json lists them.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
CONFIG: Final = DOCS / "zensical.toml"
OUTPUT: Final = ROOT / "build" / "site"
PAGES: Final = {
    **{page: page.relative_to(DOCS) for page in sorted(DOCS.rglob("*.md")) if page.name != "pypi.md"},
    ROOT / "README.md": Path("index.md"),
    ROOT / "CHANGELOG.md": Path("changelog.md"),
    ROOT / "CONTRIBUTING.md": Path("contributing.md"),
    ROOT / "examples" / "project_page" / "README.md": Path("files", "examples", "project_page.md"),
    ROOT / "streams_app" / "kafka" / "patches" / "README.md": Path("files", "patches.md"),
}
"""Page of the repository → its place in the site."""
NOT_SEARCHED: Final = "---\nsearch:\n  exclude: true\n---\n"
"""Head of the pages that the search leaves out: each fact of the changelog and for contributors is also where it belongs."""
LANGUAGES: Final = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".service": "ini"}
FENCED: Final = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
LINK: Final = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])


# The pages


def site_path(target: Path) -> Path:
    """Return the place of a linked file in the site: that of its page, or a page that shows the file."""
    if target in PAGES:
        return PAGES[target]
    if DOCS in target.parents:
        return target.relative_to(DOCS)
    return Path("files", f"{target.relative_to(ROOT)}.md")


def page_of(target: Path) -> str:
    """Return a page that shows a file of the repository, or the files of a folder."""
    name = target.relative_to(ROOT)
    head = f"{NOT_SEARCHED}# {name.name}\n\n`{name}`\n\n"
    if not target.is_dir():
        return head + _shown(target)
    files = sorted(path for path in target.iterdir() if path.is_file() and path.suffix in LANGUAGES)
    return head + "\n".join(f"## {path.name}\n\n{_shown(path)}" for path in files)


def _shown(path: Path) -> str:
    return f"````{LANGUAGES.get(path.suffix, '')}\n{path.read_text('utf-8').rstrip()}\n````\n"


def relinked(text: str, page: Path, linked: set[Path]) -> str:
    """Return the text of a page with its links as the site has them; adds the files that it links to."""

    def moved(found: re.Match[str]) -> str:
        target = (page.parent / found[1]).resolve()
        linked.add(target)
        return f"]({os.path.relpath(site_path(target), PAGES[page].parent)}"

    parts = re.split(f"({FENCED.pattern})", text, flags=FENCED.flags)
    return "".join(part if part.lstrip(" ").startswith("```") else LINK.sub(moved, part) for part in parts)


def write_pages(folder: Path) -> None:
    """Write the pages of the site, and what they link to, into a folder."""
    linked: set[Path] = set()
    for page, target in PAGES.items():
        head = "" if page == ROOT / "README.md" or DOCS in page.parents else NOT_SEARCHED
        _write(folder / target, head + relinked(page.read_text("utf-8"), page, linked))
    for path in linked - PAGES.keys():
        if DOCS not in path.parents:
            _write(folder / site_path(path), page_of(path))
    shutil.copytree(DOCS / "pictures", folder / "pictures", dirs_exist_ok=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


# llms.txt


def entries(nav: list[object], section: str = "") -> Iterator[tuple[str, str]]:
    """Yield the section and the page of each entry of the navigation, in its order."""
    for entry in nav:
        if isinstance(entry, str):
            yield section, entry
        elif isinstance(entry, dict):
            for name, inner in entry.items():
                inside = f"{section}: {name}" if section else name
                yield from entries(inner, inside) if isinstance(inner, list) else [(section, str(inner))]


def navigation() -> list[tuple[str, str]]:
    return list(entries(tomllib.loads(CONFIG.read_text("utf-8"))["project"]["nav"]))


def llms_txt(pages: Path) -> str:
    """Return the index of the pages for language models (https://llmstxt.org): each with its first sentence."""
    project = tomllib.loads(CONFIG.read_text("utf-8"))["project"]
    lines = [f"# streams_app {version()}", "", f"> {project['site_description']}"]
    before = None
    for section, name in navigation():
        if section != before:
            lines += ["", f"## {section}" if section else "", ""]
            before = section
        title, summary = _title_and_summary((pages / name).read_text("utf-8"))
        lines.append(f"- [{title}]({name}): {summary}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _title_and_summary(text: str) -> tuple[str, str]:
    text = text.removeprefix(NOT_SEARCHED)
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", FENCED.sub("", text))
    first = re.search(r"^(?![#|<>*!-]).+(?:\n.+)*", prose, re.MULTILINE)
    words = " ".join(first[0].split()) if first else ""
    sentence = re.match(r".*?[.?](?=\s|$)", words)
    return title[1] if title else "", sentence[0] if sentence else f"{words.rstrip(':')}."


# Checks


UNRENDERED: Final = re.compile(r"\*\*.*|\]\(.*|`.*|\\[<|*_`].*|^ *[*-] \w.*", re.MULTILINE)
"""Markdown that GitHub renders and the site does not."""


class PageParser(HTMLParser):
    """The links and anchors of a page, what it loads, and its text without code."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag == self._open[-1]:
            self._open.pop()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"code", "pre", "script", "style"}:
            self._open.append(tag)
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") in {"stylesheet", "icon", "preconnect"}:
            self.loaded.append(values["href"])


def faults(site: Path) -> list[str]:
    """Return broken links and anchors of a site, Markdown that is not rendered, and what its pages load from other servers."""
    parsed = {page.resolve(): PageParser(page) for page in sorted(site.rglob("*.html")) if page.name != "404.html"}
    found = []
    for page, one in parsed.items():
        found += [f"{page.name}: loads {url}" for url in one.loaded if re.match(r"(https?:)?//", url)]
        found += [f"{page.name}: not rendered: {text}" for text in UNRENDERED.findall(one.text)]
        for link in one.links + one.loaded:
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:|//", link) or link == "":
                continue
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (anchor and target in parsed and anchor not in parsed[target].anchors):
                found.append(f"{page.name}: broken link {link}")
    return found


# Building


WORKER_SHIM: Final = '<script src="https://unpkg.com/iframe-worker/shim" type="text/javascript"></script>'
"""Element by which pages that are opened as files load a replacement of ``Worker`` from another server."""
FILE_WORKER: Final = """\
// A page that is opened as a file may not start a worker from a file, but from a text.
if (location.protocol === "file:") {
  const source = SOURCE
  const NativeWorker = window.Worker
  window.Worker = class extends NativeWorker {
    constructor() {
      super(URL.createObjectURL(new Blob([source], { type: "text/javascript" })))
    }
  }
}
"""


def finish_pages(site: Path) -> None:
    """Replace the script from another server by one with the text of the search worker, and prepare tables for narrow screens."""
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    _write(site / "assets/javascripts/file-worker.js", FILE_WORKER.replace("SOURCE", json.dumps(worker.read_text("utf-8"))))
    for page in site.rglob("*.html"):
        script = os.path.relpath(site / "assets/javascripts/file-worker.js", page.parent)
        text = page.read_text("utf-8").replace(WORKER_SHIM, f'<script src="{script}"></script>')
        _write(page, for_narrow_screens(text))


def build(output: Path, *, selector: bool = False) -> None:
    """Build the site into a folder, which is replaced.

    Raises:
        SystemExit: Zensical or a check has found a fault.
    """
    with tempfile.TemporaryDirectory() as folder:
        site = _built(Path(folder), selector=selector)
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(site, output)


TABLE: Final = re.compile(r"<table>.*?</table>", re.DOTALL)
NAME: Final = re.compile(r"(?<=<code>)[\w.]{16,}(?=</code>)")


def for_narrow_screens(page: str) -> str:
    """Return a page whose table cells have the name of their column; long names in tables may break after ``_`` and points."""

    def labelled(table: re.Match[str]) -> str:
        names = re.findall(r"<th[^>]*>(.*?)</th>", table[0])
        rows = re.split(r"(?=<tr>)", NAME.sub(lambda name: re.sub(r"(?<=[._])(?=\w)", "<wbr>", name[0]), table[0]))
        return "".join(_labelled_row(row, names) for row in rows)

    return TABLE.sub(labelled, page)


def _labelled_row(row: str, names: list[str]) -> str:
    labels = (html.escape(re.sub(r"<[^>]*>", "", name)) for name in names)
    return re.sub(r"<td(?=[ >])", lambda _: f'<td data-label="{next(labels, "")}"', row)


def _built(work: Path, *, selector: bool) -> Path:
    write_pages(work / "pages")
    # Without a selector, the version is part of the name in the header.
    config = CONFIG.read_text("utf-8").replace(" VERSION", "" if selector else f" {version()}")
    if selector:
        config += '\n[project.extra.version]\nprovider = "mike"\n'
    _write(work / "zensical.toml", config)
    program = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", "zensical.toml"]
    if (ended := subprocess.run(program, cwd=work, check=False)).returncode:
        raise SystemExit(ended.returncode)
    site = work / "site"
    finish_pages(site)
    for page in (work / "pages").rglob("*.md"):
        shutil.copy(page, site / page.relative_to(work / "pages"))
    _write(site / "llms.txt", llms_txt(work / "pages"))
    if found := faults(site):
        raise SystemExit("\n".join(found))
    return site


def publish(folder: Path, name: str) -> None:
    """Build the site into a folder of its version, and list all versions for the selector; the newest is the default."""
    build(folder / name, selector=True)
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    newest = sorted(names, key=lambda one: [int(part) for part in re.findall(r"\d+", one)], reverse=True)
    _write(folder / "versions.json", json.dumps([{"version": one, "title": one, "aliases": []} for one in newest]))
    _write(folder / "index.html", f'<!doctype html><meta http-equiv="refresh" content="0; url={newest[0]}/index.html">\n')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, metavar="FOLDER")
    parser.add_argument("--name", default=version(), help="The name of the version.")
    arguments = parser.parse_args()
    if arguments.published:
        publish(arguments.published, arguments.name)
    else:
        build(OUTPUT)
        print(f"{OUTPUT.relative_to(ROOT)} is written: open {OUTPUT.relative_to(ROOT)}/index.html in a browser")
