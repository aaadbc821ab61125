"""Brokers that decrypt streams, with short keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.streamr.crypto import ciphers


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ciphers, "RSA_BITS", 1024)


@pytest.fixture
def make_reading(make_broker: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    return lambda **more: make_broker(streams={"s": {"decrypt": True, "partitions": 2}}, secrets=tmp_path, **more)


@pytest.fixture
def reading(make_reading: Callable[..., Any]) -> Any:
    return make_reading()
