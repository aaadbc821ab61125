"""Where the suite runs: a gateway of its own, or the one at `--gateway`."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conformance.room import ConformancePeers
from tests.conformance.speakers import SPEAKERS, Address
from tests.server import Server

SPROUT_PORT = 7777
OFTEN = {"gateway.monitoring.metrics.INTERVAL": 0.0}  # tests ask one after the other how much did not fit
PEERS = 3  # who speaks, who listens, and who stands by
OWN_GATEWAYS = ("test_gateways.py", "test_deployed.py")  # these start gateways whatever they are told
RUN = secrets.token_hex(3)  # names of channels are new in each run, so that a gateway can be tested again and again


def pytest_addoption(parser: pytest.Parser) -> None:
    """How to run the suite against a deployed gateway."""
    group = parser.getgroup("conformance", "against a deployed gateway: pytest tests/conformance --gateway URL")
    group.addoption("--gateway", metavar="URL", help="a gateway that runs, such as http://127.0.0.1:8080")
    group.addoption("--sprout", metavar="ADDRESS", help="its Sprout port: HOST:PORT or tls://HOST:PORT")
    group.addoption("--key", action="append", metavar="KEY", help="an API key; three times, of three peers")


def pytest_configure(config: pytest.Config) -> None:
    """Options that make no sense end the run before it begins."""
    url, keys = config.getoption("gateway", None), config.getoption("key", None)
    if url is not None and not urlsplit(url).hostname:
        raise pytest.UsageError(f"--gateway {url!r} is no URL: give one such as http://127.0.0.1:8080")
    if keys is not None and len(keys) != PEERS:
        raise pytest.UsageError(f"--key is wanted {PEERS} times: all who have the same key are one peer")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What has nothing to do with the gateway that is tested is left out."""
    return True if config.getoption("gateway", None) and collection_path.name in OWN_GATEWAYS else None


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The clients are asyncio's; the gateway runs on either loop."""
    return "asyncio"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A deployed gateway has the loop it has; one of our own is tested on both."""
    if "gateway" in metafunc.fixturenames:
        loops = ["deployed"] if metafunc.config.getoption("gateway", None) else ["asyncio", "trio"]
        metafunc.parametrize("gateway", loops, indirect=True, scope="module")


@pytest.fixture(scope="module")
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A gateway of our own, or the one that was asked for."""
    if request.param == "deployed":
        yield deployed(request.config)
        return
    with Server(tmp_path_factory.mktemp("data"), "--loop", request.param, constants=OFTEN) as server:
        yield Address(server.http, server.sprout)
        assert server.stop() == 0
        assert "Traceback" not in server.log


def deployed(config: pytest.Config) -> Address:
    """The gateway that the options name."""
    url, keys = config.getoption("gateway"), config.getoption("key")
    sprout = config.getoption("sprout") or f"{urlsplit(url).hostname}:{SPROUT_PORT}"
    return Address(url, sprout, tuple(keys)) if keys else Address(url, sprout)


numbers = count()


@pytest.fixture
async def room(gateway: Address, speaker: str, listener: str) -> AsyncIterator[ConformancePeers]:
    """A channel that nobody has been in, somebody who speaks and somebody who listens."""
    channel = f"ünïcode {RUN} {os.getpid() % 1000} {next(numbers)}"
    async with AsyncExitStack() as stack:
        people = [
            await stack.enter_async_context(SPEAKERS[protocol](gateway, name, key))
            for protocol, name, key in zip((speaker, listener, "rest"), ("alice", "bob", ""), gateway.keys, strict=True)
        ]
        yield ConformancePeers(gateway, channel, stack, *people)
