"""Login by Ethereum key: a challenge to sign, and a session token for the signer.

Invariants. A login takes no memory, so nobody can exhaust the room for other logins: a challenge and a token consist of
their claims and a MAC. Tokens survive a restart. A challenge that is answered twice gives the same token twice, so a
recorded answer is worth no more than the token, and nothing after a logout. Only logged-out tokens are remembered (see
`logouts.py`).
"""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from adapters.streamr.crypto.signing import is_signed_by
from gateway.core.errors import RequestError

from .logouts import Logouts

CHALLENGE_LIFE = 300_000  # ms to answer a challenge
TOKEN_LIFE = 7 * 24 * 3_600_000  # ms from the challenge on; genuine clients log in again where REST refuses a token
MAX_PARSED_TOKENS = 4_096  # parsed tokens in a cache: clients send theirs with every request

ADDRESS = re.compile(r"0x[0-9A-Fa-f]{40}")

# A token is base64url of an address, the time of its end, a part of the challenge's id and a MAC: 48 bytes.
_ADDRESS_BYTES: Final = 20
_EXPIRES_BYTES: Final = 6
_NONCE_BYTES: Final = 6
_MAC_BYTES: Final = 16
_CLAIMS_BYTES: Final = _ADDRESS_BYTES + _EXPIRES_BYTES + _NONCE_BYTES
TOKEN_LENGTH: Final = (_CLAIMS_BYTES + _MAC_BYTES) * 4 // 3


class Challenge(NamedTuple):
    """A text to sign (`personal_sign`) until *expires* (ms since 1970)."""

    id: str
    text: str
    expires: int


class SessionToken(NamedTuple):
    """A session token, valid until *expires* (ms since 1970)."""

    token: str
    expires: int


class TokenClaims(NamedTuple):
    """The claims of a genuine token; *id* is the token without its MAC."""

    address: str
    expires: int
    id: bytes


class LoginError(RequestError):
    """The challenge is not the gateway's, has expired, is signed by another address, or its token was logged out."""


class Logins:
    """Issues and checks session tokens. Times are in ms since 1970; *secret* is the gateway's."""

    def __init__(self, secret: bytes, logouts: Logouts) -> None:
        self._key = hmac.digest(secret, b"trellis streamr login", "sha256")
        self._logouts = logouts
        self._claims = lru_cache(maxsize=MAX_PARSED_TOKENS)(self._parse)

    def challenge(self, address: str, now: int) -> Challenge:
        """A challenge for *address* to sign."""
        expires = now + CHALLENGE_LIFE
        text = f"Sign this to log in to Trellis as {address}: {secrets.token_hex(16)} {expires}"
        return Challenge(self._challenge_id(text), text, expires)

    def log_in(self, id: str, text: str, signature: str, address: str, now: int) -> SessionToken:
        """The token for *address*, which signed the challenge; `LoginError` if it did not, or too late."""
        if not hmac.compare_digest(id.encode(errors="replace"), self._challenge_id(text).encode()):
            raise LoginError("no challenge of this gateway")
        if f" {address.lower()}: " not in text.lower() or not is_signed_by(address, text, signature):
            raise LoginError("the challenge was not signed by this address")
        expires = int(text.rpartition(" ")[2])
        if expires < now:
            raise LoginError("the challenge has expired")
        token = self._issue_token(
            address.lower(), expires - CHALLENGE_LIFE + TOKEN_LIFE, bytes.fromhex(id)[:_NONCE_BYTES]
        )
        if self.address(token.token, now) is None:
            raise LoginError("the challenge was answered before, and its token was logged out")
        return token

    def address(self, token: str, now: int) -> str | None:
        """The lower-case address that *token* belongs to; None if the token is invalid, expired or logged out."""
        found = self.claims(token)
        return found.address if found is not None and self.holds(found, now) else None

    @property
    def logout_count(self) -> int:
        """How many tokens were logged out since the start, or were known to be."""
        return self._logouts.count

    def claims(self, token: str) -> TokenClaims | None:
        """The claims of *token*, which may have ended; None if it is not the gateway's."""
        return self._claims(token) if len(token) == TOKEN_LENGTH else None

    def holds(self, claims: TokenClaims, now: int) -> bool:
        """Whether a token with these *claims* is valid."""
        return claims.expires >= now and claims.id not in self._logouts

    def log_out(self, token: str, network: str, now: int, done: Callable[[bool], None] = lambda _written: None) -> None:
        """Log *token* out; *network* is the network address of the request.

        *done* is called with True once that is on disk, with False if it cannot be written now.
        """
        found = self.claims(token)
        if found is None or found.expires < now:
            done(True)
            return
        self._logouts.add(found.id, network, found.expires, now)
        self._logouts.when_written(done)

    def _issue_token(self, address: str, expires: int, nonce: bytes) -> SessionToken:
        claims = bytes.fromhex(address[2:]) + expires.to_bytes(_EXPIRES_BYTES) + nonce
        return SessionToken(urlsafe_b64encode(claims + self._token_mac(claims)).decode(), expires)

    def _parse(self, token: str) -> TokenClaims | None:
        """The claims of *token*; None if it is not the gateway's."""
        try:
            data = urlsafe_b64decode(token.encode())
        except ValueError:
            return None
        claims, mac = data[:_CLAIMS_BYTES], data[_CLAIMS_BYTES:]
        if not hmac.compare_digest(mac, self._token_mac(claims)):
            return None
        expires = int.from_bytes(claims[_ADDRESS_BYTES:-_NONCE_BYTES])
        return TokenClaims("0x" + claims[:_ADDRESS_BYTES].hex(), expires, claims)

    def _challenge_id(self, text: str) -> str:
        return hmac.digest(self._key, b"challenge " + text.encode(errors="replace"), "sha256").hex()

    def _token_mac(self, claims: bytes) -> bytes:
        return hmac.digest(self._key, b"token " + claims, "sha256")[:_MAC_BYTES]
