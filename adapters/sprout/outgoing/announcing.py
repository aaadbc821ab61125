"""Announces: successive nodes that wait for a peer are sent in as few as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

from adapters.sprout.wire import codec

MAX_NODES_ANNOUNCED: Final = 256  # nodes in one announce of the gateway

_FIRST: Final = itemgetter(0)
_NODE: Final = ord("S")  # the first byte of a node's line, and of no verb


def in_announces(data: list[bytes], take_id: Callable[[], int]) -> list[bytes]:
    """*data* with its node lines put into announces, whose ids *take_id* gives; all else is complete messages."""
    messages: list[bytes] = []
    for first, run in groupby(data, _FIRST):
        parts = list(run)
        messages += _announces(parts, take_id) if first == _NODE else parts
    return messages


def _announces(lines: list[bytes], take_id: Callable[[], int]) -> Iterator[bytes]:
    at = 0
    while at < len(lines):
        part = codec.fitting(lines[at : at + MAX_NODES_ANNOUNCED], len)
        at += len(part)
        yield codec.encode_announce(take_id(), *part)
