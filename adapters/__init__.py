"""The registry: one line for each protocol that the gateway speaks."""

from __future__ import annotations

from gateway.adapter import Adapter

ADAPTERS: tuple[type[Adapter], ...] = ()
