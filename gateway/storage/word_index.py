"""The words of messages, for searches: an FTS5 table beside the index, if `log.search` is on.

Laws of this file. The table belongs to the index: it is filled by the same thread in the same transactions, loses a row
with the record of that row, and is made again from the log whenever the index is. It holds a copy of each text, which
SQLite needs to delete a row. Any search may take long; so it runs in a thread, on a connection of its own, and is
stopped after `SEARCH_SECONDS`. What a peer searches for reaches SQLite only as quoted words.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from gateway.core.errors import SearchRefused, SearchTooLong, Unavailable
from gateway.core.jsontext import loads
from gateway.core.message import Message

from .record import Entry

TABLE: Final = "texts"
COLUMNS: Final = "texts (rowid, channel, text)"
SCHEMA: Final = """
CREATE VIRTUAL TABLE texts USING fts5 (channel, text, tokenize = "unicode61 remove_diacritics 2");
CREATE TRIGGER texts_deleted AFTER DELETE ON records WHEN OLD.channel IS NOT NULL BEGIN
    DELETE FROM texts WHERE rowid = OLD.seq;
END;
"""
MAX_INDEXED = 1 << 16  # bytes of a content; longer ones are not searched
MAX_QUERY = 256  # characters
MAX_WORDS = 16  # words and phrases in a query
SEARCH_SECONDS = 1.0  # that a search may take in its thread
STEPS = 10_000  # of SQLite's virtual machine between two looks at the clock

_TERM: Final = re.compile(r'"([^"]*)"|(\S+)')


class Search(NamedTuple):
    """What is searched for: messages of *channel* that match *expression*, between two sequences, both excluded.

    *since* and *until* bound the author's time (ms), the latter excluded.
    """

    channel: str
    expression: str
    after: int
    before: int
    sender: int | None = None
    since: int | None = None
    until: int | None = None
    newest_first: bool = False


def text_rows(entries: Iterable[Entry]) -> list[tuple[int, str, str]]:
    """The rows of the table for *entries*; a message without text has none."""
    found = ((entry.seq, entry.channel, text_of(entry.content)) for entry in entries if isinstance(entry, Message))
    return [(seq, channel_token(channel), text) for seq, channel, text in found if text]


def text_of(content: bytes) -> str:
    """All strings in a message's *content* but the names of members, one on each line; empty if it is too long."""
    if len(content) > MAX_INDEXED or b'"' not in content:
        return ""
    texts: list[str] = []
    todo: list[Any] = [loads(content)]
    while todo:
        value = todo.pop()
        if type(value) is str:
            texts.append(value)
        elif type(value) is dict:
            todo.extend(reversed(value.values()))
        elif type(value) is list:
            todo.extend(reversed(value))
    return "\n".join(texts)


def channel_token(channel: str) -> str:
    """The word that stands for *channel* in the table: the search looks only at rows that have it."""
    return "c" + blake2b(channel.encode(errors="backslashreplace"), digest_size=8).hexdigest()


def expression_of(query: str) -> str:
    """The FTS5 expression for a *query*: every word, and every phrase in quotation marks; `*` ends a prefix.

    Raises `SearchRefused`.
    """
    if len(query) > MAX_QUERY:
        raise SearchRefused(f"a search has at most {MAX_QUERY} characters")
    if not query.isprintable():
        raise SearchRefused("a search has no control characters")
    found = [(phrase or word, word.endswith("*")) for phrase, word in _TERM.findall(query)]
    terms = [(text, is_prefix) for text, is_prefix in found if any(map(str.isalnum, text))]
    if not 0 < len(terms) <= MAX_WORDS:
        raise SearchRefused(f"a search has 1 to {MAX_WORDS} words or phrases with letters or digits")
    return " AND ".join('"' + text.replace('"', "") + '"' + "*" * is_prefix for text, is_prefix in terms)


def search(path: Path, asked: Search, limit: int) -> list[tuple[int, int]]:
    """The sequences and offsets of at most *limit* messages in the index at *path*. Call it in a thread.

    Raises `SearchTooLong`, or `Unavailable` if the index cannot be read.
    """
    where = ["texts MATCH ?", "texts.rowid > ?", "texts.rowid < ?"]
    match = f"channel : {channel_token(asked.channel)} AND text : ({asked.expression})"
    values: list[Any] = [match, asked.after, asked.before]
    for column, operator, value in (
        ("sender", "=", asked.sender), ("at", ">=", asked.since), ("at", "<", asked.until)
    ):  # fmt: skip
        if value is not None:
            where.append(f"records.{column} {operator} ?")
            values.append(value)
    sql = (
        "SELECT records.seq, records.offset FROM texts CROSS JOIN records ON records.seq = texts.rowid"
        f" WHERE {' AND '.join(where)} AND records.channel = ?"
        f" ORDER BY texts.rowid {'DESC' if asked.newest_first else 'ASC'} LIMIT ?"
    )
    end = monotonic() + SEARCH_SECONDS
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            connection.set_progress_handler(lambda: monotonic() > end, STEPS)
            return connection.execute(sql, (*values, asked.channel, limit)).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise SearchTooLong(f"the search took more than {SEARCH_SECONDS:g} s") from None
        raise Unavailable(f"the index cannot be searched: {error}") from error
