"""Administrators of webhooks, and short delays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.webhooks import courier, delivery
from tests.gateway.webhooks.administrator import ADMIN, LOCAL, Admin


@pytest.fixture
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once, so that no test waits for the back-off."""
    monkeypatch.setattr(delivery, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(courier, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(courier, "SAVE_SECONDS", 0.05)


@pytest.fixture
def admin_of() -> Iterator[Callable[[Any], Admin]]:
    made: list[Admin] = []

    def make(server: Any) -> Admin:
        made.append(Admin(server))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def admin(make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]) -> Admin:
    return admin_of(make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL, "attempts": 2, "timeout_seconds": 5}))
