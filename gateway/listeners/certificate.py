"""The certificate that every TLS listener presents; it can be replaced while they listen.

Listeners keep the context they were created with. At each handshake that context asks `Certificate` for the current one
(in the callback for the server's name, which OpenSSL calls whether the client sends a name or not), so that all
listeners switch to a new certificate at once.
"""

from __future__ import annotations

import hashlib
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import structlog

from gateway.settings.settings import Settings

PROTOCOLS = ("h2", "http/1.1")  # ALPN protocols of hypercorn; a client that offers none of them is served too
RENEW = "replace the file, then send SIGHUP"
SOON = timedelta(days=14)  # before its end a certificate should have been renewed

logger = structlog.get_logger("trellis")


class Certificate:
    """The certificate of `tls_cert` and `tls_key`; `current` is None if there is none."""

    def __init__(self, settings: Settings) -> None:
        self.current = read(settings)
        self.fingerprint = fingerprint(settings)
        log_validity(settings)

    def context(self, settings: Settings) -> ssl.SSLContext | None:
        """A context for a listener; None if there is no certificate."""
        found = tls_context(settings)
        return None if found is None else self.follow(found)

    def follow(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Make *context* present the current certificate at each handshake."""
        context.sni_callback = self._choose
        return context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        assert self.current is not None
        connection.context = self.current


def read(settings: Settings) -> ssl.SSLContext | None:
    """A context with the certificate of *settings*, and the ALPN protocols of the loop's HTTP server."""
    context = tls_context(settings)
    if context is not None and settings.loop == "trio":
        context.set_alpn_protocols(list(PROTOCOLS))
    return context


def fingerprint(settings: Settings) -> str | None:
    """The SHA-256 of the certificate's file, to tell whether it has changed; None without one."""
    return None if settings.tls_cert is None else hashlib.sha256(settings.tls_cert.read_bytes()).hexdigest()


def log_validity(settings: Settings) -> None:
    """Warn in the log if clients refuse the certificate of *settings* because of its dates, or will soon."""
    if settings.tls_cert is None:
        return
    from cryptography import x509  # a gateway without a certificate starts faster without it

    with suppress(OSError, ValueError):  # one that OpenSSL reads and this library cannot is still served
        found = x509.load_pem_x509_certificate(settings.tls_cert.read_bytes())
        first, last, now = found.not_valid_before_utc, found.not_valid_after_utc, datetime.now(UTC)
        details = {"file": str(settings.tls_cert), "begins": first.isoformat(), "ends": last.isoformat()}
        if now > last:
            logger.error("the certificate has expired", **details, consequence="clients refuse it", do=RENEW)
        elif now < first:
            do = "set the clock of this machine, or use another certificate"
            logger.error("the certificate is not valid yet", **details, consequence="clients refuse it", do=do)
        elif now > last - SOON:
            logger.warning("the certificate expires soon", **details, do=RENEW)


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """A TLS context for listeners; None if there is no certificate. Raises `OSError` if it cannot be used."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")  # else it asks the terminal
    return context
