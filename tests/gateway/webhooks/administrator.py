"""An administrator of webhooks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.gateway.webhooks.receiver import PATIENCE

ADMIN = {"grants": {"anonymous": ["*:*", "admin:*"]}}
LOCAL = ["127.0.0.0/8", "::1/128"]
HOOKS = "/v1/webhooks"


class Admin(httpx.Client):
    """Somebody who may administer."""

    def __init__(self, server: Any) -> None:
        super().__init__(base_url=server.url, timeout=PATIENCE)

    def hook(self, url: str, channels: str = "*", **more: Any) -> Any:
        made = self.post(HOOKS, json={"url": url, "channels": channels} | more)
        assert made.status_code == 201, made.text
        return made.json()

    def say(self, *contents: Any, channel: str = "lobby") -> list[Any]:
        body = "".join(json.dumps(content) + "\n" for content in contents)
        path = f"/v1/channels/{channel.replace('/', '%2F')}/messages"
        told = self.post(path, content=body, headers={"Content-Type": "application/x-ndjson"})
        return [json.loads(line) for line in told.text.splitlines()]

    def until(self, path: str, true: Callable[[Any], bool]) -> Any:
        end = time.monotonic() + PATIENCE
        while not true(found := self.get(path).json()):
            assert time.monotonic() < end, found
            time.sleep(0.01)
        return found
