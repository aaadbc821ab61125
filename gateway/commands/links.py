"""`trellis links`: the connections that a running gateway keeps to relays and other gateways."""

from __future__ import annotations

import time
from typing import Any, Final

import typer

from .common import AsJson, cell, paint, show, table
from .remote import DEFAULT_URL, Key, Remote, Url
from .units import duration

COLOURS = {"connected": typer.colors.GREEN, "waiting": typer.colors.YELLOW}


NO_LINKS: Final = "there are no links; they are configured by `sprout.peers`, `topic_relay.peers` and `streamr.peers`"


def links(as_json: AsJson = False, gateway: Url = DEFAULT_URL, key: Key = None) -> None:
    """List the links to relays and other gateways.

    For each: whether it is connected or waits to be dialled again, since when, how often it was connected, how often
    in a row it failed, and why. With keys it needs the right `history:*`. --json also shows what was exchanged.

    \b
    Examples:
      trellis links
      trellis links --json
    """
    with Remote(gateway, key) as remote:
        found = remote.get("/v1/stats")["links"]
    text = links_table(found, time.time()) if found else NO_LINKS
    show(found, as_json, text)


def links_table(found: list[dict[str, Any]], now: float) -> str:
    """Return *found* as a table; *now* is in seconds since 1970."""
    head = ("PROTOCOL", "ADDRESS", "STATE", "FOR", "CONNECTED", "FAILED", "REASON")
    rows = [
        (
            *(cell(link["protocol"]), cell(link["address"]), cell(link["state"])),
            *(duration(now - link["since"] / 1000), str(link["connects"]), str(link["failures"])),
            cell(link["error"]),
        )
        for link in found
    ]
    head_line, *lines = table([head, *rows]).splitlines()
    coloured = (
        line.replace(link["state"], paint(link["state"], COLOURS.get(link["state"])), 1)
        for line, link in zip(lines, found, strict=True)
    )
    return "\n".join([head_line, *coloured])
