"""The progress of each link to another broker, kept in a file, so that a link continues after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from gateway.access.authorization import SecretFileError, read_secret
from gateway.storage.record_schema import MAX_NUMBER, MAX_SEQ

CURSORS_FILE = "streamr-links.json"


class Cursor(NamedTuple):
    """Up to where messages have certainly been received and sent; 0 if unknown."""

    since: int = 0  # ms since 1970: everything that was published there until then is here
    sent: int = 0  # sequence: everything that was logged here until then is there


class _Told(msgspec.Struct):
    """The cursor of a *link*, as the gateway that holds it sends it to the others of a cluster."""

    link: str
    cursor: tuple[Annotated[int, Meta(ge=0, le=MAX_NUMBER)], Annotated[int, Meta(ge=0, le=MAX_SEQ)]]


_TOLD: Final = msgspec.json.Decoder(_Told)


class LinkCursors:
    """The cursors of links by their URLs. `on_change` is called when the file has to be written.

    `tell` sends data to the other gateways of a cluster, which pass it to `hear`.
    """

    def __init__(self, known: dict[str, Cursor]) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.tell: Callable[[bytes], None] = lambda _data: None
        self._configured: set[str] = set()
        self._cursors = known

    def keep_only(self, urls: Iterable[str]) -> None:
        """Forget links that are not configured any more."""
        self._configured = set(urls)
        self._cursors = {url: cursor for url, cursor in self._cursors.items() if url in self._configured}

    def get(self, url: str) -> Cursor:
        """The cursor of the link to *url*."""
        return self._cursors.get(url, Cursor())

    def set(self, url: str, cursor: Cursor) -> None:
        """Keep the *cursor* of the link to *url*, and send it to the gateways that may hold the link later."""
        if cursor != self._cursors.get(url):
            self._cursors[url] = cursor
            self.on_change()
            self.tell(json.dumps({"link": url, "cursor": cursor}).encode())

    def hear(self, data: bytes) -> None:
        """Take a cursor from the gateway that holds its link; raise `ValueError` if *data* is none."""
        fact = _TOLD.decode(data)
        if fact.link in self._configured:
            known = self.get(fact.link)
            self._cursors[fact.link] = Cursor(max(known.since, fact.cursor[0]), max(known.sent, fact.cursor[1]))
            self.on_change()

    def data(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({"cursors": self._cursors}).encode()


def read_cursors(path: Path) -> dict[str, Cursor]:
    """The cursors in the file at *path*, none if there is no file yet; `SecretFileError` if it is malformed."""
    if not path.exists():
        return {}
    data = read_secret(path)
    try:
        return {str(url): Cursor(int(since), int(sent)) for url, (since, sent) in json.loads(data)["cursors"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SecretFileError(
            f"{path} holds no cursors of links ({error}); move it away, and links begin with new messages"
        ) from None
