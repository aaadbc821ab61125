"""Sends one delivery to a receiver, within limits of time and size, and returns its outcome.

No redirect is followed, no cookie is kept, no proxy is used, and of an answer only the status is shown:
an administrator of webhooks learns nothing from a server that they cannot reach themselves.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from time import time
from typing import Final, NamedTuple

import anyio
import httpcore

from .addresses import AddressPolicy, AddressRefused, AnswerTooLong, GuardedNetwork, IpNetwork

MAX_CONNECTIONS = 64
IDLE_SECONDS = 30.0  # for which an unused connection is kept
MAX_RETRY_AFTER = 24 * 3_600.0  # seconds that a receiver may ask for

GONE: Final = 410
UNAVAILABLE: Final = frozenset({408, 425, 429, 502, 503, 504})  # these say nothing about the message


class Verdict(Enum):
    """What became of an attempt."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # the receiver answered that it does not want this message
    UNREACHABLE = "unreachable"  # the receiver cannot take any message now
    GONE = "gone"  # the receiver wants no message any more


class Outcome(NamedTuple):
    """What became of an attempt: the status if there was an answer, else the error; and when to try again (s)."""

    verdict: Verdict
    status: int | None = None
    error: str = ""
    retry_after: float = 0.0


class Sender:
    """Sends deliveries; addresses that are not public have to be in *networks*.

    Creating one loads the authorities that certificates are checked with, which takes some 20 ms.
    """

    def __init__(self, networks: Iterable[IpNetwork], version: str) -> None:
        allowed = tuple(networks)
        self._user_agent = f"Trellis/{version}"
        self._pools = {
            "https": _pool(AddressPolicy(allowed, public=True), ssl.create_default_context()),
            "http": _pool(AddressPolicy(allowed, public=False)),
        }

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Outcome:
        """Send *body* to *url*; the whole attempt takes at most so many *seconds*."""
        try:
            with anyio.fail_after(seconds):
                return await self._send(url, headers, body)
        except TimeoutError:
            return Outcome(Verdict.UNREACHABLE, error=f"no complete answer within {seconds:g} s")
        except AnswerTooLong:
            return Outcome(Verdict.UNREACHABLE, error="the head of its answer is too long")
        except AddressRefused as error:
            return Outcome(Verdict.UNREACHABLE, error=str(error))
        except UnicodeError:
            return Outcome(Verdict.UNREACHABLE, error="its name is not one that can be resolved")
        except (OSError, httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            return Outcome(Verdict.UNREACHABLE, error=_describe(error))

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        scheme = url.partition(":")[0].lower()
        sent = {"content-type": "application/json", "user-agent": self._user_agent, "accept-encoding": "identity"}
        pairs = [(name, value) for name, value in (sent | dict(headers)).items()]
        async with self._pools[scheme].stream("POST", url, headers=pairs, content=body) as response:
            outcome = _outcome(response)
            with suppress(AnswerTooLong):  # then the connection is closed with the response
                async for _ in response.aiter_stream():  # to its end, so that the connection can be used again
                    pass
        return outcome


def _pool(policy: AddressPolicy, context: ssl.SSLContext | None = None) -> httpcore.AsyncConnectionPool:
    return httpcore.AsyncConnectionPool(
        ssl_context=context,
        max_connections=MAX_CONNECTIONS,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=GuardedNetwork(policy),
    )


def _outcome(response: httpcore.Response) -> Outcome:
    status = response.status
    if 200 <= status < 300:
        return Outcome(Verdict.DELIVERED, status)
    if status == GONE:
        return Outcome(Verdict.GONE, status, "it answered 410 Gone")
    value = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
    verdict = Verdict.UNREACHABLE if status in UNAVAILABLE else Verdict.REFUSED
    redirected = " (redirects are not followed)" if 300 <= status < 400 else ""
    return Outcome(verdict, status, f"it answered {status}{redirected}", parse_retry_after(value.decode("latin-1")))


def parse_retry_after(value: str) -> float:
    """Return the seconds that a `Retry-After` header asks for (RFC 9110, section 10.2.3); 0 if it is not valid."""
    value = value.strip()
    if value.isdecimal() and value.isascii():
        return min(float(value[:9]), MAX_RETRY_AFTER)
    try:
        then = parsedate_to_datetime(value)
        at = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
        return min(max(0.0, (at - datetime.fromtimestamp(time(), UTC)).total_seconds()), MAX_RETRY_AFTER)
    except (ValueError, OverflowError):  # a time zone may be any number
        return 0.0


def _describe(error: BaseException) -> str:
    """Return in a few words why there was no answer; the cause of what httpcore raises says more."""
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {cause.reason or cause}"
    return f"it cannot be reached: {str(error) or type(error).__name__}"
