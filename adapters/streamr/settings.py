"""The settings of Streamr: the section `streamr` of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from adapters.streamr.model.streams import MAX_PARTITIONS, ConfiguredStream
from adapters.streamr.sessions.link import StreamrPeer
from gateway.core.outbox import MAX_OUTBOX


class StreamrSettings(BaseModel):
    """The section `streamr` of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    partitions: int = Field(
        1, ge=1, le=MAX_PARTITIONS, description="Partitions of a stream that `streams` does not name."
    )
    streams: dict[str, ConfiguredStream] = Field({}, description="Rules and descriptions of streams.")
    url: str | None = Field(None, description="The URL of `/network` for nodes; by default as they name it.")
    batch_verification: bool = Field(False, description="Verify signatures that arrive together in one equation.")
    max_outbox: int = Field(MAX_OUTBOX, ge=1 << 16, description="Bytes that may wait for a client that reads slowly.")
    peers: tuple[StreamrPeer, ...] = Field((), description="Brokers that are dialled, and what is exchanged with them.")

    @field_validator("peers")
    @classmethod
    def _check_peers(cls, peers: tuple[StreamrPeer, ...]) -> tuple[StreamrPeer, ...]:
        if len({peer.url for peer in peers}) < len(peers):
            raise ValueError("the same url twice: name all its channels in one table")
        return peers
