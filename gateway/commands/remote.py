"""A running gateway for commands: the Python client, called from code that does not await; errors say what to do next.

The client has a loop in a thread of its own, so Ctrl-C ends a command at once, whatever it waits for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, TypeVar

import typer
from anyio.from_thread import BlockingPortal, start_blocking_portal

from gateway.client import BadAddress, TrellisClient, TrellisError, Unauthorized, Unreachable, Untrusted

from .common import CommandError

Url = Annotated[
    str, typer.Option("--gateway", envvar="TRELLIS_URL", metavar="URL", help="The gateway to talk to.")
]  # its default is `DEFAULT_URL`
Key = Annotated[
    str | None, typer.Option("--key", envvar="TRELLIS_KEY", show_envvar=True, help="An API key, where one is needed.")
]
DEFAULT_URL = "http://127.0.0.1:8080"

HINTS: dict[type[TrellisError], str] = {
    BadAddress: f"; try {DEFAULT_URL}",
    Unreachable: "; start one with `trellis serve`, or set its address with --gateway or TRELLIS_URL",
    Untrusted: "; if `trellis dev-cert` made it, name its authority with SSL_CERT_FILE=certs/ca.pem",
    Unauthorized: "\ngive a key with --key or TRELLIS_KEY; `trellis key add NAME` makes one",
}

T = TypeVar("T")


class Remote:
    """One gateway. Every method raises `CommandError` with the gateway's reason if it refuses."""

    client: TrellisClient
    _portal: BlockingPortal

    def __init__(self, url: str, key: str | None = None) -> None:
        with translated():
            self.client = TrellisClient(url, key, retry_seconds=0)
        self._stack = ExitStack()

    def __enter__(self) -> Remote:
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._stack.callback(self._portal.call, self.client.aclose)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def call(self, method: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Await a method of the client, or a function of a command, and return its result."""
        with translated():
            return self._portal.call(method, *arguments)

    def get(self, path: str) -> Any:
        """Return the JSON value at *path*."""
        return self.call(self.client.get, path)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what an async iterator of the client yields."""

        async def fetch() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        while (found := self.call(fetch)) is not None:
            yield found[0]


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of the client into those of commands."""
    try:
        yield
    except TrellisError as error:
        raise CommandError(f"{error}{_hint(error)}") from None


def _hint(error: TrellisError) -> str:
    """Return what to do about *error*."""
    if isinstance(error, Untrusted) and not error.unknown_issuer:
        return "; renew it, or use an address that it was issued for"
    if isinstance(error, Unreachable) and "WRONG_VERSION_NUMBER" in str(error):
        return "; it speaks no TLS: try http:// in place of https://"
    if isinstance(error, Unreachable) and "without sending a response" in str(error):
        return "; if it speaks TLS, try https:// in place of http://"
    return HINTS.get(type(error), "")
