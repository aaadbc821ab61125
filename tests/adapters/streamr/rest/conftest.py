"""Requests to the REST interface of a broker, and the messages in its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

LAST = "/streams/s/data/partitions/0/last"
Caller = Callable[..., httpx.Response]


@pytest.fixture
def call(broker: Any, make_caller: Callable[[Any], Caller]) -> Caller:
    return make_caller(broker)


def stored(call: Caller, query: str = "from?fromTimestamp=0", stream: str = "s") -> list[Any]:
    answer = call("GET", f"/streams/{stream}/data/partitions/0/{query}")
    assert answer.status_code == 200, answer.text
    return list(answer.json())
