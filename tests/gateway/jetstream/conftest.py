"""What the tests of JetStream need: a genuine server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nats import NatsServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    yield server
    server.stop()
