"""Refuses settings that are valid one by one, but dangerous or contradictory together."""

from __future__ import annotations

import math
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec

from gateway.access.origins import ANY, is_local
from gateway.access.right_patterns import Right
from gateway.adapter import Adapter
from gateway.core.message import REST
from gateway.listeners.certificate import tls_context
from gateway.listeners.proxies import TrustedProxies

from .dotted_values import dotted_values
from .settings import Settings

ANONYMOUS = "anonymous"
NATS_CLIENT = "nats-py>=2.16"  # the extra `cluster` of pyproject.toml
KEY = "key:"
_ORIGIN = re.compile(r"https?://[^/\s]+")


def validate_settings(settings: Settings, adapters: Collection[type[Adapter]]) -> list[str]:
    """Every reason to refuse *settings*, by key."""
    return [
        *_certificate(settings),
        *_grants(settings, adapters),
        *_admins(settings),
        *_origins(settings),
        *_proxies(settings),
        *_ports(settings),
        *_numbers(settings),
        *_retention(settings),
        *_search(settings),
        *_cluster(settings),
        *_secrets(settings),
        *_pins(settings, {adapter.name: adapter for adapter in adapters}),
    ]


def _certificate(settings: Settings) -> list[str]:
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
            faults.append(f"tls_cert, tls_key: no certificate and its key in PEM without a passphrase ({error})")
    return faults


def principal_error(name: str, adapters: Collection[type[Adapter]]) -> str | None:
    """Return why no principal can have this *name*; None if one can."""
    if name == ANONYMOUS:
        return None
    if name.startswith(KEY):
        return f"{name!r} is a key, and its rights are in the key file: use `trellis key add --allow`"
    names = {adapter.name: adapter.principals for adapter in adapters} | {REST: ANONYMOUS}
    protocol, _, who = name.partition(":")
    if protocol not in names:
        return f"{name!r} is not a principal, which begins with {', '.join(f'{known}:' for known in names)}"
    if re.fullmatch(names[protocol], who):
        return None
    if re.fullmatch(names[protocol], who.lower()):
        return f"{name!r} is not a principal: write it in lower case"
    return f"{name!r} is not a principal: what follows {protocol!r} is {names[protocol].replace('|', ' or ')}"


def _grants(settings: Settings, adapters: Collection[type[Adapter]]) -> Iterator[str]:
    for name in settings.auth.grants:
        if (reason := principal_error(name, adapters)) is not None:
            yield f"auth.grants: {reason}"


def _admins(settings: Settings) -> Iterator[str]:
    """Refuse to let anonymous peers administer a gateway that other machines can reach."""
    if is_local(settings.host) or settings.open_to_all:
        return
    for name, rights in settings.auth.grants.items():
        if name.endswith(ANONYMOUS) and any(_administers(Right.parse(right)) for right in rights):
            yield (
                f"auth.grants.{name}: anybody who reaches {settings.host} could administer; make a key with "
                "`trellis key add NAME --admin`, or set open_to_all if that is intended"
            )


def _administers(right: Right) -> bool:
    return right.verb == "admin" and not right.denies


def _origins(settings: Settings) -> Iterator[str]:
    for origin in settings.auth.origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            yield f"auth.origins: {origin!r} is not an origin such as https://chat.example, and matches no page"


def _proxies(settings: Settings) -> Iterator[str]:
    for proxy in settings.trusted_proxies:
        try:
            TrustedProxies((proxy,))
        except ValueError as error:
            yield f"trusted_proxies: {error}; write an address (10.0.0.2) or a network (10.0.0.0/8)"


def _ports(settings: Settings) -> Iterator[str]:
    """Two listeners cannot have one port (0 takes a free one)."""
    named = defaultdict(list)
    for key, value in dotted_values(settings):
        if key.rpartition(".")[2] in ("port", "tls_port") and value:
            named[value].append(key)
    for port, keys in named.items():
        if len(keys) > 1:
            yield f"{', '.join(keys)}: they cannot share the port {port}"


def _numbers(settings: Settings) -> Iterator[str]:
    for key, value in dotted_values(settings):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{key}: {value} is not a limit; remove it, or set a number"


def _retention(settings: Settings) -> Iterator[str]:
    keep, segment = settings.log.keep_bytes, settings.log.segment_bytes
    if keep is not None and keep < segment:
        yield f"log.keep_bytes: {keep} is less than one file of the log (log.segment_bytes, {segment})"


def _search(settings: Settings) -> Iterator[str]:
    """Search needs FTS5, which nearly every SQLite has."""
    if settings.log.search:
        database = sqlite3.connect(":memory:")
        try:
            database.execute("CREATE VIRTUAL TABLE texts USING fts5 (text)")
        except sqlite3.Error as error:
            yield f"log.search: the SQLite of this Python cannot search ({error})"
        finally:
            database.close()


def _cluster(settings: Settings) -> Iterator[str]:
    """A member needs a name and the client of NATS, and what is not shared among members cannot be used."""
    cluster = settings.cluster
    if not cluster.url:
        return
    if not cluster.gateway:
        yield "cluster.gateway: each member of a cluster has a name of its own, say the machine's"
    if find_spec("nats") is None:
        yield f"cluster.url: the client of NATS is not installed: {sys.executable} -m pip install '{NATS_CLIENT}'"


def _secrets(settings: Settings) -> Iterator[str]:
    path = settings.tls_key
    if path is not None and path.is_file() and path.stat().st_mode & 0o007:
        yield f"tls_key: {path} may be read or changed by everybody on this machine; `chmod o= {path}`"


def _pins(settings: Settings, adapters: Mapping[str, type[Adapter]]) -> Iterator[str]:
    for channel, addresses in settings.channels.pins.items():
        for protocol, address in addresses.items():
            if protocol not in adapters or not adapters[protocol].may_be_pinned(address):
                yield f"channels.pins.{channel}.{protocol}: {address!r} cannot be the address of a channel there"
