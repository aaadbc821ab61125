"""Large forests without the time that it takes to sign them: a gateway's data directory, filled from within.

The replies are of the usual size and stand where they say, but their signatures are another's: a gateway believes its
own log. Only for questions about what is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from adapters import ADAPTERS
from adapters.sprout.adapter import SproutAdapter
from adapters.sprout.forest import forest
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire import base64url
from gateway.adapter import ConnectionRequest
from gateway.core.message import Message
from gateway.core.principal import Principal
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model

from .sprout_nodes import trees

PIECE = 1_000  # replies between two looks at how far the disk is
LAG = 10_000  # replies that the tables may lack


def plant(data: Path, count: int) -> str:
    """Fill *data* with a community of *count* replies; its id."""
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    values: dict[str, Any] = {"data": data, "limits": {"rates": "off"}}
    gateway = Gateway(settings_model(ADAPTERS)(**values), ADAPTERS)
    gateway.start(posted.put)
    (adapter,) = (each for each in gateway.adapters if isinstance(each, SproutAdapter))
    tree = trees(1, 1)[0]
    session = adapter.accept(ConnectionRequest(Principal("sprout:anonymous")))
    session.receive_data(b"announce 0 2\n%b\n%b\n" % (tree.identity.line, tree.community.line))
    channel = gateway.channels.channel(NAME, tree.community.id)
    sender = gateway.peers.identity(NAME, tree.identity.id, "ada")
    template = forest.decode(tree.replies[0].raw)
    for n in range(count):
        node = forest.encode(replace(template, created=template.created + n))
        id = forest.node_id(node)
        message = Message(channel, sender, NAME, b'{"content":"x"}', timestamp=template.created + n, ids=(id,))
        message.native, message.wire = {NAME: id}, base64url.encode(node)
        gateway.bus.publish(message)
        if n % PIECE == 0:
            _wait(gateway, posted, n - LAG)
    _wait(gateway, posted, gateway.log.next_seq - 1)
    gateway.stop()
    _run(posted)
    return tree.community.id


def _wait(gateway: Gateway, posted: SimpleQueue[Callable[[], None]], seq: int) -> None:
    """Until the tables know everything up to *seq*."""
    _run(posted)
    while gateway.index.applied_seq < seq:
        time.sleep(0.02)
        _run(posted)


def _run(posted: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        try:
            posted.get_nowait()()
        except Empty:
            return
