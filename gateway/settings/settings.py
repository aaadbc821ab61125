"""The settings: a model for each section of the configuration, with its defaults and limits.

The sections of the adapters come from the registry (`settings_model`); `gateway.settings.config` reads the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_serializer, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from gateway.access.authorization import Right
from gateway.adapter import Adapter
from gateway.core.channels import LIMIT, valid_name
from gateway.storage.layout import SEGMENT_BYTES

from .limits import Limits
from .warehouse_folder import WAREHOUSE

PREFIX = "TRELLIS_"
_USER = re.compile(r"//[^/@]*@")  # in a URL


class Section(BaseModel):
    """A section of the configuration; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_names(names: Iterable[str]) -> None:
    if bad := [name for name in names if not valid_name(name)]:
        raise ValueError(
            f"not channel names (1 to 255 characters, no control characters, no '/' right before '@'): {bad}"
        )


class ChannelSettings(Section):
    """Which channels exist: any that a peer uses, or only those in `names`.

    `pins` sets the addresses of a channel in protocols where they should not follow from its name.
    """

    create: Literal["open", "configured"] = "open"
    limit: int = Field(default=LIMIT, ge=1, description="maximum number of channels; only the operator can exceed it")
    names: tuple[str, ...] = ()
    pins: dict[str, dict[str, str]] = {}

    @field_validator("names")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        _check_names(names)
        return names

    @field_validator("pins")
    @classmethod
    def _pins(cls, pins: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        _check_names(pins)
        given = [address for addresses in pins.values() for address in addresses.items()]
        if twice := {address for protocol, address in given if given.count((protocol, address)) > 1}:
            raise ValueError(f"given to more than one channel: {sorted(twice)}")
        return pins


class AuthSettings(Section):
    """What principals without a key may do, and which web pages may connect.

    `grants` maps a principal (`topic_relay:anonymous`, `sprout:anonymous`, `streamr:0x...`) to rights
    (`subscribe:news/*`). The first grant or key switches authentication on.
    """

    grants: dict[str, tuple[str, ...]] = {}
    origins: tuple[str, ...] = ()

    @field_validator("grants")
    @classmethod
    def _grants(cls, grants: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for rights in grants.values():
            for right in rights:
                Right.parse(right)
        return grants


class LogSettings(Section):
    """The size of segments, and how long messages are kept."""

    segment_bytes: int = Field(default=SEGMENT_BYTES, ge=4096)
    keep_days: float | None = Field(default=None, gt=0, description="messages older than this are retired")
    keep_bytes: int | None = Field(default=None, gt=0, description="the oldest messages beyond this are retired")
    search: bool = False


class WebhookSettings(Section):
    """How webhooks are delivered, and which networks they may reach beside public addresses."""

    allow_networks: tuple[str, ...] = ()
    limit: int = Field(default=100, ge=0, description="the number of webhooks")
    timeout_seconds: float = Field(default=10.0, gt=0, le=300, description="for one attempt")
    attempts: int = Field(default=8, ge=1, description="of a message that the receiver refuses")
    max_dead_letters: int = Field(default=1_000, ge=1, description="of one webhook, before it is disabled")
    disable_after_hours: float = Field(default=72.0, gt=0, description="of failing, before it is disabled")

    @field_validator("allow_networks")
    @classmethod
    def _networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ip_network(network)
        return networks


class MetricsSettings(Section):
    """A port of their own for the metrics, where no key is needed; None serves them only on the gateway's port."""

    port: int | None = Field(default=None, ge=0, le=65535)
    host: str = "127.0.0.1"


class TracingSettings(Section):
    """Where OpenTelemetry traces are sent (OTLP over HTTP), and what share of the messages is traced."""

    endpoint: str | None = None
    share: float = Field(default=1.0, gt=0, le=1)


class ClusterSettings(Section):
    """The cluster that this gateway is a member of; without `url` it runs alone.

    `url` names NATS servers; `gateway` is its name among the members.
    """

    url: tuple[str, ...] = ()
    name: str = Field(default="main", pattern="^[A-Za-z0-9_-]{1,32}$")
    gateway: str = Field(default="", pattern="^[A-Za-z0-9._-]{0,64}$")
    authorities: Path | None = Field(default=None, description="certificates of authorities that the servers have")
    credentials: Path | None = Field(default=None, description="a credentials file of NATS")
    lease_seconds: float = Field(
        default=5.0, ge=1, le=60, description="of silence, after which another gateway accepts in the place of one"
    )
    replicas: int = Field(default=3, ge=1, le=5, description="servers that keep the stream, when it is made")

    @field_serializer("url")
    def _without_passwords(self, urls: tuple[str, ...]) -> list[str]:
        """Show no password or token of a server."""
        return [_USER.sub("//***@", url) for url in urls]


class Settings(BaseSettings):
    """All settings except the sections of the adapters (see `settings_model`)."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    data: Path = Path("trellis-data")
    warehouse: Path = Path(WAREHOUSE)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    loop: Literal["asyncio", "trio"] = "asyncio"
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = True
    trusted_proxies: tuple[str, ...] = ()
    open_to_all: bool = False
    channels: ChannelSettings = ChannelSettings()
    auth: AuthSettings = AuthSettings()
    limits: Limits = Limits()
    log: LogSettings = LogSettings()
    webhooks: WebhookSettings = WebhookSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    cluster: ClusterSettings = ClusterSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic-settings passes it)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give flags precedence over the environment, and the environment over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def section(self, adapter: type[Adapter]) -> Any:
        """Return the settings of *adapter*."""
        return getattr(self, adapter.name)


def settings_model(adapters: Iterable[type[Adapter]], file: Path | None = None) -> type[Settings]:
    """Return `Settings` with a section for each adapter, which also reads *file* unless it is None."""
    return _model(tuple(adapters), file)


@lru_cache(16)  # the configuration is read again at each SIGHUP
def _model(adapters: tuple[type[Adapter], ...], file: Path | None) -> type[Settings]:
    sections: dict[str, Any] = {
        adapter.name: (adapter.settings_model, adapter.settings_model()) for adapter in adapters
    }
    model = create_model("Settings", __base__=Settings, **sections)
    model.model_config["toml_file"] = file
    return model
