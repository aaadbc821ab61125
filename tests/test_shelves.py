"""The four shelves of docs/README.md: every page is on one, and the site of `make docs` has the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from gateway.help.shelves import read

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SHELVES = read((DOCS / "README.md").read_text())
PYTHON_TAG = re.compile(r"!!python/\S+")  # mkdocs calls what such a tag names; here it is only read
SITE: dict[str, Any] = yaml.safe_load(PYTHON_TAG.sub("", (ROOT / "mkdocs.yml").read_text()))


def test_every_page_is_on_a_shelf_once() -> None:
    listed = [entry.file for shelf in SHELVES for entry in shelf.entries]
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/0")}
    assert sorted(listed) == sorted(pages - decisions - {"README.md"})
    assert [shelf.name for shelf in SHELVES] == ["Tutorial", "How-to", "Reference", "Explanation"]


def test_the_site_has_the_same_navigation() -> None:
    home, *shelves = SITE["nav"]
    assert home == {"Documentation": "README.md"}
    assert shelves == [{name: [{title: file} for title, file in entries]} for name, entries in SHELVES]


def test_the_site_loads_nothing_from_elsewhere_and_fails_by_a_broken_link() -> None:
    """The fonts would come from a CDN, and so would a part of the plugin `offline`."""
    assert SITE["theme"]["font"] is False
    assert SITE["plugins"] == ["search"]
    assert SITE["strict"] is True
    assert set(SITE["validation"]["links"].values()) == {"warn"}
