"""The gateway notifies systemd on its socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.system import systemd
from tests.gateway.operated import Operated
from tests.waiting import until


def test_readiness_and_reloads_are_reported_to_systemd(operated: Operated) -> None:
    told = operated.notified
    until(lambda: len(told) > 1)
    assert told[:2] == [systemd.READY, f"STATUS=serves {operated.http}"]
    since = len(told)
    operated.hangup("reloaded")
    until(lambda: systemd.READY in told[since:] and systemd.ALIVE in told[since:])
    reloading, time, ready = (line for line in told[since:] if line != systemd.ALIVE)
    assert (reloading, ready) == ("RELOADING=1", systemd.READY)
    assert int(time.removeprefix("MONOTONIC_USEC=")) > 0


def test_a_stop_is_reported_to_systemd(
    still_class: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        wire.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        still = still_class(tmp_path / "data")
        still.gateway.goodbye()
        still.stop()
        assert wire.recv(4096).decode() == systemd.STOPPING


def test_nothing_waits_for_a_listener_that_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        wire.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        for _ in range(1_000):  # its queue has room for some hundred at most
            systemd.notify(systemd.ALIVE)


def test_abstract_sockets_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        wire.bind("\0trellis-test-notify")
        monkeypatch.setenv("NOTIFY_SOCKET", "@trellis-test-notify")
        systemd.notify("READY=1", "STATUS=x")
        assert wire.recv(100) == b"READY=1\nSTATUS=x"
    systemd.notify("READY=1")  # nobody listens any more, which is nobody's fault
