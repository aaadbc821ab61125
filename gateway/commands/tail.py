"""`trellis tail`: prints the messages of a channel as they come, across restarts of the gateway."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from gateway.client import Event, Gap, Interrupted, Joined, Left, Message, Peer, Welcome

from .common import paint, say, visible
from .remote import DEFAULT_URL, Key, Remote, Url


def tail(
    channel: Annotated[str, typer.Argument(help="The channel to listen to.")],
    after: Annotated[int | None, typer.Option(min=0, help="Start after this sequence; 0 is the beginning.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only messages, as JSON, one a line.")] = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Print the messages of a channel, until Ctrl-C.

    If the connection is lost, it is opened again and continues after the last message that was printed.

    \b
    Examples:
      trellis tail lobby
      trellis tail lobby --after 0
      trellis tail weather/berlin --json | jq .content
    """
    show = show_json if as_json else show_plain
    try:
        with Remote(gateway, key) as remote:
            for event in remote.iterate(remote.client.subscribe(channel, after=after)):
                show(event)
    except KeyboardInterrupt:  # the usual way to stop it
        return


def show_json(event: Event) -> None:
    """Print a message as JSON."""
    match event:
        case Message():
            typer.echo(event.json)
        case Interrupted():
            show_plain(event)


def show_plain(event: Event) -> None:
    """Print an event for people: messages to standard output, what happens around them to standard error."""
    match event:
        case Message():
            typer.echo(_message(event))
        case Welcome():
            say(f"listening to {visible(event.channel or '')} as peer {event.peer.number}; Ctrl-C ends it")
        case Joined(peer):
            say(f"          {_name(peer)} joined")
        case Left(peer):
            say(f"          {_name(peer)} left")
        case Gap():
            say(f"messages {event.after + 1} to {event.before - 1} are no longer kept")
        case Interrupted():
            say(f"{event.reason}\nconnecting again in {event.seconds:.1f} s")


def _message(message: Message) -> str:
    time = paint(_time(message.timestamp), dim=True)
    name = paint(_name(message.sender), typer.colors.CYAN)
    return f"{time}  {name}: {_text(message.content)}" + ("  (only to you)" if message.direct else "")


def _time(timestamp: int) -> str:
    """Return the time of day of *timestamp*, which is by the author's clock and may be wrong in any way."""
    try:
        return f"{datetime.fromtimestamp(timestamp / 1000):%H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "--:--:--"


def _name(peer: Peer) -> str:
    return visible(f"{peer.name or f'peer {peer.number}'} ({peer.protocol})")


def _text(content: Any) -> str:
    """Return the text of a message that has only text, and the JSON of any other."""
    if isinstance(content, dict) and content.keys() == {"content"}:
        content = content["content"]
    return visible(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
