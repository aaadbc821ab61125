"""Peers at two gateways of a cluster see each other, and send each other direct messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.forest.validate import EXPIRATION, expiration
from adapters.sprout.wire import base64url
from gateway import runtime
from gateway.cluster.directs import WAIT
from gateway.cluster.presence import SharedPresence
from gateway.cluster.roster import SILENT
from gateway.cluster.signals import (
    MAX_ROWS,
    AdapterSignal,
    DirectOutcome,
    DirectSignal,
    PeerRow,
    PresenceChanges,
    PresenceSnapshot,
    Signal,
    encode_signal,
)
from gateway.core.message import Message, Peer
from gateway.core.presence import Presence
from tests.adapters.streamr.conftest import Publisher
from tests.properties.cluster import Node, Stream, copy_of, next_seq
from tests.properties.house import NOW, template
from tests.properties.parties import BASE64, KINDS, Party, SproutParty
from tests.still import Clock


class Pair:
    """Two gateways, one of which has the turn."""

    def __init__(self, folder: Path) -> None:
        folders = [copy_of(template(), folder / name) for name in "ab"]
        stream = Stream(next_seq(folders[0]))
        self.nodes = [Node(stream, folder) for folder in folders]
        self.beat()

    def beat(self) -> None:
        for node in self.nodes:
            node.membership.signalling.beat()
        self.settle()

    def settle(self) -> None:
        """Do everything that is due at both."""
        for _ in range(3):
            for node in self.nodes:
                node.transport.pump()
                node.house.posted.drain()

    def enter(self, at: int, kind: str, channel: str = "lobby") -> Any:
        """A peer of *kind*, which joins *channel* at that gateway."""
        node = self.nodes[at]
        node.catch_up()
        party = KINDS[kind](node.house)
        party.join(channel)
        self.settle()
        return party

    def heard(self, party: Party) -> bytes:
        """What *party* was sent since the last time."""
        self.settle()
        sent = b""
        for session in party.sessions:
            while data := session.data_to_send():
                sent += b"\n".join(data)
        return sent

    def numbers(self, at: int, channel: str = "lobby") -> list[int]:
        return [peer.number for peer in self.nodes[at].house.gateway.bus.peers_in(channel)]

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(runtime, "clock", Clock(NOW))
    pair = Pair(tmp_path)
    yield pair
    pair.stop()


def test_a_peer_is_seen_at_the_other_gateway_until_it_leaves(pair: Pair) -> None:
    relay = pair.enter(0, "topic_relay")
    pair.heard(relay)
    other = pair.enter(1, "streamr")
    assert relay.number != other.number
    assert pair.numbers(0) == [relay.number, other.number]
    assert sorted(pair.numbers(1)) == sorted([relay.number, other.number])
    assert b'{"type":7,"topic":"lobby","src":%d}' % other.number in pair.heard(relay)
    other.end()
    pair.settle()
    assert pair.numbers(0) == [relay.number]
    relay.end()
    pair.settle()
    assert pair.numbers(1) == []


def test_arbor_is_told_of_a_peer_elsewhere_by_a_signed_node(pair: Pair) -> None:
    alice = pair.enter(0, "alice")
    pair.nodes[0].house.adapters["sprout"].parts.presence._to_all = True
    relay = pair.enter(1, "topic_relay")
    said = b""
    for _ in range(6):  # it signs an identity and a reply, each once the one before is on disk
        runtime.clock.now += 1_000  # type: ignore[attr-defined]
        for node in pair.nodes:
            node.catch_up()
            node.house.gateway.tick()
            node.house.settle(synced=True)
        said += pair.heard(alice)
    nodes = [base64url.decode(text) for text in BASE64.findall(said)]
    assert any(b"activity" in node for node in nodes), said
    assert relay.number in pair.numbers(0)


def announce(party: SproutParty, said: bytes) -> bytes:
    """Announce presence in the lobby as Arbor's clients do; the node."""
    community = party.house.gateway.channels.address("sprout", "lobby")
    assert community is not None
    pairs = {"activity/1": said, EXPIRATION: expiration(runtime.clock() + 600_000), "invisible/1": b"true"}
    node = party._reply(forest.ReplyPosition(community, 1, community, forest.NULL_ID), "", pairs)
    party.announce(node)
    return node


