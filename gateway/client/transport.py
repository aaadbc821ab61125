"""Requests of the client: sent, repeated where that is safe, and answered by a response or an error."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import httpx

from .errors import BadAddress, NotAGateway, Refused, TrellisError, Unreachable, Untrusted, error_of, not_a_gateway

FIRST_PAUSE = 0.2  # seconds before the second attempt, doubled after each failure
MAX_PAUSE = 15.0  # seconds between two attempts
SILENCE_SECONDS = 45.0  # a stream without a byte for this long is lost; the gateway writes at least every 15 s
UNKNOWN_ISSUER = (18, 19, 20, 21)  # codes of OpenSSL (X509_V_ERR_...): no authority that is trusted has issued it
NOT_SENT = (  # errors before anything of the request was sent
    *(httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError),
    *(httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError),
)

MAX_ANSWER = 32 << 20  # bytes; a page of history has 4 MiB of contents, which may be escaped
MAX_VALUES = 4_000_000  # in an answer, about: Python takes some 64 bytes for each
PATIENCE = 10  # times the timeout, which is for what comes next: a whole answer takes less
IDENTITY = {"Accept-Encoding": "identity"}  # what is compressed may be any size
STRANGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)  # of reading an answer

Address = str | os.PathLike[str]
T = TypeVar("T")


class Backoff:
    """The pauses between attempts; a random part keeps many clients from coming back at the same moment."""

    def __init__(self, seconds: float) -> None:
        """Allow attempts to begin within so many *seconds* from now."""
        self._deadline = anyio.current_time() + seconds
        self._pause = FIRST_PAUSE

    def next(self, error: TrellisError) -> float | None:
        """Return the seconds until the next attempt after *error*; None if that would be too late."""
        pause = next_pause(self._pause, error)
        self._pause = min(self._pause * 2, MAX_PAUSE)
        return pause if anyio.current_time() + pause <= self._deadline else None


def next_pause(pause: float, error: TrellisError) -> float:
    """Return *pause* with its random part, or the time in seconds that the gateway asked for if that is longer."""
    asked = error.retry_after if isinstance(error, Refused) else 0.0
    return max(pause * random.uniform(0.5, 1.0), asked)


class Transport:
    """The connections to one gateway."""

    def __init__(
        self,
        url: str,
        key: str | None,
        tls: ssl.SSLContext | None,
        ca_file: Address | None,
        timeout: float,
        retry_seconds: float,
    ) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self.timeout = timeout
        self.retry_seconds = retry_seconds
        try:
            _check(self.url)
            self._http = httpx.AsyncClient(
                base_url=self.url,
                headers=IDENTITY | ({} if key is None else {"Authorization": f"Bearer {key}"}),
                timeout=timeout,
                verify=tls or _trust(self.url, ca_file),
                limits=httpx.Limits(max_connections=None),  # each subscription has one
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise BadAddress(f"{url!r} is not the address of a gateway ({error})") from None

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON value at *path*."""
        return json_of(await self.request("GET", path, params=params))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn the errors of reading an answer that no gateway gives into `NotAGateway`."""
        try:
            yield
        except STRANGE:
            raise NotAGateway(f"{self.url} gives an answer that no Trellis gateway gives") from None

    def read(self, answer: Any, read: Callable[[Any], T]) -> T:
        """Return what *read* makes of *answer*: a response, or its JSON value."""
        with self.reading():
            return read(answer)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        repeatable: bool = True,
    ) -> httpx.Response:
        """Send a request, and again if it fails temporarily and is *repeatable* or was not accepted."""
        backoff = Backoff(self.retry_seconds)
        while True:
            try:
                request = self._http.build_request(method, path, content=body, headers=headers, params=params)
                if body:
                    request.stream = _Body(body)
                response = await self._send(request)
                if response.is_success:
                    return response
                raise self.read(response, error_of)
            except TrellisError as error:
                safe = repeatable or not (isinstance(error, Unreachable) and error.sent)
                pause = backoff.next(error) if error.temporary and safe else None
                if pause is None:
                    raise
                await anyio.sleep(pause)

    async def stream(self, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """Open a stream; its body is still to be read."""
        timeout = httpx.Timeout(self.timeout, read=max(SILENCE_SECONDS, self.timeout))
        plain = {"Accept": "text/event-stream"}
        request = self._http.build_request("GET", path, headers=plain | dict(headers), timeout=timeout)
        with self.errors(), self._limit():
            response = await self._http.send(request, stream=True)
            if response.is_success and response.headers.get("content-type", "").startswith("text/event-stream"):
                if not _is_plain(response):
                    await end(response, response.aiter_raw())
                    raise not_a_gateway(response)
                return response
            response = await whole(response)
        raise not_a_gateway(response) if response.is_success else self.read(response, error_of)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """Send *request* and return the response with its body."""
        with self.errors(), self._limit():
            return await whole(await self._http.send(request, stream=True))

    @contextmanager
    def _limit(self) -> Iterator[None]:
        """Raise `Unreachable` if something takes much longer than the timeout, which each step of it has anew."""
        try:
            with anyio.fail_after(PATIENCE * self.timeout):
                yield
        except TimeoutError:
            raise Unreachable(f"the gateway at {self.url} does not end its answer") from None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the errors of HTTP and of the network into those of the client."""
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            sent = not isinstance(error, NOT_SENT)
            if (doubt := _mistrust(error)) is not None:
                text = f"the certificate of {self.url} is not trusted ({doubt.verify_message})"
                raise Untrusted(text, unknown_issuer=doubt.verify_code in UNKNOWN_ISSUER) from None
            if isinstance(error, httpx.TimeoutException):
                raise Unreachable(f"the gateway at {self.url} does not answer", sent=sent) from None
            reason = "the connection was lost to" if sent else "no gateway at"
            raise Unreachable(f"{reason} {self.url} ({str(error) or type(error).__name__})", sent=sent) from None


