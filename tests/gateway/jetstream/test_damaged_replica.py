"""A flipped bit in the store of one of three servers is healed, and no gateway reads it."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from gateway.jetstream.connecting import JetStreamSettings
from tests.faults.cluster.machines import Servers
from tests.waiting import until

from .test_leaving import LoopThread
from .test_leaving import loop as loop
from .test_stream import StreamReader

SAID = [b"%d %s" % (number, b"y" * 500) for number in range(1, 201)]
TEXT = SAID[100]
ATTEMPTS = 10
BLOCKS = "jetstream/$G/streams/test/msgs"
JOURNALS = "jetstream/$SYS/_js_"


def stored(folder: Path) -> bytes:
    """What the files in *folder* have; nothing while they change."""
    try:
        return b"".join(path.read_bytes() for path in folder.rglob("*.blk"))
    except FileNotFoundError:
        return b""


def has_all(home: Path) -> bool:
    found = stored(home / BLOCKS)
    return all(text in found for text in SAID)


def is_current(member: StreamReader, name: str) -> bool:
    """Whether the server *name* has what the others have, as *member* was told."""
    stored = member.stream.status().stored
    return stored is not None and any(each.name == name and each.current for each in stored.replicas)


def has_read(member: StreamReader) -> bool:
    return len(member.counted()) >= len(SAID) or bool(member.faults)


def flip_a_bit(home: Path) -> None:
    """Change a bit of the text that a server stored in its folder *home*."""
    (block,) = [path for path in (home / BLOCKS).glob("*.blk") if TEXT in path.read_bytes()]
    damaged = bytearray(block.read_bytes())
    damaged[damaged.index(TEXT) + 9] ^= 1
    block.write_bytes(damaged)


@pytest.mark.parametrize("index", [True, False])
def test_a_flipped_bit_of_a_server_is_not_taken_and_is_healed(tmp_path: Path, loop: LoopThread, index: bool) -> None:
    """A server that has its index leaves the message out until it is started empty; else it copies what it lacks."""
    servers = Servers(tmp_path)
    loop.run(servers.start)
    settings = JetStreamSettings("test", tuple(server.url for server in servers.servers.values()), 3)
    members = [StreamReader(settings)]
    name, victim = next(iter(servers.servers.items()))
    home = tmp_path / f"nats-{name}"
    try:
        for data in SAID:
            members[0].stream.submit(data)
        until(lambda: members[0].counted() == SAID)
        victim.stop()
        for _ in range(ATTEMPTS):
            if TEXT not in stored(home / JOURNALS):
                break
            victim.start()
            until(partial(is_current, members[0], name))
            victim.stop()  # it compacts its journal, if it can
        flip_a_bit(home)
        if not index:
            (home / BLOCKS / "index.db").unlink()
        victim.start()
        for _ in range(3):
            late = StreamReader(settings)
            members.append(late)
            until(partial(has_read, late))
            assert (late.counted(), late.faults) == (SAID, [])
            assert set(late.data) == set(SAID)
        if index:
            victim.stop()
            shutil.rmtree(home / "jetstream")
            victim.start()
        until(lambda: has_all(home))
        members[0].stream.submit(b"201")
        until(lambda: all(len(member.counted()) == 201 for member in members))
    finally:
        for member in members:
            member.stream.stop()
        loop.run(servers.stop)
