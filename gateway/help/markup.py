"""Makes HTML of a page of documentation: CommonMark with tables, headings that can be linked to, no inline styles.

Pages link to each other's files (`how-to/monitor.md`); in HTML these links have the names that pages are served under
(`how-to/monitor.html`), which are also those of the site that `make docs` builds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER: Final = MarkdownIt("commonmark", {"html": True}).enable("table")  # raw HTML: the pages are ours
SHORT_CODE: Final = 20  # characters of code that stay on one line
BREAKS: Final = re.compile(r"(?<=[^\s/,][/,])(?=[^/,\s])")  # where a longer one may continue on the next line
MARKDOWN_LINK: Final = re.compile(r"^(?!\w+:)([^#]*)\.md(#.*)?$")
ALIGNMENT: Final = {"text-align:left": "left", "text-align:center": "center", "text-align:right": "right"}


class Heading(NamedTuple):
    """A heading below the title: its level (2 to 6), the id to link to, and its text."""

    level: int
    id: str
    text: str


class Document(NamedTuple):
    """A page: its title, its headings, its content as HTML, and as plain text."""

    title: str
    headings: tuple[Heading, ...]
    html: str
    text: str


def render(source: str) -> Document:
    """Make HTML of the Markdown *source*."""
    tokens = [token for token in PARSER.parse(source) if not _is_comment(token)]
    found = list(_headings(tokens))
    for token in tokens:
        _adapt(token)
    title = found[0].text if found else ""
    html = PARSER.renderer.render(tokens, PARSER.options, {})
    return Document(title, tuple(found[1:]), html, "\n".join(_plain(token) for token in tokens if token.content))


def file_of(name: str) -> str:
    """Return the Markdown file of the page that is served as *name*, a path below `/help/`."""
    if name == "" or name.endswith("/"):
        return f"{name}README.md"
    folder, _, last = name.rpartition("/")
    stem = "README" if last == "index.html" else last.removesuffix(".html")
    return f"{folder}/{stem}.md" if folder else f"{stem}.md"


def address_of(link: str) -> str:
    """Return *link* with the address of a page in the place of its Markdown file."""
    if (found := MARKDOWN_LINK.match(link)) is None:
        return link
    path = re.sub(r"(^|/)README$", r"\1index", found[1])
    return f"{path}.html{found[2] or ''}"


def _code(renderer: object, tokens: Sequence[Token], at: int, options: object, env: Any) -> str:
    """Return code in a sentence as HTML; paths and JSON would make the columns of tables as wide as they are long."""
    del renderer, options, env
    text = tokens[at].content
    parts = BREAKS.split(text) if len(text) > SHORT_CODE else [text]
    return f"<code>{'<wbr>'.join(map(escape, parts))}</code>"


PARSER.add_render_rule("code_inline", _code)


def _is_comment(token: Token) -> bool:
    """Whether *token* is a comment; those above blocks of code say how a test runs them."""
    return token.type == "html_block" and re.fullmatch(r"\s*<!--.*?-->\s*", token.content, re.DOTALL) is not None


def _headings(tokens: list[Token]) -> Iterator[Heading]:
    """Give each heading the id that GitHub gives it."""
    taken: dict[str, int] = {}
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            text = _plain(inline)
            base = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = taken[base] = taken.get(base, -1) + 1
            id = f"{base}-{count}" if count else base
            opening.attrSet("id", id)
            yield Heading(int(opening.tag[1]), id, text)


def _plain(token: Token) -> str:
    """Return the text of *token* without its markup."""
    if token.type != "inline":
        return token.content
    return "".join(" " if child.type == "softbreak" else child.content for child in token.children or ())


def _adapt(token: Token) -> None:
    """Change links to pages, and styles to classes, in *token* and what is in it."""
    if isinstance(link := token.attrGet("href"), str):
        token.attrSet("href", address_of(link))
    if (style := token.attrs.pop("style", None)) is not None:
        token.attrSet("class", ALIGNMENT[str(style)])
    for child in token.children or ():
        _adapt(child)
