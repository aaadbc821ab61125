"""Clients of a gateway over REST."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.http.rest_requests import PATIENCE


@pytest.fixture
def http(local: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=local.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def client_of() -> Iterator[Callable[..., httpx.Client]]:
    clients: list[httpx.Client] = []

    def make(server: Any, key: str | None = None, **headers: str) -> httpx.Client:
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        clients.append(httpx.Client(base_url=server.url, timeout=PATIENCE, headers=headers | bearer))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
