"""The commands `publish`, `direct`, `channels` and `peers`, which use a running gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from io import BufferedReader
from itertools import islice
from typing import Annotated, Any

import httpx
import typer

from gateway.core.jsontext import dumps, loads

from .common import CommandError, cell, fields, table, visible
from .remote import DEFAULT_URL, Key, Remote, Url, path_of, pretty

CHUNK_BYTES = 16 << 10  # of input in one request; the results are few enough for the gateway to buffer unread
LINES_PER_REQUEST = 128  # with an idempotency key, so that every run divides its input in the same way
SEPARATOR = "application/x-ndjson"

AsJson = Annotated[bool, typer.Option("--json", help="Print the gateway's answer as JSON.")]
Channel = Annotated[str, typer.Argument(help="The channel.")]


def publish(
    channel: Channel,
    content: Annotated[
        str, typer.Argument(metavar="[CONTENT|-]", help="JSON or plain text; - reads JSON values, one a line.")
    ] = "-",
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="K", help="A repetition with the same key publishes nothing twice.")
    ] = None,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Publish one message, or each line of input.

    CONTENT that is not JSON is sent as {"content": CONTENT}. Without it, or with -, each line of standard input is a
    message in JSON. Prints {"id", "sequence", ...} for each message once it is on disk; for a refused line it prints
    the problem instead, and the exit code is 1.
    """
    with Remote(gateway, key) as remote:
        if content != "-":
            headers = {"Content_Type": "application/json"} | _idempotency(idempotency_key)
            typer.echo(remote.request("POST", path_of(channel, "messages"), json_text(content), **headers).text)
        elif _publish_lines(remote, channel, sys.stdin.buffer, idempotency_key):
            raise CommandError("not every line was published; those that were have a sequence")


def direct(
    channel: Channel,
    number: Annotated[int, typer.Argument(min=0, help="The peer's number: see `trellis peers CHANNEL`.")],
    content: Annotated[str, typer.Argument(help="JSON or plain text.")],
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Send a message to a single peer.

    The peer has to be in the channel. Nobody else gets the message, and it is not kept.
    """
    with Remote(gateway, key) as remote:
        path = path_of(channel, "peers", number, "messages")
        typer.echo(remote.request("POST", path, json_text(content), Content_Type="application/json").text)


def channels(
    channel: Annotated[str | None, typer.Argument(help="Show only this one, with all its addresses.")] = None,
    as_json: AsJson = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List the channels, or show one."""
    with Remote(gateway, key) as remote:
        if channel is not None:
            found = remote.get(path_of(channel))
            typer.echo(pretty(found) if as_json else fields(found))
            return
        rows = list(_channels(remote))
    if as_json:
        typer.echo(pretty(rows))
    else:
        head = ("CHANNEL", "LISTENING", "SEQUENCE")
        typer.echo(table([head, *((visible(r["name"]), str(r["members"]), str(r["sequence"])) for r in rows)]))


def peers(
    who: Annotated[str, typer.Argument(metavar="CHANNEL|NUMBER", help="A channel, or a peer's number (digits alone).")],
    as_json: AsJson = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List the peers in a channel, or show one peer."""
    with Remote(gateway, key) as remote:
        if who.isdecimal():
            found = remote.get(f"/v1/peers/{who}")
            typer.echo(pretty(found) if as_json else fields(found))
            return
        rows = remote.get(path_of(who, "peers"))["peers"]
    if as_json:
        typer.echo(pretty(rows))
    else:
        head = ("NUMBER", "PROTOCOL", "NAME", "IDENTITY")
        typer.echo(table([head, *(tuple(cell(row[name.lower()]) for name in head) for row in rows)]))


def json_text(content: str) -> bytes:
    """Return *content* itself if it is JSON, else as the text of a JSON message."""
    try:
        loads(content)
    except ValueError:
        return dumps({"content": content})
    return content.encode(errors="surrogateescape")


def _idempotency(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Idempotency_Key": key}


def _publish_lines(remote: Remote, channel: str, file: BufferedReader | Any, key: str | None) -> int:
    """Publish each line of *file*, print each result, and return the number of refused lines."""
    refused = first = 0
    for lines in available_lines(file) if key is None else fixed_batches(file):
        part = {} if key is None else _idempotency(f"{key}/{first}")
        body = b"".join(lines)
        response = remote.request("POST", path_of(channel, "messages"), body, Content_Type=SEPARATOR, **part)
        typer.echo(response.text, nl=False)
        refused += _count_refused(response)
        first += len(lines)
    return refused


def _count_refused(response: httpx.Response) -> int:
    return sum("sequence" not in json.loads(line) for line in response.content.splitlines())


def available_lines(file: BufferedReader | Any) -> Iterator[list[bytes]]:
    """Yield the lines of *file*, as many at a time as are available, so that no line waits for later ones."""
    rest = b""
    while data := file.read1(CHUNK_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield [line + b"\n" for line in lines]
    if rest:
        yield [rest + b"\n"]


def fixed_batches(file: BufferedReader | Any) -> Iterator[list[bytes]]:
    """Yield the lines of *file*, the same number at a time: a line's position is part of its key."""
    while lines := list(islice(file, LINES_PER_REQUEST)):
        yield lines


def _channels(remote: Remote) -> Iterator[dict[str, Any]]:
    path = "/v1/channels?limit=256"
    while path:
        page = remote.get(path)
        yield from page["channels"]
        path = page["next"]
