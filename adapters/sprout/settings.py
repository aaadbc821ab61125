"""The settings of Sprout: the section `sprout` of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cryptography.x509 import load_pem_x509_certificates
from pydantic import BaseModel, ConfigDict, Field, field_validator

from adapters.sprout.forest.forest import is_node_id
from adapters.sprout.hub.identification import Identify
from adapters.sprout.outgoing.presence import PresenceMode
from adapters.sprout.sessions.dialled_relays import SproutPeer


class SproutSettings(BaseModel):
    """The section `sprout` of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    port: int = Field(default=7777, ge=0, le=65535, description="for TCP")
    tls_port: int = Field(default=7778, ge=0, le=65535, description="for TLS, where there is a certificate")
    direct: Literal["deliver", "refuse"] = Field(default="deliver", description="what happens to direct replies")
    identify: Identify = Field(
        default="fresh", description="when a connection is taken for the author of what it brings"
    )
    presence: PresenceMode = Field(
        default="silent", description="`tell` presence to all, or only to peers that announce their own"
    )
    peers: tuple[SproutPeer, ...] = Field(
        default=(), description="relays that are dialled: HOST:PORT, tcp://HOST:PORT, or a table with `url`"
    )
    gateways: tuple[str, ...] = Field(default=(), description="ids of gateways whose claims about channels are trusted")
    insecure: bool = Field(default=False, description="accept any certificate of a peer")
    authorities: Path | None = Field(default=None, description="certificate authorities of peers, in PEM")

    @field_validator("peers")
    @classmethod
    def _peers(cls, peers: tuple[SproutPeer, ...]) -> tuple[SproutPeer, ...]:
        if len({peer.url for peer in peers}) < len(peers):
            raise ValueError("the same url twice: name all its channels in one table")
        return peers

    @field_validator("gateways")
    @classmethod
    def _gateways(cls, ids: tuple[str, ...]) -> tuple[str, ...]:
        if bad := [id for id in ids if not is_node_id(id)]:
            raise ValueError(f"not the ids of nodes (`trellis identity show` prints a gateway's): {bad}")
        return ids

    @field_validator("authorities")
    @classmethod
    def _authorities(cls, path: Path | None) -> Path | None:
        if path is None:
            return None
        if not path.is_file():
            raise ValueError(f"{path} is not a file")
        try:
            load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} holds no certificates in PEM: {error}") from None
        return path
