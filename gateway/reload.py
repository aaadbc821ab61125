"""SIGHUP: the configuration, the certificate and the keys are read again, and applied together or not at all.

Everything is read and checked first, in a thread. If anything is wrong, or a setting changed that needs a restart,
nothing changes and the log names every reason. Otherwise the log lists the changed settings and keys, without secrets.
"""

from __future__ import annotations

import signal
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import structlog

from gateway.access.authorization import ApiKey, KeyFile
from gateway.access.key_upkeep import difference, origins
from gateway.access.origins import Origins
from gateway.access.throttle import Throttle
from gateway.core.buckets import TokenBuckets
from gateway.listeners import certificate
from gateway.monitoring import logs
from gateway.settings.config import BadConfiguration
from gateway.settings.configured_limits import peer_memory_bytes, retention_limits
from gateway.settings.dotted_values import dotted_values
from gateway.settings.settings import Settings
from gateway.system import systemd

from .runtime import Gateway

# The settings that a running gateway can change; all others need a restart.
LIVE = frozenset(
    {
        *("auth.grants", "auth.origins", "tls_cert", "tls_key", "warehouse", "log_level", "access_log"),
        *(f"limits.{who}.{what}" for who in ("address", "peer", "channel") for what in ("rate", "burst")),
        *("limits.connections", "limits.connections_per_address", "limits.subscriptions"),
        *("limits.bytes.rate", "limits.bytes.burst", "limits.memory", "log.keep_days", "log.keep_bytes"),
    }
)
MAX_SHOWN = 200  # characters of a value in the log

logger = structlog.get_logger("trellis")


class LoadedConfiguration(NamedTuple):
    """A configuration that was read and checked, so that applying it cannot fail."""

    settings: Settings
    keys: list[ApiKey]
    tls: ssl.SSLContext | None
    fingerprint: str | None
    origins: Origins
    throttle: Throttle | None
    memory: int


async def on_hangup(gateway: Gateway, again: Callable[[], Settings]) -> None:
    """Reload at each SIGHUP; *again* reads the configuration as at the start."""
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            systemd.reloading()
            await reload(gateway, again)
            systemd.notify(systemd.READY)


async def reload(gateway: Gateway, again: Callable[[], Settings]) -> bool:
    """Apply the configuration as it is now; return False, and change nothing, if that is not possible."""
    before = gateway.settings
    try:
        found = await anyio.to_thread.run_sync(read, gateway.access_manager.keys, again)
    except BadConfiguration as error:
        return _refuse(error.faults)
    except (OSError, ValueError) as error:
        return _refuse([str(error)])
    except Exception as error:  # a bug in reading must not end a gateway that runs well
        return _refuse([f"it could not be read ({type(error).__name__})"])
    changed = changes(before, found.settings)
    if reasons := [f"{key}: a running gateway cannot change this; restart it" for key in changed if key not in LIVE]:
        return _refuse(reasons)
    if (before.tls_cert is None) != (found.settings.tls_cert is None):
        return _refuse(["tls_cert: whether listeners speak TLS cannot change while they listen; restart the gateway"])
    key_changes = difference(gateway.access.valid_keys(), found.keys)
    new_certificate = found.fingerprint != gateway.certificate.fingerprint
    _follow(gateway, found)
    certificate.log_validity(found.settings)
    _say_reloaded(before, found.settings, changed, key_changes, "new" if new_certificate else "the same")
    return True


def _say_reloaded(
    before: Settings, after: Settings, changed: dict[str, str], keys: dict[str, list[str]], certificate: str
) -> None:
    """Log what changed, if the old or the new level allows it, and use the new level from then on."""
    form, levels = after.log_format, (before.log_level, after.log_level)
    logs.configure(form, min(levels, key=lambda level: logs.LEVELS[level]))
    logger.info("reloaded", settings=changed, keys=keys, certificate=certificate)
    logs.configure(form, after.log_level)


def read(keys: KeyFile, again: Callable[[], Settings]) -> LoadedConfiguration:
    """Read and check everything; raise `BadConfiguration`, `OSError` or `ValueError` if anything is wrong."""
    settings = again()
    limits = settings.limits
    return LoadedConfiguration(
        settings,
        KeyFile(keys.path).load(),
        certificate.read(settings),
        certificate.fingerprint(settings),
        origins(settings),
        Throttle(limits, monotonic) if limits.rates == "on" else None,
        peer_memory_bytes(settings),
    )


def changes(before: Settings, after: Settings) -> dict[str, str]:
    """The settings that differ, by key, as `old -> new`; the type of a secret shows it as stars."""
    old, new = dict(dotted_values(before)), dict(dotted_values(after))
    return {
        key: f"{_shown(old.get(key))} -> {_shown(new.get(key))}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    }


def _follow(gateway: Gateway, found: LoadedConfiguration) -> None:
    """Apply the configuration; nothing here can fail."""
    limits, before = found.settings.limits, gateway.settings.limits
    gateway.settings = found.settings
    gateway.certificate.current, gateway.certificate.fingerprint = found.tls, found.fingerprint
    gateway.access.origins = found.origins
    gateway.access_manager.set_grants(found.settings.auth.grants)
    gateway.access.set_keys(found.keys)
    gateway.admission.limits = limits
    gateway.bus.subscriptions = limits.subscriptions
    if (limits.address, limits.peer, limits.channel) != (before.address, before.peer, before.channel):
        gateway.throttle = gateway.bus.throttle = found.throttle  # with full buckets
    if limits.bytes != before.bytes and gateway.bus.read_pacer is not None:
        gateway.bus.read_pacer.set_rate(TokenBuckets(limits.bytes.rate, limits.bytes.burst, monotonic))
    gateway.budget.set_limit(found.memory)
    gateway.retention.limits = retention_limits(found.settings)
    gateway.access_log.enabled = found.settings.access_log
    if gateway.membership is not None:
        gateway.membership.signalling.agreement.refresh()


def _refuse(reasons: list[str]) -> bool:
    logger.error("the reload is refused", reasons=reasons, consequence="everything stays as it was")
    return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
