"""The registry: one line for each protocol that the gateway speaks."""

from __future__ import annotations

from gateway.adapter import Adapter

from .sprout import SproutAdapter
from .streamr import StreamrAdapter
from .topic_relay import TopicRelayAdapter

ADAPTERS: tuple[type[Adapter], ...] = (TopicRelayAdapter, SproutAdapter, StreamrAdapter)
