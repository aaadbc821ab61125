"""`trellis status`: how a running gateway is doing, on one screen."""

from __future__ import annotations

from typing import Any

import typer

from gateway.client import Forbidden, Refused, TrellisClient, Unauthorized, Unavailable

from .common import AsJson, fields, paint, show
from .remote import DEFAULT_URL, Key, Remote, Url
from .units import duration, plural

BUSIEST = 5  # channels that are named


def status(as_json: AsJson = False, gateway: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show on one screen how a gateway is doing.

    Whether it is ready, its version, protocols, connections, channels, messages, log and links. All but the first two
    need a key with the right `history:*` where there are keys. The exit code is 1 if the gateway is not ready.

    \b
    Examples:
      trellis status
      trellis status --gateway https://bridge.example.org --json
    """
    with Remote(gateway, key) as remote:
        found = remote.call(gather, remote.client)
    show(found, as_json, screen(remote.client.url, found))
    if not found["ready"]:
        raise typer.Exit(1)


async def gather(client: TrellisClient) -> dict[str, Any]:
    """Return what the gateway tells about itself; `statistics` is None if the key may not see them."""
    ready, state = await _readiness(client)
    found: dict[str, Any] = {"ready": ready, "state": state, "version": (await client.get("/"))["version"]}
    try:
        protocols = (await client.get("/v1/protocols"))["protocols"]
        found["protocols"] = [{"title": row["title"], "versions": row["versions"]} for row in protocols]
        found["statistics"] = await client.get("/v1/stats")
    except (Unauthorized, Forbidden) as error:
        found |= {"statistics": None, "refused": _advice(error)}
    return found


def _advice(error: Refused) -> str:
    """Return why the gateway refuses, and what to do: its own advice is complete for a key that lacks the right."""
    return f"{error.detail}; give a key with --key or TRELLIS_KEY" if isinstance(error, Unauthorized) else error.detail


async def _readiness(client: TrellisClient) -> tuple[bool, str]:
    try:
        return True, str((await client.get("/readyz"))["status"])
    except Unavailable as error:
        return False, error.detail


def screen(url: str, found: dict[str, Any]) -> str:
    """Return what was found as lines for people."""
    colour = typer.colors.GREEN if found["ready"] else typer.colors.RED
    head = f"Trellis {found['version']} at {url}: {paint(found['state'], colour, bold=True)}"
    rows: dict[str, str] = {}
    if "protocols" in found:
        rows["protocols"] = ", ".join(map(_title, found["protocols"]))
    if (stats := found["statistics"]) is None:
        rows["more"] = found["refused"]
    else:
        rows |= statistics_rows(stats)
    return f"{head}\n{fields(rows)}"


def _title(protocol: dict[str, Any]) -> str:
    versions = ", ".join(map(str, protocol["versions"]))
    return f"{protocol['title']} ({versions})" if versions else str(protocol["title"])


def statistics_rows(stats: dict[str, Any]) -> dict[str, str]:
    """Return `GET /v1/stats` as rows."""
    counts = stats["protocols"].values()
    messages, deliveries = (sum(row.get(name, 0) for row in counts) for name in ("messages", "deliveries"))
    faults = ", ".join(f"{kind} {count}" for kind, count in stats["faults"].items())
    return {
        "up": duration(stats["uptimeSeconds"]),
        "connections": f"{stats['connections']:,}",
        "channels": channels_row(stats),
        "messages": f"{messages:,} published, {deliveries:,} delivered since the start",
        "log": log_row(stats),
        "links": links_row(stats["links"]),
        "faults": faults or "none",
    }


def channels_row(stats: dict[str, Any]) -> str:
    """Return how many channels there are, and which are the busiest."""
    busiest = ", ".join(row["name"] for row in stats["channels"][:BUSIEST])
    return f"{stats['channelCount']:,}" + (f"; the busiest: {busiest}" if busiest else "")


def log_row(stats: dict[str, Any]) -> str:
    """Return where the log ends, and how far the disk and the index are behind."""
    behind = {"unsynced": "not on disk yet", "unindexed": "not in the index yet"}
    backlog = stats["backlog"]
    lag = [f"{plural(backlog[name], 'record')} {what}" for name, what in behind.items() if backlog[name]]
    return f"sequence {stats['sequence']:,}; {', '.join(lag) or 'nothing waits for the disk or the index'}"


def links_row(links: list[dict[str, Any]]) -> str:
    """Return how many links are connected."""
    connected = sum(link["state"] == "connected" for link in links)
    return f"{connected} of {len(links)} connected; `trellis links` lists them" if links else "none"
