"""`trellis top`: what a running gateway does at the moment, again and again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from time import monotonic, sleep
from typing import Annotated, Any, NamedTuple

import typer

from gateway.client import TrellisError

from .common import paint, table, visible
from .remote import DEFAULT_URL, Key, Remote, Url
from .status import links_row, log_row
from .units import duration, plural, rate

CHANNELS = 20  # that are shown: the busiest
COUNTED = ("messages", "deliveries", "refused")
KEPT = ("version", "uptimeSeconds", "connections", "channelCount", "sequence", "backlog", "links")


class Sample(NamedTuple):
    """`GET /v1/stats` at a moment in seconds; None and the reason if it could not be had."""

    when: float
    stats: dict[str, Any] | None
    reason: str = ""


def top(
    interval: Annotated[float, typer.Option(min=1, max=60, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many updates.  [default: at Ctrl-C]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each look as JSON, one a line.")] = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Watch what a gateway does, until Ctrl-C.

    Messages, deliveries and refusals a second by protocol and by channel, connections, log and links. On a terminal
    the screen is updated in place. With keys it needs the right `history:*`.

    \b
    Examples:
      trellis top
      trellis top --interval 10
      trellis top --count 3 --json
    """
    try:
        with Remote(gateway, key) as remote:
            looks = compare(samples(remote, interval, count))
            if as_json:
                for look in looks:
                    typer.echo(json.dumps(look))
            elif sys.stdout.isatty():
                show_live(remote.client.url, looks)
            else:
                for look in looks:
                    typer.echo(screen(remote.client.url, look) + "\n")
    except KeyboardInterrupt:  # the usual way to end it
        return


def samples(remote: Remote, interval: float, count: int | None) -> Iterator[Sample]:
    """Yield *count* samples and one before them; raise `CommandError` only if the first cannot be had."""
    yield Sample(monotonic(), remote.get("/v1/stats"))
    taken = 0
    while count is None or taken < count:
        sleep(interval)
        yield remote.call(_sample, remote)
        taken += 1


async def _sample(remote: Remote) -> Sample:
    try:
        return Sample(monotonic(), await remote.client.get("/v1/stats"))
    except TrellisError as error:  # such as a restart: the next look may succeed
        return Sample(monotonic(), None, str(error))


def compare(found: Iterator[Sample]) -> Iterator[dict[str, Any]]:
    """Yield what happened between each sample and the one before it."""
    before = next(found)
    for now in found:
        if now.stats is None:
            yield {"reachable": False, "reason": now.reason}
        elif before.stats is None or before.stats["uptimeSeconds"] > now.stats["uptimeSeconds"]:
            yield look(now.stats, None, 0)  # it has restarted, and counts from 0
        else:
            yield look(now.stats, before.stats, now.when - before.when)
        before = now


def look(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    """Return the rates a second between two statistics; None for each if there is no earlier one."""

    def rates(names: Sequence[str], row: dict[str, Any], earlier: dict[str, Any]) -> dict[str, float | None]:
        if before is None:
            return dict.fromkeys(names)
        return {name: round(max(0, row.get(name, 0) - earlier.get(name, 0)) / seconds, 2) for name in names}

    earlier = {"protocols": {}, "channels": []} if before is None else before
    channels = {row["name"]: row for row in earlier["channels"]}
    shown = [
        {"name": row["name"], "members": row["members"]} | rates(COUNTED[:2], row, channels.get(row["name"], {}))
        for row in now["channels"]
    ]
    shown.sort(key=lambda row: (-(row["messages"] or 0), -row["members"], row["name"]))
    protocols = {
        name: rates(COUNTED, row, earlier["protocols"].get(name, {})) for name, row in now["protocols"].items()
    }
    kept = {name: now[name] for name in KEPT}
    return {"reachable": True, **kept, "protocols": protocols, "channels": shown[:CHANNELS]}


def screen(url: str, look: dict[str, Any]) -> str:
    """Return one look as lines for people."""
    if not look["reachable"]:
        return paint(look["reason"], typer.colors.RED)
    counts = f"{plural(look['connections'], 'connection')}, {plural(look['channelCount'], 'channel')}"
    protocols = [(name, *(rate(row[what]) for what in COUNTED)) for name, row in sorted(look["protocols"].items())]
    channels = [
        (visible(row["name"]), rate(row["messages"]), rate(row["deliveries"]), str(row["members"]))
        for row in look["channels"]
    ]
    return "\n".join(
        [
            f"Trellis {look['version']} at {url}, up {duration(look['uptimeSeconds'])}: {counts}",
            f"log: {log_row(look)}",
            f"links: {links_row(look['links'])}",
            "",
            table([("PROTOCOL", "MESSAGES/S", "DELIVERIES/S", "REFUSED/S"), *protocols]),
            "",
            table([("CHANNEL", "MESSAGES/S", "DELIVERIES/S", "LISTENING"), *channels]),
        ]
    )


def show_live(url: str, looks: Iterator[dict[str, Any]]) -> None:
    """Show each look in the place of the one before it."""
    from rich.live import Live  # the other commands start faster without it
    from rich.text import Text

    with Live(Text(f"waiting for {url}"), screen=True, auto_refresh=False) as live:
        for look in looks:
            live.update(Text.from_ansi(screen(url, look)), refresh=True)
