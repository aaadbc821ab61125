"""The session tokens and API keys that a connection has shown; it ends with any of them.

All connections are asked once a second, and each may have shown `MAX_TOKENS`. So the claims of a session token are read
once, and as long as nobody logs out and none expires, nothing has to be compared.
"""

from __future__ import annotations

from math import inf
from typing import Final

from adapters.streamr.model.login import Logins, TokenClaims
from adapters.streamr.model.users import User
from adapters.streamr.trust import Trust

MAX_TOKENS: Final = 64  # tokens and keys that one connection may show: a node carries the requests of several users


class ShownTokens:
    """The `users` of a connection, by the tokens and keys that it showed."""

    def __init__(self, trust: Trust, logins: Logins) -> None:
        self.users: dict[str, User] = {}
        self._trust = trust
        self._logins = logins
        self._claims: list[TokenClaims] = []
        self._keys: list[str] = []  # what is no session token
        self._valid_until = inf  # ms, unless somebody logs out
        self._logouts = logins.logout_count  # when the claims were last compared

    def add(self, token: str, user: User) -> None:
        """Remember *token*, which is valid, and its *user*."""
        self.users[token] = user
        if (claims := self._logins.claims(token)) is None or user.address is None:
            self._keys.append(token)
        else:
            self._claims.append(claims)
            self._valid_until = min(self._valid_until, claims.expires)

    def any_ended(self, now: int) -> bool:
        """Whether any of them is not valid any more; *now* is in ms."""
        if self._claims and (now > self._valid_until or self._logouts != self._logins.logout_count):
            self._logouts = self._logins.logout_count
            if not all(self._logins.holds(claims, now) for claims in self._claims):
                return True
        return any(self._trust.user_of_token(key) is None for key in self._keys)