def test_what_arbors_authors_announce_is_shown_at_other_gateways(pair: Pair) -> None:
    one, other = pair.nodes
    alice = pair.enter(0, "alice")
    first = announce(alice, b"0")  # its author is not in the log of the other gateway yet
    bob = pair.enter(1, "bob")
    announce(bob, b"0")
    for _ in range(2):
        for node in pair.nodes:
            node.catch_up()
            node.house.settle(synced=True)
            node.house.gateway.tick()
    assert base64url.encode(first) in pair.heard(bob), "a newcomer is shown who is there"
    last = announce(alice, b"1")
    assert pair.heard(bob).count(base64url.encode(last)) == 1
    assert base64url.encode(last) not in pair.heard(alice)
    sprout = other.house.adapters["sprout"]
    bad = one.membership.signalling.bad
    for words in (b"", b"no node", b"x" * 5_000, sprout.parts.nodes.entry_line(None) or b"a b"):
        one.transport.on_signal(encode_signal(AdapterSignal(other.turn.me, "sprout", words)))
    forged = b"%b %b" % (forest.node_id(last).encode(), base64url.encode(first))
    one.transport.on_signal(encode_signal(AdapterSignal(other.turn.me, "sprout", forged)))
    one.transport.on_signal(encode_signal(AdapterSignal(other.turn.me, "rest", b"")))
    one.transport.on_signal(encode_signal(AdapterSignal(other.turn.me, "topic_relay", b"")))
    assert one.membership.signalling.bad == bad + 7


def key_listener(pair: Pair, at: int, publisher: Publisher) -> Party:
    """A Streamr client that has logged in and listens to its key exchange."""
    party: Party = pair.enter(at, "streamr")
    logins = party.house.adapters["streamr"].logins
    challenge = logins.challenge(publisher.address, NOW)
    signature = publisher.sign(challenge.text)
    token = logins.log_in(challenge.id, challenge.text, signature, publisher.address, NOW).token
    party.send([2, 9, "keys", f"SYSTEM/keyexchange/{publisher.address}", 0, token])
    pair.heard(party)
    return party


def test_streamr_clients_exchange_group_keys_over_gateways(pair: Pair) -> None:
    writer, reader = Publisher(5), Publisher(6)
    writes, reads = key_listener(pair, 0, writer), key_listener(pair, 1, reader)
    there = pair.nodes[0].house.adapters["streamr"]

    def send(party: Party, publisher: Publisher, stream: str, kind: int, text: str) -> None:
        message = publisher.message(stream, json.dumps([text]), NOW, kind=kind)
        party.send([2, 8, "send", message, None])

    send(reads, reader, f"SYSTEM/keyexchange/{writer.address}", 28, "please")
    assert pair.heard(writes).count(b"please") == 1
    send(writes, writer, f"SYSTEM/keyexchange/{reader.address}", 29, "here it is")
    assert pair.heard(reads).count(b"here it is") == 1
    assert pair.heard(writes) == b""
    send(writes, writer, "lobby", 32, "rotated")
    assert pair.heard(reads).count(b"rotated") == 1

    bad, me = pair.nodes[0].membership.signalling.bad, pair.nodes[1].turn.me
    stranger = Publisher(7)
    signed = stranger.message(f"SYSTEM/keyexchange/{writer.address}", '["forged"]', NOW, kind=28)
    signed[1][4] = reader.address
    plain = stranger.message("lobby", {"plain": 1}, NOW)
    for value in (signed, plain, [], [32]):
        pair.nodes[0].transport.on_signal(encode_signal(AdapterSignal(me, "streamr", json.dumps(value).encode())))
    assert pair.nodes[0].membership.signalling.bad == bad + 4
    heard = pair.heard(writes)
    assert (heard.count(b"rotated"), heard.count(b"forged")) == (1, 0)
    own = there.parts.participant.address
    answered = list[object]()
    there.parts.participant._key_responder.answer = lambda *asked: answered.append(asked)
    send(reads, reader, f"SYSTEM/keyexchange/{own[:-1]}0", 28, "for a bridged sender")
    assert answered == [], "the gateway of who asks answers"


