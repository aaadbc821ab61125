"""Authentication of requests by their tokens and keys, and which addresses may publish, read, or belong to the gateway.

Addresses are Ethereum addresses in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from adapters.streamr.model.users import User
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.refusals import Unauthenticated
from gateway.core.principal import Principal

if TYPE_CHECKING:
    from adapters.streamr.crypto.keys import EthereumAccount

    from .context import Context


class Trust:
    """Decides by session tokens, API keys, rights, and the publishers that the index knows."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # Authentication

    def user_of_token(self, token: str, network: str = "") -> User | None:
        """The user of the session token or API key *token*, who connects from *network*; None if it is not valid."""
        if (address := self._context.logins.address(token, self._context.bus.clock())) is not None:
            return User(Principal(f"{NAME}:{address}", network), address)
        holder = self._context.access.principal_of(token, network)
        return None if holder is None else User(holder)

    def authenticate(self, tokens: Iterable[str | None], principal: Principal) -> User:
        """The user of the first valid one of *tokens*.

        Without a token, or with authentication off, that is *principal*. If no token is valid, raise `Unauthenticated`.
        """
        given = [token for token in tokens if token]
        for token in given:
            if (user := self.user_of_token(token, principal.network)) is not None:
                return user
        if given and self._context.access.enabled:
            raise Unauthenticated("no such session token or API key")
        return User(principal)

    # Authorization

    def is_publisher(self, stream: str, address: str) -> bool:
        """Whether readers should accept messages that *address* signed on *stream*."""
        bus, signer = self._context.bus, self._context.bridge_signer
        channels = self._context.streams.channels_of(stream)
        principal = Principal(f"{NAME}:{address}")
        return (
            any(bus.allowed(principal, "publish", channel) for channel in channels)
            or any(signer.recent_account(channel, address) for channel in channels)
            or self._context.publishers.has_published(stream, address)
        )

    def may_read(self, stream: str, address: str) -> bool:
        """Whether *address* may read *stream*; publishers check this before they send it a group key."""
        streams, allowed = self._context.streams, self._context.bus.allowed
        if address == self._context.own.address and streams.decrypts(stream):
            return True
        principal = Principal(f"{NAME}:{address}")
        return any(allowed(principal, "subscribe", channel) for channel in streams.channels_of(stream))

    # Addresses of the gateway

    def account_of(self, stream: str, address: str) -> EthereumAccount | None:
        """The account *address*, with which the gateway signs for a foreign sender on *stream*; None without one."""
        signer = self._context.bridge_signer
        for channel in self._context.streams.channels_of(stream):
            if (account := signer.recent_account(channel, address)) is not None:
                return account
        found = self._context.publishers.foreign_sender(address)
        return None if found is None else signer.keys.of(*found)

    def is_gateway_address(self, address: str) -> bool:
        """Whether the gateway signs with *address*, for itself or for a foreign sender."""
        own = address == self._context.own.address or self._context.bridge_signer.has_signed_as(address)
        return own or self._context.publishers.foreign_sender(address) is not None
