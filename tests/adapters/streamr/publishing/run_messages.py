"""Messages for runs, mostly from one publisher in one partition, and a broker that takes them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from adapters.streamr.publishing.validation import MAX_AHEAD, MAX_CHAIN
from adapters.streamr.sessions.session import StreamrSession
from gateway.core.message import LATE_AFTER, Message
from gateway.storage.record import Entry
from tests.adapters.streamr.conftest import Broker, Publisher, unsigned
from tests.conftest import Core, Toy, ToySession
from tests.still import Clock

PUBLISHERS = {"alice": Publisher(0xA11CE), "bob": Publisher(0xB0B)}
STREAMS = {
    "s": {"partitions": 12},
    "s1": {},  # ends in a digit: where the partition begins is not clear
    "closed": {"require_encrypted_data": True},
    "proven": {"require_signed_data": True},
}
GRANTS = {"streamr:anonymous": ("subscribe:*", "history:*", *(f"publish:{name}*" for name in STREAMS))}
NOW = Clock().now


Said = tuple[list[Any], str | None]  # a message, and whose token it comes with

# Mostly what goes on as a run, from one publisher in one place; some of what does not, and of what is refused.
people = st.sampled_from(["alice", "alice", "alice", "bob", None])
places = st.sampled_from([("s", 0), ("s", 0), ("s", 0), ("s", 11), ("s", 12), ("s1", 0), ("closed", 0), ("proven", 0)])
elsewhere = st.sampled_from([("secret", 0), ("s/@7", 0), ("SYSTEM/keyexchange/0x1", 0)])
times = st.one_of(
    st.integers(0, 30),
    st.integers(0, 30),
    st.sampled_from([MAX_AHEAD + 1, -LATE_AFTER - 1, -LATE_AFTER - 2, -LATE_AFTER, -NOW + 5]),
)
contents = st.sampled_from(
    [
        "1",
        '{"n": 1}',
        '{"text":"日本"}',
        '{"inReplyTo":"nobody"}',
        '{\n"n":1}',
        "[1",
        "[" * 300 + "]" * 300,
        "c0ffee",
        '"\\ud800"',
    ]
)
extras: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        *[{}] * 8,
        {"encryption": 2, "group_key": "k"},
        {"chain": "other"},
        {"chain": "x" * (MAX_CHAIN + 1)},
        {"chain": "\ud800"},
        {"kind": 32},
        {"prev": [1, 0]},
        {"prev": [1, None]},
    ]
)
tokens = st.sampled_from([None, None, None, "alice", "bob", "nobody"])


@st.composite
def frames(draw: st.DrawFn) -> list[Any]:
    """Messages, each with whose token it comes with, and other frames: mostly of one publisher in one place."""
    mostly = draw(people), draw(places), draw(tokens)
    odd = st.tuples(people, st.one_of([places] * 4 + [elsewhere]), tokens)
    here = st.one_of([st.just(mostly)] * 6 + [odd])
    return [draw(others) if draw(st.integers(0, 12)) == 7 else draw(publish(*draw(here))) for _ in range(draw(sizes))]


@st.composite
def publish(
    draw: st.DrawFn, who: str | None, place: tuple[str, int], token: str | None
) -> tuple[list[Any], str | None]:
    """A message of *who* in *place*; it may be spoilt."""
    (stream, partition), content, extra = place, draw(contents), draw(extras)
    at, seq = NOW + draw(times), draw(st.integers(0, 2))
    if who is None:
        spelt = draw(st.sampled_from(["", "", "", PUBLISHERS["alice"].address]))
        chain = extra.get("chain", "")
        return unsigned(stream, content, at, seq, partition=partition, publisher=spelt, chain=chain), token
    row = PUBLISHERS[who].message(stream, content, at, seq, partition=partition, **_signable(extra))
    return draw(st.sampled_from([list] * 9 + [*SPOILT.values()]))(row), token


# What makes a signed row what it should not be.
# fmt: off
SPOILT: dict[str, Callable[[list[Any]], list[Any]]] = {
    "forged":    lambda row: [*row[:10], row[10][:-2] + f"{55 - int(row[10][-2:], 16):02x}"],  # the other v
    "type":      lambda row: [*row[:9], 0, row[10]],
    "legacy":    lambda row: [*row[:9], 1, row[10]],
    "bare":      lambda row: [*row[:10], None],
    "case":      lambda row: [row[0], [*row[1][:4], "0x" + row[1][4][2:].upper(), row[1][5]], *row[2:]],
}
# fmt: on


def _signable(extra: dict[str, Any]) -> dict[str, Any]:
    """Half a character cannot be signed by who encodes strictly."""
    return {} if extra.get("chain") == "\ud800" or None in extra.get("prev", ()) else extra


others = st.sampled_from(
    [[2, 9, "r", "s", 0, None], [2, 10, "r", "s", 0], [2, 11, "r", "s", 0, 2, None], [2, 12], "nonsense"]
)
sizes = st.integers(1, 10)


class RunBroker:
    """A broker where somebody may speak on some streams, *limit* requests pass, and two listen."""

    def __init__(self, data: Path, limit: int, together: bool) -> None:
        self._data = data
        self.broker = Broker(
            *(self._core, Toy(), ToySession),
            grants=GRANTS,
            partitions=1,
            streams=STREAMS,
            batch_verification=together,
        )
        asked: defaultdict[int, count[int]] = defaultdict(count)  # by who is paced: the connection, or an author
        self.listeners = [
            *(self.broker.listener(stream, partition) for stream, partition in (("s", 0), ("s", 11), ("s1", 0))),
            self.broker.listener("s", controlLayerVersion="1", messageLayerVersion="31"),
        ]
        self.toy = self.broker.toy("s")
        self.logged: list[Entry] = []
        self._extend = self.core.log.extend
        self.core.log.extend = self._log  # type: ignore[method-assign]
        self.speaker = self.broker.open()
        self.tokens = {name: self.broker.token(publisher) for name, publisher in PUBLISHERS.items()}
        self.broker.bus.throttle = lambda _principal, peer, _channel: float(next(asked[peer.number]) >= limit)

    def _log(self, entries: Sequence[Entry]) -> None:
        self.logged += entries
        self._extend(entries)

    def _core(self, rules: tuple[Any, ...], create: bool) -> Core:
        self.core = Core(self._data, rules=rules, create=create)
        return self.core  # nothing is written: what was said is found in memory

    def close(self) -> None:
        """Let go of the files."""
        self.core.index.close()
        self.core.segments.close()

    def texts(self, said: list[Any]) -> list[bytes]:
        """What the speaker sends, with its tokens."""
        given = [
            [2, 8, f"r{n}", each[0], self.tokens.get(each[1] or "", each[1])] if isinstance(each, tuple) else each
            for n, each in enumerate(said)
        ]
        return [json.dumps(each, separators=(",", ":")).encode() for each in given]

    def state(self) -> Any:
        """What is logged, what everybody has been told, and who the speaker is now."""
        entries = [
            (m.seq, m.id, m.channel, m.content, m.parent, m.wire, m.ids, m.native, m.sender, m.timestamp, m.late)
            if isinstance(m, Message)
            else (m.seq, m.kind, m.fields)
            for m in self.logged
        ]
        speaker = self.speaker
        return (
            entries,
            [self.broker.frames(session) for session in (speaker, *self.listeners)],
            self.toy.take(),
            (
                speaker.identity,
                speaker.link,
                [self.broker.adapter.logins.address(token, NOW) for token in speaker._users],
                speaker.closing,
            ),
            {name: dict(counter) for name, counter in self.core.metrics.counts.items()},
        )


def after(
    limit: int,
    said: list[Any],
    speak: Callable[[StreamrSession, list[bytes]], None],
    *,
    together: bool = False,
    kept_since: int = 0,
) -> Any:
    """What there is when the speaker spoke; *together* sets `batch_verification`."""
    with TemporaryDirectory() as data:
        room = RunBroker(Path(data), limit, together)
        room.broker.adapter.parts.publish_handler.kept_since = kept_since
        try:
            speak(room.speaker, room.texts(said))
            return room.state()
        finally:
            room.close()


def one_by_one(speaker: StreamrSession, texts: list[bytes]) -> None:
    for text in texts:
        speaker.receive_data(text)


def at_once(speaker: StreamrSession, texts: list[bytes]) -> None:
    speaker.receive_all(texts)


def says(who: str | None, *times: int, stream: str = "s", token: str | None = None, **more: Any) -> list[Any]:
    """Messages that differ in their time alone."""
    made = unsigned if who is None else PUBLISHERS[who].message
    return [(made(stream, "1", NOW + at, **more), token) for at in times]


ALICE = says("alice", *range(10))
SPOILT_ALICE = [(spoil(row), None) for spoil, (row, _) in zip(SPOILT.values(), ALICE[1:], strict=False)]
FORGED = SPOILT["forged"](ALICE[2][0]), None
ANSWERED = json.dumps(["s", 0, NOW + 1, 0, *ALICE[1][0][1][4:]], separators=(",", ":"))
ANSWER = PUBLISHERS["alice"].message("s", {"inReplyTo": ANSWERED}, NOW + 3), None
HALF_SIGNED = [([*row[:10], "0x"], None) for row, _ in says(None, 3)]
HEARD = [2, 9, "r", "s", 0, None]
[(CUT, _)] = says("alice", 0, stream="s1")
CUT_ANEW = ([CUT[0], ["s", 10, *CUT[1][2:]], *CUT[2:]], None)  # what is signed is the same text
