"""Peers at two gateways of a cluster see each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.forest.node_rules import EXPIRATION, expiration
from adapters.sprout.wire import base64url
from gateway import runtime
from gateway.cluster.presence import SharedPresence
from gateway.cluster.roster import MEMBER_SILENCE_SECONDS
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
from tests.gateway.cluster.conftest import Pair
from tests.properties.cluster import ClusterInstance, copy_of
from tests.properties.in_process_gateway import NOW
from tests.properties.parties import BASE64, SproutParty


def test_a_peer_is_present_at_the_other_gateway_until_it_leaves(pair: Pair) -> None:
    relay = pair.enter(0, "topic_relay")
    pair.heard(relay)
    other = pair.enter(1, "streamr")
    assert relay.number != other.number
    assert pair.numbers(0) == [relay.number, other.number]
    assert sorted(pair.numbers(1)) == sorted([relay.number, other.number])
    assert b'{"type":7,"topic":"lobby","src":%d}' % other.number in pair.heard(relay)
    other.disconnect()
    pair.settle()
    assert pair.numbers(0) == [relay.number]
    relay.disconnect()
    pair.settle()
    assert pair.numbers(1) == []


def test_a_peer_at_another_gateway_is_announced_on_arbor_by_a_signed_node(pair: Pair) -> None:
    alice = pair.enter(0, "alice")
    pair.nodes[0].instance.adapters["sprout"].parts.presence._to_all = True
    relay = pair.enter(1, "topic_relay")
    said = b""
    for _ in range(6):  # it signs an identity and a reply, each once the one before is on disk
        runtime.clock.now += 1_000  # type: ignore[attr-defined]
        for node in pair.nodes:
            node.catch_up()
            node.instance.gateway.tick()
            node.instance.settle(synced=True)
        said += pair.heard(alice)
    nodes = [base64url.decode(text) for text in BASE64.findall(said)]
    assert any(b"activity" in node for node in nodes), said
    assert relay.number in pair.numbers(0)


def announce(party: SproutParty, said: bytes) -> bytes:
    """Announce presence in the lobby as Arbor's clients do; the node."""
    community = party.instance.gateway.channels.address("sprout", "lobby")
    assert community is not None
    pairs = {"activity/1": said, EXPIRATION: expiration(runtime.clock() + 600_000), "invisible/1": b"true"}
    node = party._reply(forest.ReplyPosition(community, 1, community, forest.NULL_ID), "", pairs)
    party.announce(node)
    return node


def test_presence_of_arbor_authors_is_shown_at_other_gateways(pair: Pair) -> None:
    one, other = pair.nodes
    alice = pair.enter(0, "alice")
    first = announce(alice, b"0")  # its author is not in the log of the other gateway yet
    bob = pair.enter(1, "bob")
    announce(bob, b"0")
    for _ in range(2):
        for node in pair.nodes:
            node.catch_up()
            node.instance.settle(synced=True)
            node.instance.gateway.tick()
    assert base64url.encode(first) in pair.heard(bob), "a newcomer is shown who is there"
    last = announce(alice, b"1")
    assert pair.heard(bob).count(base64url.encode(last)) == 1
    assert base64url.encode(last) not in pair.heard(alice)
    sprout = other.instance.adapters["sprout"]
    bad = one.membership.signalling.bad
    for words in (b"", b"no node", b"x" * 5_000, sprout.parts.nodes.entry_line(None) or b"a b"):
        one.transport.on_signal(encode_signal(AdapterSignal(other.turn.me, "sprout", words)))
    forged = b"%b %b" % (forest.node_id(last).encode(), base64url.encode(first))
    one.transport.on_signal(encode_signal(AdapterSignal(other.turn.me, "sprout", forged)))
    one.transport.on_signal(encode_signal(AdapterSignal(other.turn.me, "rest", b"")))
    one.transport.on_signal(encode_signal(AdapterSignal(other.turn.me, "topic_relay", b"")))
    assert one.membership.signalling.bad == bad + 7


