"""`trellis cluster status`: who is in the cluster, who accepts, and how far each gateway and each server is."""

from __future__ import annotations

import time
from typing import Any

import typer

from .common import AsJson, CommandError, cell, fields, show, table
from .remote import DEFAULT_URL, Key, Remote, Url
from .units import duration, plural

ALONE = "this gateway runs alone: no cluster is configured (cluster.url)"


def status(as_json: AsJson = False, gateway: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show the cluster as one of its gateways sees it.

    Its members and how far each is, whose turn it is to accept, and the NATS servers that keep the stream. With keys it
    needs the right `history:*`. The exit code is 1 if the gateway does not take part, or is behind.

    \b
    Examples:
      trellis cluster status
      trellis cluster status --gateway https://bridge.example.org --json
    """
    with Remote(gateway, key) as remote:
        found = remote.get("/v1/stats")["cluster"]
    if found is None:
        raise CommandError(ALONE)
    show(found, as_json, screen(found, time.time()))
    if found["trouble"] is not None:
        raise typer.Exit(1)


def screen(found: dict[str, Any], now: float) -> str:
    """Return *found* as lines for people; *now* is in seconds since 1970."""
    rows = {
        "cluster": f"{found['name']}, as gateway {found['member']} sees it",
        "state": found["trouble"] or "takes part",
        "accepts": found["turn"] or "nobody now",
        "lag": _lag(found["lag"]),
        "batches": f"{found['batch']:,} counted, {found['ignoredBatches']:,} ignored since the start",
        "log": _log(found["log"]),
        "server": _server(found),
        "stream": _stream(found["stream"]),
    }
    return "\n".join(
        [fields(rows), "", _members(found["members"], now), *_links(found["links"]), *_replicas(found["stream"])]
    )


def _lag(lag: dict[str, Any]) -> str:
    if not lag["batches"]:
        return "none"
    return f"{plural(lag['records'], 'record')} for {lag['seconds']:.0f} s"


def _log(log: dict[str, Any] | None) -> str:
    return "no block is complete yet" if log is None else f"to record {log['last']:,}, digest {log['digest']}"


def _server(found: dict[str, Any]) -> str:
    stream = found["stream"]
    state = "connected" if stream["connected"] else "not connected"
    return f"{stream['server'] or '-'}, {state}; connected again {plural(found['reconnects'], 'time')}"


def _stream(stream: dict[str, Any]) -> str:
    if stream["last"] is None:
        return "no server has answered yet"
    return f"positions {stream['first']:,} to {stream['last']:,}, {stream['bytes']:,} bytes"


def _members(members: list[dict[str, Any]], now: float) -> str:
    head = ("GATEWAY", "VERSION", "UP", "SEQUENCE", "POSITION", "HEARD", "ACCEPTS", "SAME TO", "DIFFERS IN")
    rows = [
        (
            *(cell(each["name"]), cell(each["version"]), duration(now - each["started"] / 1000)),
            *(f"{each['sequence']:,}", f"{each['position']:,}"),
            *(f"{each['heardSeconds']:.0f} s ago", "yes" if each["accepts"] else "no"),
            "-" if each["sameTo"] is None else f"{each['sameTo']:,}",
            cell(", ".join(each["differs"]) or "-"),
        )
        for each in members
    ]
    return table([head, *rows])


def _links(links: list[dict[str, Any]]) -> list[str]:
    if not links:
        return []
    return ["", table([("LINK", "HELD BY"), *((cell(each["link"]), cell(each["holder"])) for each in links)])]


def _replicas(stream: dict[str, Any]) -> list[str]:
    if not stream["replicas"]:
        return []
    rows = [
        (
            cell(each["name"]),
            "leads" if each["leads"] else "follows",
            "yes" if each["current"] else "no",
            str(each["lag"]),
        )
        for each in stream["replicas"]
    ]
    return ["", table([("SERVER", "PART", "CURRENT", "LAG"), *rows])]
