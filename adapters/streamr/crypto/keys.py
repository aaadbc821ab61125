"""The Ethereum keys of senders that have none; they are derived from the gateway's secret, and survive a restart.

A sender of another protocol appears in Streamr as an address. Its key is
HKDF-SHA256 (RFC 5869) of the gateway's secret and the sender's durable identity; a mere connection has its number,
which no other connection of this gateway ever gets. Nothing of it is stored.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from coincurve import PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.core.jsontext import dumps

from .signing import address_of

MAX_KEYS = 4096  # kept in memory; deriving one again takes some 50 microseconds
_ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141  # of secp256k1 (SEC 2, 2.4.1)
_LENGTH = 48  # bytes: 128 bits more than the order, so that the remainder is not biased (FIPS 186-5, A.2.1)


class EthereumAccount(NamedTuple):
    """A private key and its address in lower case."""

    key: PrivateKey
    address: str


class DerivedKeys:
    """Gives every sender of another protocol its key. Safe to ask from any thread."""

    def __init__(self, secret: bytes, gateway_id: str) -> None:
        self.secret = secret
        self._gateway_id = gateway_id
        self.of = lru_cache(maxsize=MAX_KEYS)(self._derive)

    def _derive(self, protocol: str, identity: str | None, number: int) -> EthereumAccount:
        """The key of the durable *identity* in *protocol*, or without one of the connection *number*."""
        name = [protocol, identity] if identity is not None else [protocol, self._gateway_id, number]
        derived = HKDF(SHA256(), _LENGTH, salt=None, info=b"trellis streamr author " + dumps(name)).derive(self.secret)
        key = PrivateKey.from_int(int.from_bytes(derived) % (_ORDER - 1) + 1)
        return EthereumAccount(key, address_of(key.public_key))
