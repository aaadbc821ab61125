"""Connecting to NATS servers: where they are, TLS, credentials, and what it means if they refuse."""

from __future__ import annotations

import ssl
from pathlib import Path
from random import sample
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from nats.aio.client import Client

from gateway.core.errors import OperatorError

from .credentials import BadCredentials, read_credentials


class UnfitStream(OperatorError):
    """The stream, or the server, is not what a member needs; the text says why."""


class JetStreamSettings(NamedTuple):
    """Which stream: the *name* of the cluster, the *urls* of servers, how many *replicas*, TLS and credentials.

    *about* is what all members have in common; the stream has it as its description.
    """

    name: str
    urls: tuple[str, ...]
    replicas: int = 1
    authorities: Path | None = None
    credentials: Path | None = None
    about: str = ""


def prepare(client: Client, settings: JetStreamSettings) -> dict[str, Any]:
    """The options with which *client* is to connect; raises `UnfitStream` if files of *settings* cannot be used."""
    urls = sample(settings.urls, len(settings.urls))  # the next one is always another server
    options: dict[str, Any] = {"servers": urls, "dont_randomize": True}
    if settings.authorities is not None or any(url.startswith("tls:") for url in settings.urls):
        try:
            options["tls"] = ssl.create_default_context(cafile=settings.authorities)
        except OSError as error:
            raise UnfitStream(f"cluster.authorities: {settings.authorities} has no certificates: {error}") from None
    if settings.credentials is not None:
        try:
            credentials = read_credentials(settings.credentials)
        except BadCredentials as error:
            raise UnfitStream(f"cluster.credentials: {error}") from None
        options |= credentials.options()
        client._public_nkey = credentials.public  # nats-py sets it from files that it reads with a library of its own
    return options


def server_of(client: Client) -> str:
    """The host and port to which *client* is connected, without a password; empty if it is not."""
    url = client.connected_url
    return "" if url is None else url.netloc.rpartition("@")[2]


def abort(client: Client) -> None:
    """End the connection of *client* without sending what is left; nats-py has no public way."""
    writer = getattr(client._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


def describe(error: Exception, settings: JetStreamSettings) -> str:
    """What *error* says; one of the system, such as a refused connection, names no server, so all are named."""
    text = str(error) or type(error).__name__
    if not isinstance(error, OSError) or error.errno is None:
        return text
    return f"{text} ({', '.join(urlsplit(url).netloc.rpartition('@')[2] for url in settings.urls)})"


def refusal(error: Exception) -> str | None:
    """What an operator has to correct if a server refuses a connection by *error*; None if it may be temporary."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not trusted ({error.verify_message}): see cluster.authorities"
    if isinstance(error, ssl.SSLError):
        return f"TLS with the server fails ({error.reason or error}): see cluster.url and cluster.authorities"
    if "authorization" in str(error).lower():
        return "the server refuses the credentials: see cluster.credentials, or the user and password in cluster.url"
    return None
