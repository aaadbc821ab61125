"""A small client of each protocol, each as simple as its protocol allows: for `trellis demo` and the tests.

They share nothing with the adapters, so that a mistake there cannot hide here. Only the making and reading of Arbor
nodes, which needs keys, is handed in (`Forge`).
"""

from .client import WAIT, Client, Heard, dumps
from .relay import RelayClient
from .rest import RestClient
from .sprout import Forge, Node, Read, SproutClient
from .streamr import StreamrClient
from .websocket import WebSocketClient

__all__ = [
    "WAIT",
    "Client",
    "Forge",
    "Heard",
    "Node",
    "Read",
    "RelayClient",
    "RestClient",
    "SproutClient",
    "StreamrClient",
    "WebSocketClient",
    "dumps",
]
