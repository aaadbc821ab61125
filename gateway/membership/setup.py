"""Sets up the membership of a gateway in its cluster: connection, shared files, and settings that all must agree on."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.access.secretfile import read_secret
from gateway.access.shared_grants import SharedGrants
from gateway.access.shared_keys import SharedKeys
from gateway.cluster.common_settings import FILES, stated
from gateway.settings.dotted_values import dotted_values

from .membership import Membership
from .transport import JetStreamTransport

if TYPE_CHECKING:
    from gateway.access.key_upkeep import AccessManager
    from gateway.runtime import Gateway

# The settings that all members have to have in common, beside those that adapters name (`Adapter.agreed`).
AGREED: Final = (
    *("channels.create", "channels.limit", "channels.names", "channels.pins", "limits.rates", "limits.subscriptions"),
    *(f"limits.{who}.{what}" for who in ("address", "peer", "channel", "bytes") for what in ("rate", "burst")),
)


def membership_of(gateway: Gateway) -> Membership | None:
    """The part of *gateway* in its cluster; None if it runs alone."""
    cluster, home = gateway.settings.cluster, gateway.home
    if not cluster.url:
        return None
    from gateway.jetstream.connecting import JetStreamSettings  # nats-py is an extra

    keys = _keyed(home.secret, b"cluster")
    protocols = "+".join(sorted(adapter.name for adapter in gateway.adapters))
    about = f"gateway {home.gateway_id}, keys {keys}, protocols {protocols}"
    settings = JetStreamSettings(
        cluster.name, cluster.url, cluster.replicas, cluster.authorities, cluster.credentials, about
    )
    transport = JetStreamTransport(settings)
    _share_access(gateway.access_manager, gateway.settings.data / "keys", transport)
    return Membership(cluster.gateway, transport, lease=cluster.lease_seconds, terms=partial(terms_of, gateway))


def terms_of(gateway: Gateway) -> dict[str, str]:
    """What *gateway* has to have in common with other members: settings, and digests of secrets, by their names."""
    settings, home = gateway.settings, gateway.home
    values = dict(dotted_values(settings))
    terms = {name: stated(values[name]) for name in AGREED}
    terms["enabled protocols"] = stated(sorted(adapter.name for adapter in gateway.adapters))
    for adapter in gateway.adapters:
        chosen = settings.section(type(adapter)).model_dump(mode="json", include=set(adapter.agreed))
        terms |= {f"{adapter.name}.{name}": stated(value) for name, value in chosen.items()}
        for name in adapter.agreed_secrets:
            path = home.secrets / name
            terms[FILES + name] = _keyed(home.secret, read_secret(path)) if path.exists() else ""
    return terms


def _keyed(secret: bytes, data: bytes) -> str:
    return blake2b(data, key=secret, digest_size=8).hexdigest()


def _share_access(manager: AccessManager, secrets: Path, transport: JetStreamTransport) -> None:
    """Share the API keys in the folder *secrets*, and the grants."""
    keys = SharedKeys(secrets, partial(transport.put_value, "keys"), manager.reload_keys)
    grants = SharedGrants(secrets, manager.grants, partial(transport.put_value, "grants"), manager.access.set_grants)
    transport.shared = {"keys": keys, "grants": grants}
    manager.on_reloaded, manager.set_grants = keys.merge, grants.configure
