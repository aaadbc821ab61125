"""`trellis tail`: prints the messages of a channel as they come, across restarts of the gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from gateway.clients.sse import Event

from .common import CommandError, say, visible
from .remote import DEFAULT_URL, GatewayUnreachable, Key, Remote, Url, path_of

PAUSE = 1.0  # seconds before the first attempt to reconnect; doubled after each failure
MAX_PAUSE = 15.0  # seconds


def tail(
    channel: Annotated[str, typer.Argument(help="The channel to listen to.")],
    after: Annotated[int | None, typer.Option(min=0, help="Start after this sequence; 0 is the beginning.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only messages, as JSON, one a line.")] = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Print the messages of a channel, until Ctrl-C.

    If the connection is lost, it is opened again and continues after the last message that was printed.
    """
    show = show_json if as_json else show_plain
    try:
        with Remote(gateway, key) as remote:
            for event in follow(remote, channel, after):
                show(event)
    except KeyboardInterrupt:  # the usual way to stop it
        return


def follow(remote: Remote, channel: str, after: int | None) -> Iterator[Event]:
    """Yield all events from now on, or after a sequence; raise `GatewayUnreachable` only for the first request."""
    now = _sequence(remote, channel)
    last, pause = now if after is None else after, PAUSE
    while True:
        try:
            for event in remote.events(channel, last):
                pause = PAUSE
                last = last if event.id is None else int(event.id)
                yield event
            reason = "the gateway ended the stream"
        except GatewayUnreachable as error:
            reason = str(error)
        say(f"{reason}\nconnecting again in {pause:.0f} s")
        time.sleep(pause)
        pause = min(pause * 2, MAX_PAUSE)


def _sequence(remote: Remote, channel: str) -> int | None:
    """Return the channel's last sequence, after which to reconnect; None if it does not exist yet."""
    try:
        return int(remote.get(path_of(channel))["sequence"])
    except GatewayUnreachable:
        raise
    except CommandError:  # a real problem is reported again when the stream is opened
        return None


def show_json(event: Event) -> None:
    """Print a message as JSON."""
    if event.name in ("message", "direct"):
        typer.echo(event.data)


def show_plain(event: Event) -> None:
    """Print an event for people."""
    if event.name in LINES:
        typer.echo(LINES[event.name](json.loads(event.data)), err=event.name not in ("message", "direct"))


def _message(message: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(message["timestamp"] / 1000)  # the author's clock, which may be wrong
    return f"{moment:%H:%M:%S}  {_name(message['sender'])}: {_text(message['content'])}"


def _name(sender: dict[str, Any]) -> str:
    number = sender.get("peer", sender.get("number"))
    return visible(f"{sender['name'] or f'peer {number}'} ({sender['protocol']})")


def _text(content: Any) -> str:
    """Return the text of a message that has only text, and the JSON of any other."""
    if isinstance(content, dict) and content.keys() == {"content"}:
        content = content["content"]
    return visible(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))


LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "welcome": lambda peer: f"listening to {visible(peer['channel'])} as peer {peer['number']}; Ctrl-C ends it",
    "message": _message,
    "direct": lambda message: f"{_message(message)}  (only to you)",
    "joined": lambda peer: f"          {_name(peer)} joined",
    "left": lambda peer: f"          {_name(peer)} left",
    "gap": lambda gap: f"messages {gap['after'] + 1} to {gap['before'] - 1} are no longer kept",
}
