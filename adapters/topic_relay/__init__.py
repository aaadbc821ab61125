"""The topic relay: JSON packets over WebSocket, as the Koshare Router speaks them."""

from .adapter import TopicRelayAdapter

__all__ = ["TopicRelayAdapter"]
