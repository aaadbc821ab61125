"""Notifies systemd of the gateway's state: sd_notify(3), for units of `Type=notify` or `notify-reload`.

If the variable NOTIFY_SOCKET is not set, the process does not run under systemd, and every call does nothing.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from time import monotonic_ns

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


def notify(*lines: str) -> None:
    """Send *lines*, such as `READY`, to systemd, without waiting; what it does not accept at once is lost."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        sender.sendto("\n".join(lines).encode(), address)


def reloading() -> None:
    """Tell systemd that the configuration is read again; `notify(READY)` has to follow."""
    notify("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")
