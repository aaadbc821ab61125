"""A shared value never goes back to an older version because one server has not seen the newer one."""

from __future__ import annotations

import asyncio

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import RawStreamMsg
from nats.js.manager import JetStreamManager

from gateway.jetstream import shared_value
from gateway.jetstream.shared_value import SharedValue
from tests.nats import NatsServer


class AskedValue:
    """A value as one program sees it, which asks when it is told."""

    def __init__(self, client: Client) -> None:
        self.seen: list[tuple[int, bytes]] = []
        self.value = SharedValue(client, "keys", 1, lambda version, data: self.seen.append((version, data)))

    async def ask(self) -> list[tuple[int, bytes]]:
        """What it receives."""
        await self.value._exchange()
        seen, self.seen = self.seen, []
        return seen


async def _silent(*_arguments: object, **_options: object) -> RawStreamMsg:
    raise TimeoutError


async def _cut_off(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await nats.connect(url)
    try:
        one = AskedValue(client)
        assert await one.ask() == [(0, b"")]
        for version, data in enumerate((b"a key", b"none")):
            one.value.put(data, version)
            assert await one.ask() == [(version + 1, data)]
        with monkeypatch.context() as patch:

            async def older(*_arguments: object, **_options: object) -> RawStreamMsg:
                return RawStreamMsg(seq=1, data=b"a key")

            patch.setattr(JetStreamManager, "get_last_msg", older)
            assert [await one.ask() for _ in range(3)] == [[], [], []]
            one.value.put(b"another", 1)  # merged with the older one; it is received in any case
            assert await one.ask() == []
            patch.setattr(shared_value, "OLDER_SECONDS", 0.1)
            await asyncio.sleep(0.1)
            patch.setattr(JetStreamManager, "get_last_msg", _silent)
            with pytest.raises(TimeoutError):
                await one.ask()
            patch.setattr(JetStreamManager, "get_last_msg", older)
            assert await one.ask() == [], "nobody answered in between: the time begins anew"
            await asyncio.sleep(0.1)
            assert await one.ask() == [(1, b"a key")], "it lasts: the stream was lost, and made anew"
        assert await one.ask() == [(2, b"none")]
        assert await one.ask() == []
    finally:
        await client.close()


def test_an_older_version_does_not_count_at_once(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that was revoked would open the gateway again, as long as a server that is cut off answers."""
    asyncio.run(_cut_off(server.url, monkeypatch))
