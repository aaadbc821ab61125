"""Ports that stay free while nobody listens on them: for servers that are started again, or by others.

A port that the system chose (port 0) is not the test's own any more once its server has ended: another server of the
suite may get it, or a connection, even that of the client that tries to connect to it again.
"""

from __future__ import annotations

import random
import socket

RANGE = range(20_000, 32_000)  # Linux chooses none of these for connections, nor for port 0
_reserved: list[socket.socket] = []


def reserved_port() -> int:
    """Return a TCP port that no other process of the suite is given as long as this one runs.

    The sign for the others is a UDP socket on the same port: the two have ports of their own.
    """
    for port in random.sample(RANGE, len(RANGE)):
        sign = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sign.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError:
            sign.close()
            continue
        _reserved.append(sign)
        return port
    raise AssertionError("all ports are taken")


def listens(port: int) -> bool:
    """Whether a server on this machine accepts connections at *port*."""
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))
