"""Which topic relays elsewhere the gateway dials, and which channels it exchanges with them."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gateway.core.channels import valid_name
from gateway.core.watchers import MAX_PREFIXES

ANY = "*"  # at the end of a pattern: every name that begins like this
PORTS = {"ws": 80, "wss": 443}


class RelayPeer(BaseModel):
    """A server of the topic relay's protocol: a genuine Koshare Router, or another gateway."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(description="Its address, such as `ws://relay.example:8080/relay`.")]
    channels: Annotated[
        tuple[str, ...],
        Field(min_length=1, max_length=MAX_PREFIXES, description="Names of channels, or patterns such as `news/*`."),
    ]
    direction: Annotated[
        Literal["in", "out", "both"],
        Field(description="Whether messages come `in` from there, go `out` to it, or `both`."),
    ] = "both"

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname or parts.fragment or parts.username or not _has_port(url):
            raise ValueError("write ws://HOST:PORT/PATH, or wss:// for TLS")
        return url

    @field_validator("channels")
    @classmethod
    def _check_channels(cls, channels: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in channels:
            name = pattern.removesuffix(ANY)
            if not valid_name(name) and not (pattern.endswith(ANY) and valid_name(name + "x")):
                raise ValueError(f"{pattern!r} is neither a channel nor a pattern such as news/*")
        return channels

    @property
    def receives(self) -> bool:
        """Whether messages come from there."""
        return self.direction != "out"

    @property
    def sends(self) -> bool:
        """Whether messages go there."""
        return self.direction != "in"

    @property
    def names(self) -> list[str]:
        """The channels that are named."""
        return [each for each in self.channels if not each.endswith(ANY)]

    @property
    def prefixes(self) -> list[str]:
        """What the names of other channels begin with."""
        return [each.removesuffix(ANY) for each in self.channels if each.endswith(ANY)]

    def matches(self, channel: str) -> bool:
        """Whether *channel* is exchanged."""
        return channel in self.channels or any(map(channel.startswith, self.prefixes))


def _has_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False
