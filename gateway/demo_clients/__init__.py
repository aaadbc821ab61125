"""A small client of each protocol, each as simple as its protocol allows: for `trellis demo` and the tests.

They share nothing with the adapters, so that a mistake there cannot hide here. Only the code that creates and reads
Arbor nodes, which needs keys, is passed in (`NodeFactory`).
"""

from gateway.client.jsontext import dumps

from .client import WAIT, Client, ReceivedMessage
from .relay import RelayClient
from .rest import RestClient
from .sprout import ArborNode, NodeFactory, ReplyContent, SproutClient
from .streamr import StreamrClient
from .websocket import WebSocketClient

__all__ = [
    "WAIT",
    "ArborNode",
    "Client",
    "NodeFactory",
    "ReceivedMessage",
    "RelayClient",
    "ReplyContent",
    "RestClient",
    "SproutClient",
    "StreamrClient",
    "WebSocketClient",
    "dumps",
]