def test_a_login_counts_at_all_gateways_and_so_does_its_end(pair: Pair) -> None:
    one, other = (node.house.adapters["streamr"] for node in pair.nodes)
    ann = Publisher(8)
    challenge = one.logins.challenge(ann.address, NOW)
    token = other.logins.log_in(challenge.id, challenge.text, ann.sign(challenge.text), ann.address, NOW).token
    assert one.logins.address(token, NOW) == other.logins.address(token, NOW) == ann.address
    one.logins.log_out(token, "198.51.100.7", NOW)
    pair.settle()
    assert one.logins.address(token, NOW) is None
    assert other.logins.address(token, NOW) is None
    assert other.logouts.data() == one.logouts.data(), "both have it in their files"
    for bad in (b'{"logout": 5}', b'{"logout": "AA==", "network": "", "expires": -1}'):
        with pytest.raises(ValueError):  # noqa: PT011  # any of msgspec
            other.receive_from_member(bad)


KINDS_ELSEWHERE = ["topic_relay", "streamr", "rest", "alice"]


@pytest.mark.parametrize("kind", KINDS_ELSEWHERE)
def test_a_direct_message_goes_to_the_other_gateway_and_is_answered(pair: Pair, kind: str) -> None:
    one, other = pair.nodes
    relay = pair.enter(0, "topic_relay")
    party = pair.enter(1, kind)
    number = min(party.numbers("lobby"))
    if kind == "streamr":
        party.open_inbox("lobby", number)
    one.catch_up()
    relay.tell("lobby", number, "secret 000001.")
    for node in pair.nodes:  # a form of Arbor's is signed, and what is signed is logged
        node.catch_up()
        node.house.settle(synced=True)
    pair.settle()
    party.read()
    assert party.seen == {1: 1}
    other.catch_up()
    if kind == "alice":
        assert party.reply(next(iter(party.held)), "secret 000002.")
    else:
        party.tell("lobby", relay.number, "secret 000002.")
    pair.settle()
    relay.read()
    assert relay.seen == {2: 1}
    assert b"secret" not in b"".join(one.lines() + other.lines())


def direct(pair: Pair, at: int, number: int, text: str = '"hi"', ids: tuple[str, ...] = ()) -> list[int | None]:
    """What a program at that gateway is answered that sends a direct message."""
    bus, answers = pair.nodes[at].house.gateway.bus, list[int | None]()
    message = Message("lobby", Peer(1 << 40, "rest"), "rest", text.encode(), ids=ids)
    bus.send_direct(message, number, answers.append)
    pair.settle()
    return answers