class _Body(httpx.AsyncByteStream):
    """A body in one piece; that of httpx is a generator, which trio complains about if a connection breaks early."""

    def __init__(self, data: bytes) -> None:
        self._parts = iter((data,))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration


async def whole(response: httpx.Response) -> httpx.Response:
    """Return *response* with its body; raise `NotAGateway` if that is compressed or too long."""
    data, body = response.aiter_raw(), bytearray()
    fits = _is_plain(response)
    while fits and (part := await anext(data, None)) is not None:
        body += part
        fits = len(body) <= MAX_ANSWER
    if not fits:
        await end(response, data)
        raise not_a_gateway(response)
    await response.aclose()
    found = httpx.Response(response.status_code, headers=response.headers, content=bytes(body))
    found.request, found.extensions = response.request, response.extensions
    return found


async def end(response: httpx.Response, data: AsyncIterator[bytes]) -> None:
    """Close the connection of *response*, and end the generators of *data*, which trio complains about else."""
    with suppress(Exception):
        await response.extensions["network_stream"].aclose()
        while await anext(data, None) is not None:  # what had arrived before
            pass
    with suppress(Exception):
        await response.aclose()


def _is_plain(response: httpx.Response) -> bool:
    """Whether *response* is not compressed."""
    return bool(response.headers.get("content-encoding", "identity") == "identity")


def json_of(response: httpx.Response) -> Any:
    """Return the JSON value in *response*; raise `NotAGateway` if there is none."""
    if response.content.count(b",") + response.content.count(b"[") > MAX_VALUES:
        raise not_a_gateway(response)
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise not_a_gateway(response) from None


def path_of(channel: str, *rest: object) -> str:
    """Return the path of a channel, or of a resource below it."""
    # Dots are encoded too, so that a channel called ".." does not lead to the parent path.
    name = quote(channel.encode(errors="surrogateescape"), safe="").replace(".", "%2E")
    return "/".join(["/v1/channels", name, *map(str, rest)])


def _check(url: str) -> None:
    """Raise `ValueError` unless *url* is one of HTTP with a host and a valid port."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("a URL such as http://127.0.0.1:8080 is needed")
    if parts.path.endswith("/v1"):
        raise ValueError("leave out /v1, which follows the address of every gateway")


def _mistrust(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the refusal of a certificate that *error* comes from, or None; the cause is several deep."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _trust(url: str, ca_file: Address | None) -> ssl.SSLContext:
    """Return a context that trusts *ca_file*, or else the system's authorities, which take a while to load."""
    if ca_file is None and not url.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context(cafile=ca_file)
