"""All pages of the documentation, each rendered when somebody first asks for it, and searched by words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from . import markup, shelves

FOLDER: Final = Path(__file__).parent / "docs"
CACHED_PAGES: Final = 256  # more than there are
EXCERPT: Final = 160  # characters of a page around what was searched for
PICTURES: Final = ".svg"


class Hit(NamedTuple):
    """A page that has the words: its address below `/help/`, its title, and an excerpt."""

    address: str
    title: str
    excerpt: str


class Manual:
    """The pages in *folder*. All methods read files and take up to 0.2 s of CPU time: call them in a thread."""

    def __init__(self, folder: Path = FOLDER) -> None:
        """Find the files; no request can read any other file later."""
        self._folder = folder
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.suffix in (".md", PICTURES))
        self.files = frozenset(str(path) for path in found)
        self.page = lru_cache(CACHED_PAGES)(self._page)

    @cached_property
    def shelves(self) -> tuple[shelves.Shelf, ...]:
        """The shelves with their pages."""
        return shelves.read(self._text("README.md"))

    def picture(self, name: str) -> bytes | None:
        """Return the picture *name*, or None if there is none."""
        return (self._folder / name).read_bytes() if name in self.files and name.endswith(PICTURES) else None

    def _page(self, file: str) -> markup.Document | None:
        """Return the page of *file*, or None if there is none."""
        return markup.render(self._text(file)) if file in self.files and file.endswith(".md") else None

    def search(self, words: str) -> list[Hit]:
        """Return the pages that have all *words*: those with one in the title first, then those that have most."""
        wanted = words.casefold().split()
        ranked = sorted(self._ranked(wanted), key=lambda found: found[0], reverse=True) if wanted else []
        return [hit for _, hit in ranked]

    def _ranked(self, wanted: list[str]) -> Iterator[tuple[tuple[int, int], Hit]]:
        for file in sorted(self.files):
            if (page := self.page(file)) is None:
                continue
            text, title = page.text.casefold(), page.title.casefold()
            if all(word in text for word in wanted):
                rank = sum(word in title for word in wanted), sum(text.count(word) for word in wanted)
                yield rank, Hit(markup.address_of(file), page.title, _excerpt(page.text, wanted[0]))

    def _text(self, file: str) -> str:
        return (self._folder / file).read_text(encoding="utf-8")


def _excerpt(text: str, word: str) -> str:
    """Return the part of *text* around the first *word* after the title, cut between words."""
    body = re.sub(r"\s+", " ", text.partition("\n")[2]).strip()
    start = max(0, body.casefold().find(word) - EXCERPT // 3)
    start = body.rfind(" ", 0, start) + 1
    end = len(body) if len(body) <= start + EXCERPT else body.rfind(" ", start, start + EXCERPT)
    return ("… " if start else "") + body[start : max(end, start)] + (" …" if end < len(body) else "")
