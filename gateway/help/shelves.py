"""The four shelves of the documentation, as docs/README.md lists them.

Under each second-level heading of that page is a list of links, one for each page; what follows a link describes it.
`mkdocs.yml` has the same navigation, and a test compares the two.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class ShelfPage(NamedTuple):
    """A page on a shelf: its title, and its file below `docs`."""

    title: str
    file: str


class Shelf(NamedTuple):
    """A shelf and its pages."""

    name: str
    entries: tuple[ShelfPage, ...]


def read(source: str) -> tuple[Shelf, ...]:
    """Read the shelves from *source*, the Markdown of docs/README.md."""
    shelves = []
    for part in re.split(r"^## ", source, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        entries = re.findall(r"^- \[([^\]]+)\]\(([^)]+\.md)\)", rest, re.MULTILINE)
        shelves.append(Shelf(name.strip(), tuple(ShelfPage(*entry) for entry in entries)))
    return tuple(shelves)
