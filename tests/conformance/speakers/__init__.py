"""The Speakers: a peer of each protocol, and what it can do and see by its protocol's own means.

A Speaker is a client of `gateway.demo_clients` and what the conformance suite asks beyond that. A new protocol adds
one, and one line to SPEAKERS; that multiplies the pairs. What differs between the protocols on purpose (mapping, verb
by verb) is what stands at the top of each class.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.forge import SequoiaForge

from .relay import RelaySpeaker
from .rest import RestSpeaker
from .speaker import Address, Speaker
from .sprout import SproutSpeaker
from .streamr import StreamrSpeaker

__all__ = ["SPEAKERS", "Address", "RelaySpeaker", "RestSpeaker", "Speaker"]

Make = Callable[[Address, str, str | None], Speaker]

# By protocol: how a Speaker is made of the address, who it is (of those whose keys the forge has), and an API key.
SPEAKERS: dict[str, Make] = {
    "topic_relay": lambda at, _name, key: RelaySpeaker(at.http, key),
    "sprout": lambda at, name, key: SproutSpeaker(at.http, at.sprout, SequoiaForge(name), key),
    "streamr": lambda at, _name, key: StreamrSpeaker(at.http, key),
    "rest": lambda at, _name, key: RestSpeaker(at.http, key),
}
