"""A gateway with Streamr and a toy protocol on one bus, on a real disk, and publishers that sign for themselves."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from coincurve import PrivateKey, PublicKey
from Crypto.Hash import keccak
from fastapi import FastAPI

from adapters.streamr import StreamrAdapter
from adapters.streamr.sessions.session import StreamrSession
from gateway.access.authorization import Access, ApiKey
from gateway.adapter import ConnectionRequest, Installation, Services
from gateway.app import RawPaths
from gateway.core.answer_scheduler import AnswerScheduler
from gateway.core.frames import payload
from gateway.core.message import Message
from gateway.core.principal import Principal
from gateway.storage.record import decode

V32 = {"controlLayerVersion": "2", "messageLayerVersion": "32"}


def keccak256(data: bytes) -> bytes:
    return keccak.new(data=data, digest_bits=256).digest()


def personal_digest(text: str, length: int | None = None) -> bytes:
    """What `personal_sign` hashes, written once more from EIP-191."""
    data = text.encode()
    return keccak256(b"\x19Ethereum Signed Message:\n" + str(len(data) if length is None else length).encode() + data)


class Publisher:
    """Somebody with a private key, who makes messages of version 32 by hand."""

    def __init__(self, seed: int = 1) -> None:
        self.key = PrivateKey.from_int(seed)
        self.address = "0x" + keccak256(self.key.public_key.format(compressed=False)[1:])[12:].hex()

    def sign(self, text: str, length: int | None = None) -> str:
        raw = self.key.sign_recoverable(personal_digest(text, length), hasher=None)
        return "0x" + raw[:64].hex() + f"{raw[64] + 27:02x}"

    def message(self, stream: str, content: Any, at: int, seq: int = 0, **more: Any) -> list[Any]:
        """A signed message; *more* are partition, prev, publisher (as it is spelt), chain, type and encryption."""
        text = content if isinstance(content, str) else json.dumps(content)
        publisher, chain = more.get("publisher", self.address), more.get("chain", "chain")
        prev = more.get("prev")
        head = f"{stream}{more.get('partition', 0)}{at}{seq}{publisher.lower()}{chain}"
        signed = head + ("".join(map(str, prev)) if prev else "") + text
        message_id = [stream, more.get("partition", 0), at, seq, publisher, chain]
        kind, encryption, group_key = more.get("kind", 27), more.get("encryption", 0), more.get("group_key")
        return [32, message_id, prev, kind, 0, encryption, group_key, text, None, 2, self.sign(signed)]


def recovered(message: list[Any], length: int | None = None) -> str:
    """The address that signed a message of version 32, found without the code under test."""
    stream, partition, at, seq, publisher, chain = message[1]
    prev = "".join(map(str, message[2])) if message[2] else ""
    text = f"{stream}{partition}{at}{seq}{publisher.lower()}{chain}{prev}{message[7]}"
    raw = bytes.fromhex(message[10][2:])
    key = PublicKey.from_signature_and_message(
        raw[:64] + bytes((raw[64] - 27,)), personal_digest(text, length), hasher=None
    )
    return "0x" + keccak256(key.format(compressed=False)[1:])[12:].hex()


def unsigned(stream: str, content: Any, at: int, seq: int = 0, **more: Any) -> list[Any]:
    """An unsigned message of version 32; *more* are partition, publisher and chain."""
    text = content if isinstance(content, str) else json.dumps(content)
    message_id = [stream, more.get("partition", 0), at, seq, more.get("publisher", ""), more.get("chain", "")]
    return [32, message_id, None, 27, 0, 0, None, text, None, 0, None]


class Broker:
    """The inside of a gateway. A second one made by the same factory is the same gateway after a restart."""

    def __init__(
        self,
        make_core: Callable[..., Any],
        toy: Any,
        toy_session: Any,
        *,
        grants: Mapping[str, tuple[str, ...]] | None = None,
        keys: tuple[ApiKey, ...] = (),
        create: bool = True,
        secrets: Path = Path(),
        **settings: Any,
    ) -> None:
        self.adapter = StreamrAdapter(
            StreamrAdapter.settings_model(**settings), Installation(secrets, "gw", "1.2.3", b"s" * 32)
        )
        self.core = make_core(rules=(self.adapter, toy), create=create)
        self.clock = self.core.clock
        self.bus = self.core.bus
        self.access = Access(keys, grants or {})
        self.bus.allowed = self.access.allowed
        self.bus.translators = [self.adapter]
        core = self.core
        self.adapter.start(
            Services(
                *(
                    core.bus,
                    core.log,
                    core.index,
                    core.posted.put,
                    self._work,
                    self._work,
                    core.log.fact,
                    core.metrics,
                    self.access,
                ),
                AnswerScheduler(core.posted.put, self._at_once, lambda: core.log.next_seq, core.clock),
            )
        )
        self._toy_session = toy_session

    def _at_once(self, _seconds: float, call: Callable[[], None]) -> None:
        self.core.posted.put(call)

    def _work(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.core.posted.put(lambda: done(call()))

    def open(self, query: Mapping[str, str] | None = None, name: str = "streamr:anonymous") -> StreamrSession:
        """A new connection, which asks for control 2 and message 32."""
        session = self.adapter.accept(ConnectionRequest(Principal(name), "/api/v1/ws", V32 if query is None else query))
        assert isinstance(session, StreamrSession)
        return session

    def toy(self, *channels: str) -> Any:
        """A peer of another protocol, which listens to *channels*."""
        session = self._toy_session(self.bus)
        for channel in channels:
            self.bus.subscribe(session, channel)
        session.take()
        return session

    def logged(self, channel: str | None = None) -> list[Message]:
        """The messages of *channel*, or of all channels, in the log, wherever the index is."""
        self.core.sync()
        entries = (decode(line.data) for line in self.core.segments.scan())
        return [entry for entry in entries if isinstance(entry, Message) and channel in (None, entry.channel)]

    def say(self, channel: str, content: Any, **fields: Any) -> Message:
        """What a toy says on *channel*."""
        sender = fields.pop("sender", None) or self.toy().peer
        text = json.dumps(content, ensure_ascii=False).encode()
        message = Message(channel, sender, "toy", text, **fields)
        self.bus.publish(message)
        return message

    def frames(self, session: StreamrSession) -> list[Any]:
        """What *session* has to send."""
        return [json.loads(payload(frame)) for frame in session.data_to_send()]

    def ask(self, session: StreamrSession, frame: Any) -> list[Any]:
        """What *session* answers to *frame*; a resend goes on as long as it has turns."""
        session.receive_data(frame if isinstance(frame, bytes) else json.dumps(frame).encode())
        frames = self.frames(session)
        while session.resends:
            self.core.posted.get(timeout=10)()
            frames += self.frames(session)
        return frames

    def listener(self, stream: str, partition: int = 0, **query: str) -> StreamrSession:
        """A new connection that has subscribed."""
        session = self.open(query or None)
        assert self.ask(session, [2, 9, "r", stream, partition, None])[0][1] == 2
        return session

    def token(self, publisher: Publisher) -> str:
        """A session token of *publisher*."""
        logins, now = self.adapter.logins, self.clock()
        challenge = logins.challenge(publisher.address, now)
        signature = publisher.sign(challenge.text)
        return logins.log_in(challenge.id, challenge.text, signature, publisher.address, now).token


async def _forever() -> Any:
    await anyio.sleep_forever()


class Caller:
    """Calls the routes of a broker, without a socket."""

    def __init__(self, broker: Any, portal: Any) -> None:
        app = FastAPI()
        for router in broker.adapter.routers():
            app.include_router(router)
        app.add_middleware(RawPaths)
        self.app = app
        self._broker = broker
        self._portal = portal

    def __call__(self, method: str, path: str, token: str | None = None, **options: Any) -> httpx.Response:
        headers = options.pop("headers", {}) | ({} if token is None else {"Authorization": f"Bearer {token}"})

        async def call() -> httpx.Response:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run_what_is_posted)
                response = await self.inside(method, "/api/v1" + path, headers=headers, **options)
                tasks.cancel_scope.cancel()
            return response

        response: httpx.Response = self._portal.call(call)
        return response

    async def inside(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The same, for who is in the loop already."""
        transport = httpx.ASGITransport(self.app, client=("192.0.2.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway.example") as client:
            return await client.request(method, path, **options)

    async def run(self, path: str, send: Callable[[Any], Awaitable[None]], token: str = "") -> None:
        """GET *path* as a server would that sends by *send*."""
        path, _, query = path.partition("?")
        raw = b"/api/v1" + path.encode()
        scope = {"type": "http", "method": "GET", "path": raw.decode(), "raw_path": raw}
        scope |= {"headers": [(b"authorization", b"Bearer " + token.encode())] if token else []}
        scope |= {
            "query_string": query.encode(),
            "client": ("192.0.2.1", 1),
            "server": ("gateway.example", 80),
            "scheme": "http",
        }
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run_what_is_posted)
                await self.app(scope, _forever, send)
                tasks.cancel_scope.cancel()

    async def _run_what_is_posted(self) -> None:
        while True:
            self._broker.core.drain()
            await anyio.sleep(0.001)


@pytest.fixture
def make_broker(
    make_core: Callable[..., Any], core_class: Any, toy_session: Any, tmp_path: Path
) -> Callable[..., Broker]:
    toy = core_class.__dataclass_fields__["rules"].default[0]
    secrets = tmp_path / "keys"
    secrets.mkdir(mode=0o700)
    return lambda **options: Broker(make_core, toy, toy_session, **{"secrets": secrets} | options)


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker()


@pytest.fixture
def alice() -> Publisher:
    return Publisher(0xA11CE)


@pytest.fixture
def bob() -> Publisher:
    return Publisher(0xB0B)


@pytest.fixture(name="unsigned", scope="session")
def _unsigned() -> Callable[..., list[Any]]:
    return unsigned


@pytest.fixture(name="recovered", scope="session")
def _recovered() -> Callable[..., str]:
    return recovered


@pytest.fixture(scope="session")
def portal() -> Iterator[Any]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def make_caller(portal: Any) -> Callable[[Broker], Caller]:
    return lambda broker: Caller(broker, portal)
