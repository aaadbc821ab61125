"""Login by Ethereum key: a challenge to sign, and a session token for who signed it.

Challenges are not stored: their id is a MAC of what they say, and only those that were answered are remembered,
so that each is answered once. Tokens live in memory and end with the gateway; genuine clients log in again.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import OrderedDict
from typing import NamedTuple

from .signing import signed_by

CHALLENGE_LIFE = 300_000  # ms to answer a challenge
TOKEN_LIFE = 24 * 3_600_000  # ms without use after which a token ends
MAX_ANSWERED = 65_536  # challenges that are known to have been answered; beyond it the oldest is forgotten
MAX_TOKENS = 65_536  # beyond it the token that was not used for longest ends

ADDRESS = re.compile(r"0x[0-9A-Fa-f]{40}")


class Challenge(NamedTuple):
    """A text to sign (`personal_sign`) until *expires* (ms since 1970)."""

    id: str
    text: str
    expires: int


class Token(NamedTuple):
    """What a login is worth until *expires* (ms since 1970), which every use puts off."""

    token: str
    expires: int


class LoginError(Exception):
    """A challenge that is not ours, too old, answered before, or signed by somebody else."""


class Logins:
    """Who is logged in. Times are in ms since 1970."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._answered: OrderedDict[str, int] = OrderedDict()
        self._tokens: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def challenge(self, address: str, now: int) -> Challenge:
        """Something for *address* to sign."""
        expires = now + CHALLENGE_LIFE
        text = f"Sign this to log in to Trellis as {address}: {secrets.token_hex(16)} {expires}"
        return Challenge(self._mac(text), text, expires)

    def answer(self, id: str, text: str, signature: str, address: str, now: int) -> Token:
        """A token for *address*, which signed the challenge; `LoginError` says why not."""
        if not hmac.compare_digest(id.encode(errors="replace"), self._mac(text).encode()):
            raise LoginError("no challenge of this gateway")
        if f" {address.lower()}: " not in text.lower() or not signed_by(address, text, signature):
            raise LoginError("the challenge was not signed by this address")
        expires = int(text.rpartition(" ")[2])
        if expires < now or id in self._answered:
            raise LoginError("the challenge has expired or was answered already")
        self._answered[id] = expires
        while next(iter(self._answered.values())) < now or len(self._answered) > MAX_ANSWERED:
            self._answered.popitem(last=False)
        return self._issue(address.lower(), now)

    def address(self, token: str, now: int) -> str | None:
        """The lower-case address that *token* belongs to, None if it is none of ours; its end is put off."""
        found = self._tokens.pop(token, None)
        if found is None or found[1] < now:
            return None
        self._tokens[token] = found[0], now + TOKEN_LIFE
        return found[0]

    def end(self, token: str) -> None:
        """Log out."""
        self._tokens.pop(token, None)

    def _issue(self, address: str, now: int) -> Token:
        token = Token(secrets.token_urlsafe(32), now + TOKEN_LIFE)
        self._tokens[token.token] = address, token.expires
        while len(self._tokens) > MAX_TOKENS:
            self._tokens.popitem(last=False)
        return token

    def _mac(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(errors="replace"), "sha256").hex()
