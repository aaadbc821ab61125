"""Which relays the gateway dials, and which communities it exchanges with them."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, field_validator, model_validator

from gateway.link_channels import ANY, Exchange

PLAIN: Final = "tcp://"  # the prefix of addresses without TLS


class Address(NamedTuple):
    """The address of a relay, and whether it uses TLS."""

    host: str
    port: int
    tls: bool


class SproutPeer(Exchange):
    """A relay that is dialled; written as its address alone, everything is exchanged with it."""

    url: Annotated[str, Field(description="`HOST:PORT` with TLS, `tcp://HOST:PORT` without.")]
    channels: Annotated[tuple[str, ...], Field(min_length=1, description="As of every link; all, unless said.")] = (
        ANY,
    )

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        read_address(url)
        return url


def read_address(text: str) -> Address:
    """Parse `host:port` (TLS) or `tcp://host:port` (plain); raise `ValueError` for anything else."""
    host, colon, port = text.removeprefix(PLAIN).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT (with TLS) or {PLAIN}HOST:PORT (without)")
    return Address(host, int(port), not text.startswith(PLAIN))
