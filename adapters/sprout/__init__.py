"""Sprout 0.0, the protocol of Arbor: lines over TCP or TLS that carry the signed nodes of a forest."""

from .adapter import SproutAdapter

__all__ = ["SproutAdapter"]
