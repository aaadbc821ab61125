"""The user behind a request: of a session token, or of an API key of the gateway; requests can carry either."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

from adapters.streamr.crypto.signing import checksum
from adapters.streamr.wire.ids import NAME
from gateway.access.authorization import KEY_PREFIX, key_identity
from gateway.core.message import REST, Peer
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal

DERIVED_ID_LENGTH: Final = 66  # characters of a publisher that is derived from a username


class User(NamedTuple):
    """The user of a request. One with a session token has an Ethereum *address*, in lower case."""

    principal: Principal
    address: str | None = None

    @property
    def username(self) -> str | None:
        """The name that clients use: the address with its checksum, or the name of the key; None for neither."""
        if self.address is not None:
            return checksum(self.address)
        name = self.principal.name
        return name.removeprefix(KEY_PREFIX) if name.startswith(KEY_PREFIX) else None

    def may_publish_as(self, publisher: str) -> bool:
        """Whether the user's messages may name *publisher* (in lower case).

        That is the address; or what genuine clients that have no private key derive from the username, the SHA-256 of
        its UTF-8 (`getPublisherId` of versions 2 to 4, `getUserId` of 5).
        """
        if publisher == self.address:
            return True
        name = self.username if len(publisher) == DERIVED_ID_LENGTH else None
        return name is not None and publisher == "0x" + sha256(name.encode()).hexdigest()

    def peer(self, peers: PeerRegistry) -> Peer | None:
        """The durable peer of the user on every protocol; None without an address or a key."""
        if self.address is not None:
            return peers.identity(NAME, self.address)
        name = self.username
        return None if name is None else peers.identity(REST, key_identity(name), name)
