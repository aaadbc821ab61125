"""The commands `publish`, `direct`, `channels` and `peers`, which use a running gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from io import BufferedReader
from itertools import islice
from typing import Annotated, Any

import typer

from gateway.client import JsonText, Receipt, Refused
from gateway.client.bulk import LINES
from gateway.core.jsontext import loads

from .common import AsJson, CommandError, cell, fields, say, show, table, visible
from .remote import DEFAULT_URL, Key, Remote, Url

CHUNK_BYTES = 16 << 10  # of input that is published together
BLANK = b" \t\r\n"

Channel = Annotated[str, typer.Argument(help="The channel.")]


def publish(
    channel: Channel,
    content: Annotated[
        str, typer.Argument(metavar="[CONTENT|-]", help="JSON or plain text; - reads a message on each line.")
    ] = "-",
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="K", help="A repetition with the same key publishes nothing twice.")
    ] = None,
    as_json: AsJson = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Publish one message, or each line of input.

    CONTENT that is not JSON is sent as {"content": CONTENT}. Without it, or with -, each line of standard input is a
    message: a JSON value, or else a text, which becomes a JSON string. Prints the sequence and the id of each message
    once it is on disk; for a refused line it prints the reason instead, and the exit code is 1.

    \b
    Examples:
      trellis publish lobby 'hello, everybody'
      trellis publish weather/berlin '{"celsius": 21.5}'
      echo hello | trellis publish lobby
      trellis publish log --idempotency-key monday < messages.jsonl
    """
    with Remote(gateway, key) as remote:
        if content != "-":
            publish_once = partial(remote.client.publish, idempotency_key=idempotency_key)
            _show_result(remote.call(publish_once, channel, json_text(content)), as_json)
        elif _publish_lines(remote, channel, sys.stdin.buffer, idempotency_key, as_json):
            raise CommandError("not every line was published; those that were have a sequence")


def direct(
    channel: Channel,
    number: Annotated[int, typer.Argument(min=0, help="The peer's number: see `trellis peers CHANNEL`.")],
    content: Annotated[str, typer.Argument(help="JSON or plain text.")],
    as_json: AsJson = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Send a message to a single peer.

    The peer has to be in the channel. Nobody else gets the message, and it is not kept.

    \b
    Examples:
      trellis peers lobby
      trellis direct lobby 1007 'only for you'
    """
    with Remote(gateway, key) as remote:
        receipt = remote.call(remote.client.direct, channel, number, json_text(content))
    connections = "1 connection" if receipt.delivered == 1 else f"{receipt.delivered} connections"
    show(dict(receipt.raw), as_json, f"delivered to {connections} of peer {number}")


def channels(
    channel: Annotated[str | None, typer.Argument(help="Show only this one, with all its addresses.")] = None,
    as_json: AsJson = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List the channels, or show one.

    \b
    Examples:
      trellis channels
      trellis channels weather/berlin
      trellis channels --json
    """
    with Remote(gateway, key) as remote:
        if channel is not None:
            found = dict(remote.call(remote.client.channel, channel).raw)
            show(found, as_json, fields(found))
            return
        rows = list(remote.iterate(remote.client.channels()))
    head = ("CHANNEL", "LISTENING", "SEQUENCE")
    text = table([head, *((visible(row.name), str(row.members), str(row.sequence)) for row in rows)])
    show([row.raw for row in rows], as_json, text)


def peers(
    who: Annotated[str, typer.Argument(metavar="CHANNEL|NUMBER", help="A channel, or a peer's number (digits alone).")],
    as_json: AsJson = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List the peers in a channel, or show one peer.

    \b
    Examples:
      trellis peers lobby
      trellis peers 1007 --json
    """
    with Remote(gateway, key) as remote:
        if who.isdecimal():
            found = dict(remote.call(remote.client.peer, int(who)))
            show(found, as_json, fields(found))
            return
        rows = remote.call(remote.client.peers, who)
    head = ("NUMBER", "PROTOCOL", "NAME", "IDENTITY")
    text = table([head, *((str(p.number), cell(p.protocol), cell(p.name), cell(p.identity)) for p in rows)])
    show([asdict(peer) for peer in rows], as_json, text)


def json_text(content: str) -> JsonText | dict[str, str]:
    """Return *content* itself if it is JSON, else as the text of a message."""
    try:
        loads(content)
    except ValueError:
        return {"content": content}
    return JsonText(content.encode(errors="surrogateescape"))


def line_content(line: bytes) -> JsonText | str:
    """Return a *line* of input itself if it is JSON, else its text; the gateway refuses what is not UTF-8."""
    line = line.strip(BLANK)
    try:
        text = line.decode()
        loads(text)
    except UnicodeDecodeError:
        return JsonText(line)
    except ValueError:
        return text
    return JsonText(line)


def _publish_lines(remote: Remote, channel: str, file: BufferedReader | Any, key: str | None, as_json: bool) -> int:
    """Publish each line of *file*, print each result, and return the number of refused lines."""
    refused = first = 0
    for lines in available_lines(file) if key is None else fixed_batches(file):
        part = None if key is None else f"{key}/{first}"
        results = remote.client.publish_many(channel, map(line_content, lines), idempotency_key=part)
        for number, result in enumerate(remote.iterate(results), first + 1):
            _show_result(result, as_json, number)
            refused += isinstance(result, Refused)
        first += len(lines)
    return refused


def _show_result(result: Receipt | Refused, as_json: bool, line: int = 0) -> None:
    if as_json:
        typer.echo(json.dumps(result.raw if isinstance(result, Receipt) else result.problem | {"line": line}))
    elif isinstance(result, Receipt):
        typer.echo(f"{result.sequence}  {result.id}")
    else:
        say(f"line {line}: {result}")


def available_lines(file: BufferedReader | Any) -> Iterator[list[bytes]]:
    """Yield the lines of *file*, as many at a time as are available, so that no line waits for later ones."""
    rest = b""
    while data := file.read1(CHUNK_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if found := _not_blank(lines):
            yield found
    if found := _not_blank([rest]):
        yield found


def fixed_batches(file: BufferedReader | Any) -> Iterator[list[bytes]]:
    """Yield the lines of *file*, the same number at a time: a line's position is part of its key."""
    lines = (line for line in file if line.strip(BLANK))
    while batch := list(islice(lines, LINES)):
        yield batch


def _not_blank(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.strip(BLANK)]
