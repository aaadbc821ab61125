"""The certificate that every TLS listener shows, and which can be replaced while they listen.

Listeners keep the context they were made with. It asks `Certificate` at each handshake which one to go on with (by the
callback for the server's name, which OpenSSL calls whether the client names one or not), so that a new certificate is
in use by all listeners at once, or by none.
"""

from __future__ import annotations

import hashlib
import ssl

from .settings import Settings

PROTOCOLS = ("h2", "http/1.1")  # of application, that hypercorn speaks; who asks for none of them is served too


class Certificate:
    """What `tls_cert` and `tls_key` say; `current` is None where there is no certificate."""

    def __init__(self, settings: Settings) -> None:
        self.current = read(settings)
        self.fingerprint = fingerprint(settings)

    def context(self, settings: Settings) -> ssl.SSLContext | None:
        """A context for a listener; None where there is no certificate."""
        found = tls_context(settings)
        return None if found is None else self.follow(found)

    def follow(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Let *context* show whatever certificate is the current one."""
        context.sni_callback = self._choose
        return context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        assert self.current is not None
        connection.context = self.current


def read(settings: Settings) -> ssl.SSLContext | None:
    """A context with the certificate of *settings*, fit for what the loop's HTTP server speaks."""
    context = tls_context(settings)
    if context is not None and settings.loop == "trio":
        context.set_alpn_protocols(list(PROTOCOLS))
    return context


def fingerprint(settings: Settings) -> str | None:
    """The SHA-256 of the file of the certificate, to tell whether it is another one."""
    return None if settings.tls_cert is None else hashlib.sha256(settings.tls_cert.read_bytes()).hexdigest()


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What listeners speak TLS with; None where there is no certificate, an `OSError` where it is of no use."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")  # else it asks the terminal
    return context