def test_the_answer_says_how_many_connections_got_a_direct_message(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = pair.enter(1, "topic_relay")
    assert direct(pair, 0, relay.number) == [1]
    assert direct(pair, 0, relay.number, ids=("once",)) == [1]
    assert direct(pair, 1, relay.number, ids=("once",)) == [1], "it came another way, and is not delivered again"
    assert pair.heard(relay).count(b'"json":"hi"') == 2
    assert direct(pair, 0, 1 << 41) == [0], "nobody has that number"
    assert direct(pair, 0, relay.number, '"%s"' % ("x" * (1 << 20))) == [0], "it is too long for the topic relay"
    signalling = pair.nodes[1].membership.signalling
    monkeypatch.setattr(signalling, "tell", lambda _signal, _to="": None)
    signalling._verbs.pop(DirectSignal)
    answers = direct(pair, 0, relay.number)
    assert answers == []
    pair.nodes[0].transport.seconds += WAIT
    pair.nodes[0].membership.signalling.beat()
    assert answers == [None], "nobody knows"


def test_a_gateway_that_is_silent_or_leaves_takes_its_peers_along(pair: Pair) -> None:
    relay = pair.enter(1, "topic_relay")
    assert pair.numbers(0) == [relay.number]
    pair.nodes[0].transport.seconds += SILENT + 1
    pair.nodes[0].membership.signalling.beat()
    pair.settle()
    assert pair.numbers(0) == []
    pair.beat()  # it is heard again, and asked who is there
    assert pair.numbers(0) == [relay.number]
    pair.nodes[1].membership.signalling.leave()
    pair.settle()
    assert pair.numbers(0) == []
    pair.beat()


def test_who_lacks_a_change_asks_for_all(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in range(MAX_ROWS + 3):
        pair.nodes[1].house.gateway.bus.presence.announce_present("hall", Peer(count, "streamr", str(count)), 1 << 42)
    pair.settle()
    assert pair.numbers(0, "hall") == [*range(MAX_ROWS + 3)]
    with monkeypatch.context() as deaf:
        deaf.setattr(pair.nodes[0].transport, "on_signal", lambda _data: None)
        first = pair.enter(1, "topic_relay")
        pair.nodes[1].house.gateway.bus.presence.announce_absent("hall", Peer(0, "streamr", "0"))
        pair.settle()
    assert pair.numbers(0) == []
    second = pair.enter(1, "topic_relay")  # the next change shows that one is lacking
    assert sorted(pair.numbers(0)) == [first.number, second.number]
    second.end()
    pair.settle()
    assert pair.numbers(0) == [first.number]
    assert pair.numbers(0, "hall") == [*range(1, MAX_ROWS + 3)]


def test_a_peer_at_both_gateways_is_there_until_it_has_left_both(pair: Pair) -> None:
    ann = Peer(7, "rest", "ann")
    presences = [node.house.gateway.bus.presence for node in pair.nodes]
    relay = pair.enter(0, "topic_relay")
    pair.heard(relay)
    for presence in presences:
        presence.announce_present("lobby", ann, 1 << 42)
        pair.settle()
    assert pair.heard(relay).count(b'"src":7}') == 1, "it is told once"
    presences[0].announce_absent("lobby", ann)
    pair.settle()
    assert pair.numbers(0) == [relay.number, 7]
    presences[1].announce_absent("lobby", ann)
    pair.settle()
    assert pair.numbers(0) == [relay.number]


def test_a_peer_at_two_other_gateways_is_there_until_it_has_left_both() -> None:
    told, due = list[tuple[str, int]](), list[Callable[[], None]]()
    presence = Presence({})
    shared = SharedPresence("me@1", presence, lambda _signal, _to: None, lambda _seconds, call: due.append(call))
    here = [PeerRow("lobby", 7, "rest", "ann", name) for name in ("one", "other")]
    for member, row in zip(("a@1", "b@1"), here, strict=True):
        shared.take_heartbeat(member, 0)
        shared.take_changes(PresenceChanges(member, 1, joined=[row]))
        told.append((str(presence.peers("lobby")[7].name), len(shared.holders("lobby", 7))))
    assert told == [("one", 1), ("other", 2)]
    shared.take_changes(PresenceChanges("b@1", 2, left=[("lobby", 7)]))
    assert (presence.peers("lobby")[7].name, shared.holders("lobby", 7)) == ("one", ["a@1"])
    shared.take_changes(PresenceChanges("b@1", 3, joined=[here[1]]))
    shared.gone("a@1")
    due.pop()()
    assert (presence.peers("lobby")[7].name, shared.holders("lobby", 7)) == ("other", ["b@1"])
    shared.gone("b@1")
    due.pop()()
    assert presence.peers("lobby") == {}
    assert shared.holders("lobby", 7) == []


def test_numbers_do_not_collide_after_a_gateway_was_removed_and_comes_back(pair: Pair, tmp_path: Path) -> None:
    """It comes back under its name with the log of another one, as `trellis cluster remove` asks for."""
    one, other = pair.nodes
    numbers = list[int]()

    def take(node: Node) -> None:
        node.catch_up()
        numbers.extend(node.house.gateway.peers.connection("streamr").number for _ in range(5))

    take(other)
    take(one)
    pair.nodes.remove(other)
    other.stop()
    one.stream.nodes.remove(other)
    one.catch_up()
    one.stop()
    back = copy_of(one.data, tmp_path / "again" / other.data.name)
    one.open()
    pair.nodes.append(Node(one.stream, back))
    for node in pair.nodes * 2:
        take(node)
    assert len(set(numbers)) == len(numbers) == 30
    assert len({node.data.name for node in pair.nodes}) == 2


def test_forged_and_broken_signals_change_nothing(pair: Pair) -> None:
    one, other = pair.nodes
    relay = pair.enter(1, "topic_relay")
    peer = PeerRow("lobby", 9, "streamr")
    member, number = other.turn.me, other.membership.signalling.members()[0].epoch
    before = one.membership.signalling.ignored
    forged: list[Signal] = [
        PresenceChanges("nobody@1", 1, joined=[peer]),  # no member
        PresenceChanges(f"{other.data.name}@{number - 1}", 2, joined=[peer]),  # a former life
        PresenceChanges(member, 1, joined=[peer]),  # was told before
        PresenceSnapshot(member, 9, 1, more=False, rows=[peer]),  # has no beginning
        DirectOutcome(member, 5, 3),  # nobody asked
        DirectSignal(member, 1, relay.number, b'{"kind":"start"}'),
        DirectSignal(member, 1, relay.number, b"\xff"),
    ]
    for signal in forged:
        one.transport.on_signal(encode_signal(signal))
    for data in (
        b'{"signal":"changes","member":"%b","number":2,"joined":[["lobby",-1,"x"]]}' % member.encode(),
        b'{"signal":"changes","member":"%b","number":2,"joined":[%b]}'
        % (member.encode(), b",".join([b'["lobby",5,"x"]'] * (MAX_ROWS + 1))),
        b'{"signal":"snapshot","member":"%b"}' % member.encode(),
        b'{"signal":"direct","member":"%b","id":1,"number":1,"line":5}' % member.encode(),
    ):
        one.transport.on_signal(data)
    pair.settle()
    assert pair.numbers(0) == [relay.number]
    assert one.membership.signalling.ignored == before + 6
    one.transport.on_signal(encode_signal(PresenceChanges(member, 2, joined=[PeerRow("no\nname", 9, "streamr")])))
    assert pair.numbers(0) == [relay.number]
    assert one.membership.signalling.ignored == before + 7


def test_numbers_of_peers_and_ids_of_direct_messages_are_unique(pair: Pair) -> None:
    """Blocks of numbers are facts of one log, and the first fact of an identity wins."""
    numbers, ids = list[int](), set[str]()
    for at in (0, 1) * 4:
        pair.nodes[at].catch_up()
        house = pair.nodes[at].house
        numbers += [house.gateway.peers.connection("streamr").number for _ in range(3)]
        numbers.append(house.gateway.peers.identity("streamr", f"0x{at}{len(numbers)}").number)
        message = Message("lobby", Peer(5, "rest"), "rest", b"1")
        house.gateway.bus.send_direct(message, 1 << 41, lambda _receivers: None)
        ids.add(message.id)
    assert len(set(numbers)) == len(numbers) == 32
    assert len(ids) == 8
    same = set()
    for node in pair.nodes * 2:
        node.catch_up()
        same.add(node.house.gateway.peers.identity("streamr", "0xsame").number)
    assert len(same) == 1
    pair.nodes[0].restart()
    pair.nodes[0].catch_up()
    assert pair.nodes[0].house.gateway.peers.connection("streamr").number not in numbers
