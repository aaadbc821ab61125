"""Sessions on a bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gateway.core.bus_toys import Make

if TYPE_CHECKING:
    from tests.conftest import Core, ToySession


@pytest.fixture
def join(core: Core, toy_session: type[ToySession]) -> Make:
    """Makes a session that listens to some channels, and forgets what it heard of that."""

    def make(*channels: str, kind: type[ToySession] = toy_session) -> ToySession:
        session = kind(core.bus)
        for channel in channels:
            core.bus.subscribe(session, channel)
        session.take()
        return session

    return make
