"""Streamr: the control protocol over WebSocket, with signed messages, and the REST interface beside it."""

from .adapter import StreamrAdapter

__all__ = ["StreamrAdapter"]