def test_a_login_counts_at_all_gateways_and_so_does_its_end(pair: Pair) -> None:
    one, other = (node.instance.adapters["streamr"] for node in pair.nodes)
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


def test_a_gateway_that_is_silent_or_leaves_takes_its_peers_along(pair: Pair) -> None:
    relay = pair.enter(1, "topic_relay")
    assert pair.numbers(0) == [relay.number]
    pair.nodes[0].transport.seconds += MEMBER_SILENCE_SECONDS + 1
    pair.nodes[0].membership.signalling.beat()
    pair.settle()
    assert pair.numbers(0) == []
    pair.beat()  # it is heard again, and asked who is there
    assert pair.numbers(0) == [relay.number]
    pair.nodes[1].membership.signalling.leave()
    pair.settle()
    assert pair.numbers(0) == []
    pair.beat()


def test_a_member_that_lacks_a_change_asks_for_all(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in range(MAX_ROWS + 3):
        pair.nodes[1].instance.gateway.bus.presence.announce_present(
            "hall", Peer(count, "streamr", str(count)), 1 << 42
        )
    pair.settle()
    assert pair.numbers(0, "hall") == [*range(MAX_ROWS + 3)]
    with monkeypatch.context() as deaf:
        deaf.setattr(pair.nodes[0].transport, "on_signal", lambda _data: None)
        first = pair.enter(1, "topic_relay")
        pair.nodes[1].instance.gateway.bus.presence.announce_absent("hall", Peer(0, "streamr", "0"))
        pair.settle()
    assert pair.numbers(0) == []
    second = pair.enter(1, "topic_relay")  # the next change shows that one is lacking
    assert sorted(pair.numbers(0)) == [first.number, second.number]
    second.disconnect()
    pair.settle()
    assert pair.numbers(0) == [first.number]
    assert pair.numbers(0, "hall") == [*range(1, MAX_ROWS + 3)]


def test_a_peer_at_both_gateways_is_present_until_it_leaves_both(pair: Pair) -> None:
    ann = Peer(7, "rest", "ann")
    presences = [node.instance.gateway.bus.presence for node in pair.nodes]
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


def test_a_peer_at_two_other_gateways_is_present_until_it_leaves_both() -> None:
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


def test_numbers_do_not_collide_when_a_removed_gateway_returns(pair: Pair, tmp_path: Path) -> None:
    """It comes back under its name with the log of another one, as `trellis cluster remove` asks for."""
    one, other = pair.nodes
    numbers = list[int]()

    def take(node: ClusterInstance) -> None:
        node.catch_up()
        numbers.extend(node.instance.gateway.peers.connection("streamr").number for _ in range(5))

    take(other)
    take(one)
    pair.nodes.remove(other)
    other.stop()
    one.stream.nodes.remove(other)
    one.catch_up()
    one.stop()
    back = copy_of(one.data, tmp_path / "again" / other.data.name)
    one.open()
    pair.nodes.append(ClusterInstance(one.stream, back))
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
        instance = pair.nodes[at].instance
        numbers += [instance.gateway.peers.connection("streamr").number for _ in range(3)]
        numbers.append(instance.gateway.peers.identity("streamr", f"0x{at}{len(numbers)}").number)
        message = Message("lobby", Peer(5, "rest"), "rest", b"1")
        instance.gateway.bus.send_direct(message, 1 << 41, lambda _receivers: None)
        ids.add(message.id)
    assert len(set(numbers)) == len(numbers) == 32
    assert len(ids) == 8
    same = set()
    for node in pair.nodes * 2:
        node.catch_up()
        same.add(node.instance.gateway.peers.identity("streamr", "0xsame").number)
    assert len(same) == 1
    pair.nodes[0].restart()
    pair.nodes[0].catch_up()
    assert pair.nodes[0].instance.gateway.peers.connection("streamr").number not in numbers
