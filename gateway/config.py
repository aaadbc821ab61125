"""One configuration: a TOML file, the environment (`TRELLIS_SPROUT__PORT=7777`) and flags, in rising order.

The sections of the adapters come from the registry. A configuration that is wrong in any way is refused as a
whole, with every fault named by its key.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from gateway.access.auth import Right
from gateway.access.limits import Limits
from gateway.core.channels import LIMIT, valid_name

from .adapter import Adapter
from .dangers import dangers

PREFIX = "TRELLIS_"
# Variables that are no settings: for the commands that talk to a gateway, and for the test suite.
OTHERS = frozenset({"TRELLIS_URL", "TRELLIS_KEY", "TRELLIS_FUZZ", "TRELLIS_SOAK", "TRELLIS_REQUIRE_INTEROP"})


class BadConfiguration(Exception):
    """The configuration cannot be used; `faults` has one line for each reason, with its key."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(self.faults))


class Section(BaseModel):
    """A part of the configuration; a key that it does not know is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_names(names: Iterable[str]) -> None:
    if bad := [name for name in names if not valid_name(name)]:
        raise ValueError(f"not channel names (1 to 255 characters, no control characters, no '/@'): {bad}")


class ChannelSettings(Section):
    """Which channels exist: any that somebody uses, or only those named here.

    `pins` says what protocols call a channel, where that is not to follow from its name.
    """

    create: Literal["open", "configured"] = "open"
    limit: int = Field(default=LIMIT, ge=1, description="channels that there may be; the operator may make more")
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
    """When segments are sealed, and what is kept."""

    segment_bytes: int = Field(default=64 << 20, ge=4096)
    keep_days: float | None = Field(default=None, gt=0, description="messages older than this are retired")
    keep_bytes: int | None = Field(default=None, gt=0, description="the oldest messages beyond this are retired")


class Settings(BaseSettings):
    """Everything that can be set, but for the adapters' sections (see `settings_model`)."""

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
    warehouse: Path = Path("warehouse")
    tls_cert: Path | None = None
    tls_key: Path | None = None
    loop: Literal["asyncio", "trio"] = "asyncio"
    log_format: Literal["console", "json"] = "console"
    open_to_all: bool = False
    channels: ChannelSettings = ChannelSettings()
    auth: AuthSettings = AuthSettings()
    limits: Limits = Limits()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic-settings passes it)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags win over the environment, the environment over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def section(self, adapter: type[Adapter]) -> Any:
        """The settings of one adapter."""
        return getattr(self, adapter.name)


def settings_model(adapters: Iterable[type[Adapter]], file: Path | None = None) -> type[Settings]:
    """`Settings` with a section for each adapter, read from *file* as well if there is one."""
    sections: dict[str, Any] = {adapter.name: (adapter.settings, adapter.settings()) for adapter in adapters}
    model = create_model("Settings", __base__=Settings, **sections)
    model.model_config["toml_file"] = file
    return model


def load(
    adapters: Collection[type[Adapter]], file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """Read the configuration; `BadConfiguration` names everything that is wrong with it."""
    faults: list[str] = []
    if file is not None and not file.is_file():
        raise BadConfiguration([f"--config: {file} is not a file"])
    model = settings_model(adapters, file)
    faults += _unknown_variables(model)
    try:
        settings = model(**_nested(flags or {}))
    except ValidationError as error:
        faults += [_fault(dict(e)) for e in error.errors()]
    except ValueError as error:  # the file is no TOML, or a variable no JSON
        faults.append(f"{file or 'environment'}: {error}")
    else:
        faults += _contradictions(settings)
        faults += dangers(settings, adapters)
        faults += _bad_pins(settings, {adapter.name: adapter for adapter in adapters})
    if faults:
        raise BadConfiguration(faults)
    return settings


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags by dotted key (`sprout.port`) as nested values; those that are None were not given."""
    values: dict[str, Any] = {}
    for key, value in flags.items():
        if value is not None:
            *sections, name = key.split(".")
            place = values
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = value
    return values


def _unknown_variables(model: type[Settings]) -> list[str]:
    known = {name.upper() for name in model.model_fields}
    names = [name for name in os.environ if name.startswith(PREFIX) and name not in OTHERS]
    unknown = [name for name in names if name.removeprefix(PREFIX).split("__")[0].upper() not in known]
    return [f"{name}: no such setting" for name in sorted(unknown)]


def _fault(error: dict[str, Any]) -> str:
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


def _contradictions(settings: Settings) -> list[str]:
    faults = []
    if (settings.tls_cert is None) != (settings.tls_key is None):
        faults.append("tls_cert, tls_key: give both or neither")
    for key in ("tls_cert", "tls_key"):
        path = getattr(settings, key)
        if path is not None and not path.is_file():
            faults.append(f"{key}: {path} is not a file")
    if not faults:
        try:
            tls_context(settings)
        except OSError as error:  # of which `ssl.SSLError` is one
            faults.append(f"tls_cert, tls_key: no certificate and its key in PEM, without a passphrase ({error})")
    return faults


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What listeners speak TLS with; None where there is no certificate, an `OSError` where it is of no use."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")  # else it asks the terminal
    return context


def _bad_pins(settings: Settings, adapters: Mapping[str, type[Adapter]]) -> list[str]:
    return [
        f"channels.pins.{channel}.{protocol}: {address!r} is nothing that a channel can be called there"
        for channel, addresses in settings.channels.pins.items()
        for protocol, address in addresses.items()
        if protocol not in adapters or not adapters[protocol].may_be_pinned(address)
    ]
