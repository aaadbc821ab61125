"""Talks to a running gateway over REST; errors say what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from gateway.clients.sse import Event, EventReader

from .common import CommandError

TIMEOUT_SECONDS = 30.0  # for a response
SILENCE_SECONDS = 45.0  # a stream without a byte for this long is lost; the gateway writes at least every 15 s

Url = Annotated[
    str, typer.Option("--gateway", envvar="TRELLIS_URL", metavar="URL", help="The gateway to talk to.")
]  # its default is `DEFAULT_URL`
Key = Annotated[
    str | None, typer.Option("--key", envvar="TRELLIS_KEY", show_envvar=True, help="An API key, where one is needed.")
]
DEFAULT_URL = "http://127.0.0.1:8080"


class GatewayUnreachable(CommandError):
    """The gateway does not answer, or is unavailable (503); a later attempt may succeed."""


class Remote:
    """A connection to one gateway. Every method raises `CommandError` with the gateway's reason if it refuses."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url if "://" in url else f"http://{url}"
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS)
        except (httpx.InvalidURL, ValueError, UnicodeError) as error:
            raise CommandError(f"{url} is not the address of a gateway ({error}); try {DEFAULT_URL}") from None

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        """Return the JSON value at *path*."""
        return self.request("GET", path).json()

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> httpx.Response:
        """Send one request and return the response; underscores in the names of *headers* stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with self._translate_errors():
            response = self._http.request(method, path, content=body, headers=named)
        if response.is_error:
            raise self._error_of(response)
        return response

    def events(self, channel: str, after: int | None) -> Iterator[Event]:
        """Yield the events of *channel* after a sequence, until the gateway or the network ends the stream."""
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        timeout = httpx.Timeout(TIMEOUT_SECONDS, read=SILENCE_SECONDS)
        with (
            self._translate_errors(),
            self._http.stream("GET", path_of(channel, "events"), headers=headers, timeout=timeout) as response,
        ):
            if response.is_error:
                response.read()
                raise self._error_of(response)
            reader = EventReader()
            for data in response.iter_bytes():
                yield from reader.receive_data(data)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            raise GatewayUnreachable(f"the gateway at {self.url} does not answer") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):  # the cause is nested three deep
                raise CommandError(
                    f"the certificate of {self.url} is not trusted ({error}); if `trellis dev-cert` made it, "
                    "name its authority with SSL_CERT_FILE=certs/ca.pem"
                ) from None
            raise GatewayUnreachable(
                f"no gateway at {self.url} ({error or type(error).__name__}); start one with `trellis serve`, "
                "or set its address with --gateway or TRELLIS_URL"
            ) from None

    def _error_of(self, response: httpx.Response) -> CommandError:
        reason = f"{response.status_code}: {_detail(response)}"
        if response.status_code == httpx.codes.UNAUTHORIZED:
            reason += "\ngive a key with --key or TRELLIS_KEY; `trellis key add NAME` makes one"
        return (GatewayUnreachable if response.status_code == httpx.codes.SERVICE_UNAVAILABLE else CommandError)(reason)


def path_of(channel: str, *rest: object) -> str:
    """Return the path of a channel, or of a resource below it."""
    # Dots are encoded too, so that a channel called ".." does not lead to the parent path.
    name = quote(channel.encode(errors="surrogateescape"), safe="").replace(".", "%2E")
    return "/".join(["/v1/channels", name, *map(str, rest)])


def _detail(response: httpx.Response) -> str:
    """Return the detail of a problem (RFC 9457), or the reason phrase of any other response."""
    if response.headers.get("content-type") == "application/problem+json":
        return str(response.json()["detail"])
    return f"{response.reason_phrase or 'refused'}; is {response.url} of a Trellis gateway?"


def pretty(value: Any) -> str:
    """Return *value* as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)
