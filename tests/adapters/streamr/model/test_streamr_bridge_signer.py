"""Messages of other protocols become signed stream messages whose keys, chains and forms never change."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr import StreamrAdapter
from adapters.streamr.crypto.keys import DerivedKeys
from adapters.streamr.crypto.signing import verify
from adapters.streamr.model import bridge_signer
from adapters.streamr.wire.message import parse_message
from gateway.core.frames import payload
from gateway.core.jsontext import dumps
from gateway.core.message import LATE_AFTER, Message, Peer

OLD = {"controlLayerVersion": "1", "messageLayerVersion": "31"}


def rows(broker: Any, session: Any) -> list[Any]:
    """The messages that a client of control 2 and message 32 was sent."""
    return [frame[3] for frame in broker.frames(session)]


@pytest.mark.parametrize("content", [{"n": 1}, "héllo \U0001f333", None, [1, [2]], 1.5])
def test_a_foreign_message_arrives_with_a_valid_signature(
    broker: Any, recovered: Callable[..., str], content: Any
) -> None:
    reader, sender = broker.listener("s"), Peer(7, "toy", "somebody")
    message = broker.say("s", content, sender=sender)
    (row,) = rows(broker, reader)
    address = row[1][4]
    assert row[1] == ["s", 0, message.time, 0, address, "toy"]
    assert json.loads(row[7]) == content
    assert recovered(row) == address
    assert verify(parse_message(dumps(row)))
    assert address == broker.adapter.bridge_signer.address(message)


def test_an_identity_has_one_address_on_every_protocol(make_broker: Callable[..., Any]) -> None:
    """The key belongs to the durable identity, not to the way by which a message came; also after a restart."""
    broker = make_broker()
    for protocol in ("toy", "rest", "topic_relay"):
        message = Message("s", Peer(7, "rest", "alice"), protocol, b"1")
        broker.bus.publish(message)
    broker.core.settle()
    second = make_broker()
    rows = [frame[3] for frame in second.ask(second.open(), [2, 11, "r", "s", 0, 9, None]) if frame[1] == 1]
    assert [row[1][5] for row in rows] == ["toy", "rest", "topic_relay"]
    [address] = {row[1][4] for row in rows}
    assert address == broker.adapter.bridge_signer.keys.of("rest", "alice", 7).address
    assert second.adapter.parts.trust.is_publisher("s", address)
    assert second.adapter.parts.trust.account_of("s", address).address == address


def test_several_senders_in_one_run_have_each_their_chain(broker: Any) -> None:
    def refs(channel: str, *, together: bool) -> list[Any]:
        said = [Message(channel, Peer(number, "toy"), "toy", b"1") for number in (7, 8, 7, 9, 8)]
        for run in [said] if together else [[each] for each in said]:
            broker.bus.take(run, [None] * len(run))
        return [message.refs for message in said]

    assert refs("s", together=True) == refs("t", together=False)


@pytest.mark.parametrize(("stream", "content"), [("s", "héllo \U0001f333"), ("märkte/\U0001f333", {"n": 1})])
def test_a_client_before_4_0_gets_the_signature_it_can_check(
    broker: Any, recovered: Callable[..., str], stream: str, content: Any
) -> None:
    """They count the characters that were signed in UTF-16 units, those of the stream's name among them."""
    new, old = broker.listener(stream), broker.listener(stream, **OLD)
    broker.say(stream, content)
    (row,), (frame,) = rows(broker, new), broker.frames(old)
    older = [32, frame[2][1], frame[2][2], 27, 0, 0, None, frame[2][5], None, 2, frame[2][7]]
    text = "".join(map(str, row[1])) + row[7]
    assert older[:10] == row[:10]
    assert older[10] != row[10]
    assert recovered(older, len(text.encode("utf-16-le")) // 2) == row[1][4]


def test_a_chain_has_no_gap_and_time_never_runs_back(broker: Any) -> None:
    reader, sender, now = broker.listener("s"), Peer(7, "toy", "somebody"), broker.clock()
    for timestamp in (now - 5, now - 9, now - 5, now + 60_000, now - 2):
        broker.say("s", timestamp, sender=sender, timestamp=timestamp)
    found = [(row[1][2:4], row[2]) for row in rows(broker, reader)]
    assert found == [
        ([now - 5, 0], None),
        ([now - 5, 1], [now - 5, 0]),
        ([now - 5, 2], [now - 5, 1]),
        ([now, 0], [now - 5, 2]),
        ([now, 1], [now, 0]),
    ]


def test_chains_continue_after_a_restart(make_broker: Callable[..., Any]) -> None:
    first = make_broker()
    sender = first.bus.peers.identity("toy", "somebody")
    for number in range(3):
        last = first.say("s#1" if number == 0 else "s", number, sender=sender)
    first.core.settle()
    second = make_broker()
    second.clock.now = first.clock.now - 1_000  # a clock that was set back
    reader = second.listener("s")
    after = second.say("s", "after", sender=sender)
    (row,) = rows(second, reader)
    assert last.refs is not None
    assert row[2] == list(last.refs["streamr"][:2])
    assert tuple(row[1][2:4]) > tuple(row[2])
    assert row[1][4] == second.adapter.bridge_signer.address(last)
    assert after.refs["streamr"][2:] == last.refs["streamr"][:2]


def test_a_bridged_form_never_changes(make_broker: Callable[..., Any]) -> None:
    first = make_broker()
    reader = first.listener("s")
    peer = first.toy().peer
    for sender in (peer, Peer(70, "toy", "somebody"), Peer(71, "rest", "an API key")):
        first.say("s", {"from": sender.number}, sender=sender)
    live = reader.data_to_send()
    first.core.settle()
    second = make_broker()
    assert [second.adapter.form(message, "streamr/2/32") for message in second.core.index.history("s")] == live


def test_each_sender_has_a_distinct_key() -> None:
    keys = DerivedKeys(b"s" * 32, "gw")
    others = [
        keys.of("toy", "a", 1),
        keys.of("toy", "b", 1),
        keys.of("sprout", "a", 1),
        keys.of("toy", None, 1),
        keys.of("toy", None, 2),
        DerivedKeys(b"t" * 32, "gw").of("toy", "a", 1),
        DerivedKeys(b"s" * 32, "other").of("toy", None, 1),
    ]
    assert len({signer.address for signer in others}) == len(others)
    assert keys.of("toy", "a", 1) == keys.of("toy", "a", 2), "an identity is the same on every connection"
    assert DerivedKeys(b"s" * 32, "gw").of("toy", "a", 1).address == others[0].address
    assert others[0].address == "0x1d44cf9c403ec3325c0b8e81ac10e05cbc56791a", "what was shown once is for ever"


def test_late_messages_form_a_chain_without_links(broker: Any) -> None:
    reader, sender, now = broker.listener("s"), Peer(7, "toy", "somebody"), broker.clock()
    late = now - LATE_AFTER - 1
    messages = [
        broker.say("s", number, sender=sender, timestamp=timestamp, late=timestamp == late)
        for number, timestamp in enumerate([now, late, late, now])
    ]
    assert [row[2] for row in rows(broker, reader)] == [None, [now, 0]], "late ones are not shown live"
    forms = [json.loads(payload(broker.adapter.form(message, "streamr/2/32")))[3] for message in messages[1:3]]
    assert [(form[1][2:4], form[1][5], form[2]) for form in forms] == [
        ([late, message.seq], "toy:late", None) for message in messages[1:3]
    ]


def test_messages_that_streamr_cannot_carry_are_undelivered(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(streams={"wide": 2})
    assert broker.say("wide#1", 1).undelivered == ()
    assert broker.say("wide#2", 1).undelivered == ("streamr",)
    assert broker.say("SYSTEM/keyexchange/0x" + "a" * 40, 1).undelivered == ("streamr",)
    assert broker.say("s", "x" * 1_000_000).undelivered == ()
    assert broker.say("s", '"' * 300_000).undelivered == ("streamr",)
    assert broker.say("s", "x" * 1_100_000).undelivered == ("streamr",)


def test_a_message_from_a_time_without_streamr_has_no_form(broker: Any) -> None:
    message = Message("s", Peer(1, "toy"), "toy", b"1", seq=1, time=broker.clock())
    assert broker.adapter.form(message, "streamr/2/32").data is None


def test_a_sender_is_a_known_publisher_before_its_first_delivery(
    make_broker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(grants={"streamr:anonymous": ("subscribe:*",)})
    sender = Peer(7, "toy", "somebody")
    message = Message("s", sender, "toy", b"1")
    address = broker.adapter.bridge_signer.address(message)
    assert not broker.adapter.parts.trust.is_publisher("s", address)
    believed: list[bool] = []
    reader = broker.listener("s")
    form = broker.adapter.parts.forms.form

    def watch(message: Message, key: str) -> Any:
        believed.append(broker.adapter.parts.trust.is_publisher("s", address))
        return form(message, key)

    monkeypatch.setattr(broker.adapter.parts.forms, "form", watch)
    broker.bus.publish(message)
    assert believed == [True]
    assert len(broker.frames(reader)) == 1
    broker.core.settle()
    broker.adapter.bridge_signer._heads.clear()
    broker.adapter.bridge_signer._accounts.clear()
    assert broker.adapter.parts.trust.is_publisher("s", address), "the index knows"
    assert not broker.adapter.parts.trust.is_publisher("t", address)


def test_the_heads_in_memory_are_bounded(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_signer, "MAX_HEADS", 10)
    sender = broker.bus.peers.identity("toy", "somebody")
    for number in range(30):
        broker.say(f"s{number}", number, sender=sender)
    assert len(broker.adapter.bridge_signer._heads) == 30, "none is forgotten before it is surely in the index"
    broker.core.settle()
    broker.clock.now += bridge_signer.INDEXED_AFTER + 1
    broker.say("s30", 30, sender=sender)
    assert len(broker.adapter.bridge_signer._heads) == 10
    again = broker.say("s0", "again", sender=sender)
    assert again.refs["streamr"][2] is not None


def test_new_senders_are_not_looked_for_in_the_index(
    make_broker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that came after the start has no chain there: on new channels each message is its first."""
    old, looked = make_broker(), list[str]()
    sender = old.bus.peers.identity("toy", "somebody")
    old.say("s0", 0, sender=sender)
    old.core.settle()
    broker = make_broker()
    history = broker.core.index.history

    def counted(channel: str, **how: Any) -> Any:
        looked.append(channel)
        return history(channel, **how)

    monkeypatch.setattr(broker.core.index, "history", counted)
    new = broker.bus.peers.connection("toy")
    for number in range(20):
        broker.say(f"s{number}", number, sender=new)
    assert looked == []
    known = broker.bus.peers.identity("toy", "somebody")
    assert broker.say("s0", 1, sender=known).refs["streamr"][2] is not None
    assert looked == ["s0"]


def test_publishers_are_forgotten_with_their_last_kept_message(broker: Any, alice: Any) -> None:
    """Their rows in the index, as well: it would grow with everybody who ever said anything."""
    one, two = Peer(7, "toy", "one"), Peer(8, "toy", "two")
    index, told = broker.core.index, broker.adapter.publishers

    def retire(before: Message) -> None:
        broker.core.settle()
        index.submit(lambda: index.prune(before.seq))
        broker.core.settle()

    broker.ask(broker.open(), [2, 8, "r", alice.message("s", 1, broker.clock()), None])
    former = [broker.say("s", 1, sender=sender) for sender in (one, two)]
    addresses = [broker.adapter.bridge_signer.address(message) for message in former]
    kept = broker.say("s", 2, sender=two)
    retire(former[0])
    assert told.addresses("s", 9) == sorted(addresses), "nothing is kept of Alice"
    retire(kept)
    assert told.addresses("s", 9) == [addresses[1]]
    assert [told.foreign_sender(address) for address in addresses] == [None, ("toy", "two", 8)]
    assert [told.has_published("s", address) for address in addresses] == [False, True]
    again = broker.say("s", 3, sender=one)
    retire(again)
    assert told.addresses("s", 9) == [addresses[0]], "who comes back is put in anew"
    assert told.foreign_sender(addresses[0]) == ("toy", "one", 7)


def test_a_message_that_streamr_cannot_carry_hides_no_publisher(broker: Any) -> None:
    """Both may be in one batch: the rows would then depend on where a batch ends."""
    sender = Peer(7, "toy", "one")
    too_long = Message("s", sender, "toy", b"1", seq=1, undelivered=("streamr",))
    said = Message("s", sender, "toy", b"2", seq=2, refs={"streamr": [2, 0]})
    found = [row.table for row in broker.adapter.publishers.rows([too_long, said])]
    assert found == ["streamr_publishers", "streamr_authors"]


def test_every_lookup_uses_an_index(broker: Any) -> None:
    from adapters.streamr.model import publishers

    for sql, values in ((publishers.SELECT_HAS_PUBLISHED, ("s", "0x")), (publishers.SELECT_PUBLISHERS, ("s", 10))):
        plan = broker.core.index.rows(f"EXPLAIN QUERY PLAN {sql}", values)
        details = " ".join(row[3] for row in plan)
        assert "SEARCH streamr_publishers USING" in details
        assert "TEMP B-TREE" not in details
    plan = broker.core.index.rows(f"EXPLAIN QUERY PLAN {publishers.DELETE_UNUSED[0]}")
    assert any("SEARCH records USING COVERING INDEX records_sender" in row[3] for row in plan)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=40))
def test_channel_names_and_addresses_convert_both_ways(broker: Any, name: str) -> None:
    adapter: StreamrAdapter = broker.adapter
    address = adapter.address(name, lambda _address: False)
    if address is None:
        assert name.startswith("SYSTEM/keyexchange/")
        return
    shown = adapter.describe(address)
    assert adapter.channel(address) == name
    assert name in adapter.streams.channels_of(shown["stream"]) or shown["partition"] > 0


@pytest.mark.parametrize("late_first", [True, False])
def test_lateness_is_decided_for_each_message_of_a_run(broker: Any, late_first: bool) -> None:
    """One that was just in time when it came is late when it is taken; the others of its run are not."""
    moment = broker.clock()
    sender = Peer(7, "toy", "somebody")
    ages = (LATE_AFTER + 1, 0, 0) if late_first else (0, LATE_AFTER + 1, 0)
    run = [Message("s", sender, "toy", b"%d" % n, timestamp=moment - age) for n, age in enumerate(ages)]
    broker.bus.publish_run(run)
    after = broker.say("s", 3, sender=sender)
    late = run[0 if late_first else 1]
    live = [message for message in (*run, after) if message is not late]
    assert late.refs["streamr"] == [late.timestamp, late.seq]
    chain = [message.refs["streamr"] for message in live]
    assert [link[:2] for link in chain] == [[moment, 0], [moment, 1], [moment, 2]]
    assert [link[2:] for link in chain] == [[], [moment, 0], [moment, 1]], "each names the one before it"


def test_key_exchange_streams_map_to_no_channel(broker: Any) -> None:
    assert broker.adapter.channel("SYSTEM/keyexchange/0x" + "a" * 40) is None
    message = Message("a#7", Peer(1, "toy"), "toy", b"1", time=1)
    broker.adapter.add_refs([message])
    assert (message.undelivered, message.refs) == (("streamr",), {})
