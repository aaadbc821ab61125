"""`trellis tail`: a channel as it is said, line by line, across restarts of the gateway."""

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

PAUSE = 1.0  # seconds before the first attempt to connect again; doubled each time
MAX_PAUSE = 15.0


def tail(
    channel: Annotated[str, typer.Argument(help="The channel to listen to.")],
    after: Annotated[int | None, typer.Option(min=0, help="Begin after this sequence; 0 is the beginning.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Messages as JSON, one a line, and nothing else.")] = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Print what is said on a channel, until Ctrl-C.

    Where the connection is lost it is made again, and goes on after the last message that was seen.
    """
    show = show_json if as_json else show_plain
    try:
        with Remote(gateway, key) as remote:
            for event in follow(remote, channel, after):
                show(event)
    except KeyboardInterrupt:  # the way to end it
        return


def follow(remote: Remote, channel: str, after: int | None) -> Iterator[Event]:
    """All events from now on, or after a sequence; only the first question to the gateway may find none there."""
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
    """Where the channel stands now, so that a lost connection loses nothing; None if it does not exist yet."""
    try:
        return int(remote.get(path_of(channel))["sequence"])
    except GatewayUnreachable:
        raise
    except CommandError:  # what is wrong with it, if anything, is said about the stream
        return None


def show_json(event: Event) -> None:
    """Print a message as it came."""
    if event.name in ("message", "direct"):
        typer.echo(event.data)


def show_plain(event: Event) -> None:
    """Print an event for people."""
    if event.name in LINES:
        typer.echo(LINES[event.name](json.loads(event.data)), err=event.name not in ("message", "direct"))


def _message(message: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(message["timestamp"] / 1000)  # an author may claim any time
    return f"{moment:%H:%M:%S}  {_name(message['sender'])}: {_text(message['content'])}"


def _name(sender: dict[str, Any]) -> str:
    number = sender.get("peer", sender.get("number"))
    return visible(f"{sender['name'] or f'peer {number}'} ({sender['protocol']})")


def _text(content: Any) -> str:
    """The text of a message that is mere text, the JSON of any other."""
    if isinstance(content, dict) and content.keys() == {"content"}:
        content = content["content"]
    return visible(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))


LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "welcome": lambda peer: f"listening to {visible(peer['channel'])} as peer {peer['number']}; Ctrl-C ends it",
    "message": _message,
    "direct": lambda message: f"{_message(message)}  (to you alone)",
    "joined": lambda peer: f"          {_name(peer)} joined",
    "left": lambda peer: f"          {_name(peer)} left",
    "gap": lambda gap: f"messages {gap['after'] + 1} to {gap['before'] - 1} are no longer kept",
}
