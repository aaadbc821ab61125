"""All workloads. A name with `-free` has the other rhythm: a publisher sends again once anybody has its message.

The goals are those of docs/performance.md: ratios to the reference, or items a second.
"""

from __future__ import annotations

from dataclasses import replace

from .bridge_load import Bridge
from .generator import Group, Traffic
from .mixed_load import Mixed
from .rest_load import BulkLines
from .sprout_loads import Announce, Ask, AskPlanted, Bootstrap, FanOut
from .streamr_load import SignedMessages
from .workload import Workload

RELAY, STREAMR, ARBOR = "Topic relay", "Streamr", "Arbor"
REST, ACROSS, LATENCY, MIXED = "REST", "Across protocols", "Latency at a set rate", "Mixed traffic"
PEERS = ("node", "nats")
BROKERS = ("broker", "broker-once")
GO = ("go",)
GAP_US = 20  # between two messages of a free publisher: without it a window that came back at once goes out at once
STREAM = "streamr"
LEAVES, NEWEST = b"leaves_of %d ID 10\n", b"list %d 2 10\n"


def fan(listeners: int, window: int, service: str = "relay") -> Traffic:
    """Return one publisher's messages to many listeners."""
    return Traffic((Group("publisher", 1, service), Group("listener", listeners, service)), window=window)


def mesh(service: str = "relay") -> Traffic:
    """Return ten peers on each of ten topics, who all listen, and all have one message in flight."""
    return Traffic((Group("member", 10, service),), topics=10)


def pairs(count: int) -> Traffic:
    """Return pairs of peers; each answers the other one's direct message."""
    return Traffic((Group("pair", 2, "relay"),), topics=count)


def signed(listeners: int, count: int) -> Traffic:
    """Return signed Streamr messages, at most *count* in a round."""
    return replace(fan(listeners, 64, "streamr"), prepared=SignedMessages(count))


def across(*services: str) -> Traffic:
    """Return a topic relay publisher's messages to 33 listeners of each service."""
    listeners = (Group("listener", 33, service) for service in services)
    return Traffic((Group("publisher", 1, "relay"), *listeners), window=16)


def events(listeners: int, window: int) -> Traffic:
    """Return a topic relay publisher's messages to listeners of server-sent events."""
    return Traffic((Group("publisher", 1, "relay"), Group("listener", listeners, "events")), window=window)


def at_rate(traffic: Traffic, rate: float) -> Traffic:
    """Return *traffic* with *rate* messages a second, whatever comes back."""
    return replace(traffic, rhythm="schedule", rate=rate)


def in_both_rhythms(workloads: dict[str, Workload]) -> dict[str, Workload]:
    """Return *workloads*, each followed by the same in the other rhythm."""
    found = {}
    for name, each in workloads.items():
        assert isinstance(each.load, Traffic)
        found[name] = replace(each, title=f"{each.title}, lockstep")
        free = replace(each.load, rhythm="first", gap_us=GAP_US)
        found[f"{name}-free"] = replace(each, load=free, title=f"{each.title}, free")
    return found


# fmt: off
WORKLOADS: dict[str, Workload] = {
    **in_both_rhythms({
        "fan10":     Workload(RELAY, "1 to 10, 16 in flight",    fan(10, 16),   PEERS, must=2.5),
        "fan100":    Workload(RELAY, "1 to 100, 16 in flight",   fan(100, 16),  PEERS, must=10.0),
        "fan1000":   Workload(RELAY, "1 to 1000, 4 in flight",   fan(1000, 4),  PEERS, must=3.6),
        "fan10w1":   Workload(RELAY, "1 to 10, 1 in flight",     fan(10, 1),    PEERS, must=1.0),
        "fan100w1":  Workload(RELAY, "1 to 100, 1 in flight",    fan(100, 1),   PEERS, must=1.3),
        "mesh":      Workload(RELAY, "100 peers on 10 topics, 1 in flight each", mesh(), PEERS, must=4.0),
    }),
    "pair":          Workload(RELAY, "direct messages, 1 pair",   pairs(1),  PEERS[:1], must=1.1),
    "pairs":         Workload(RELAY, "direct messages, 50 pairs", pairs(50), PEERS[:1], must=1.7),

    **in_both_rhythms({
        "unsigned1":   Workload(STREAMR, "unsigned, 1 to 1, 64 in flight", fan(1, 64, STREAM), BROKERS, must=1.5),
        "unsigned100": Workload(STREAMR, "unsigned, 1 to 100, 64 in flight", fan(100, 64, STREAM), BROKERS, must=5.0),
        "signed1":     Workload(STREAMR, "signed, 1 to 1, 64 in flight", signed(1, 30_000), BROKERS, must=2.5),
        "signed100":   Workload(STREAMR, "signed, 1 to 100, 64 in flight", signed(100, 12_000), BROKERS, must=1.0),
    }),
    "signed1-batch": Workload(STREAMR, "signed, 1 to 1, 64 in flight, verified together", signed(1, 30_000),
                              BROKERS[:1], must=2.5, server="trellis-batch"),
    "gather": Workload(STREAMR, "unsigned, 100 publishers to 1, 1 in flight each", Traffic(
        (Group("publisher", 100, "streamr"), Group("listener", 1, "streamr"))), BROKERS, must=2.0),
    "streams": Workload(STREAMR, "unsigned, 100 peers on 10 streams, 1 in flight each",
                        mesh("streamr"), BROKERS, must=2.0),

    "announce":   Workload(ARBOR, "announce, 1 node each", Announce(3_000), GO, must=8.0, unit="nodes", fresh=True),
    "announce20": Workload(ARBOR, "announce, 20 each", Announce(3_000, 20), GO, must=8.0, unit="nodes", fresh=True),
    "arbor50":    Workload(ARBOR, "announce, to 50", FanOut(500, 50), GO, must=10.0, fresh=True),
    "leaves":     Workload(ARBOR, "leaves_of 10 of 5,000", Ask(200, LEAVES, 5_000), GO,
                           must=30.0, unit="answers", fresh=True),
    "list":       Workload(ARBOR, "list 10 of 5,000", Ask(100, NEWEST, 5_000), GO,
                           must=30.0, unit="answers", fresh=True),
    "leaves500k": Workload(ARBOR, "leaves_of 10 of 500,000", AskPlanted(4_000, LEAVES), ("trellis-50", "trellis-5k"),
                           must=0.9, unit="answers", server="trellis-500k"),
    "list500k":   Workload(ARBOR, "list 10 of 500,000", AskPlanted(4_000, NEWEST), ("trellis-50", "trellis-5k"),
                           must=0.9, unit="answers", server="trellis-500k"),
    "bootstrap":  Workload(ARBOR, "bootstrap of 10,000 nodes", Bootstrap(10_000), unit="nodes", fresh=True),
    "bridge":     Workload(ARBOR, "signed for Arbor, to 1", Bridge(4_000, 1), must_rate=2_500),
    "bridge50":   Workload(ARBOR, "signed for Arbor, to 50", Bridge(4_000, 50)),

    "publish64": Workload(REST, "a message in a request, 64 in flight", Traffic(
        (Group("publisher", 64, "rest"),), rhythm="answer"), must_rate=20_000, unit="messages"),
    "publish1":  Workload(REST, "a message in a request, 1 in flight", Traffic(
        (Group("publisher", 1, "rest"),), rhythm="answer"), unit="messages"),
    "lines":     Workload(REST, "50,000 messages in a request", BulkLines(50_000), must_rate=100_000, unit="messages"),
    "events100": Workload(REST, "events to 100 (beside WebSocket)", events(100, 16),
                          beside=fan(100, 16), beside_title="websocket", must=0.5),
    "events1000": Workload(REST, "events to 1000 (beside WebSocket)", events(1000, 4),
                           beside=fan(1000, 4), beside_title="websocket", must=0.5),

    "across-rest": Workload(ACROSS, "topic relay to 33 + 33 Streamr + 33 events",
                            across("relay", "streamr", "events"),
                            beside=fan(99, 16), beside_title="one protocol", must=0.8),
    "across-arbor": Workload(ACROSS, "topic relay to 33 + 33 Streamr + 33 Arbor",
                             across("relay", "streamr", "sprout"),
                             beside=fan(99, 16), beside_title="one protocol", must=0.8),

    "rate-fan100":   Workload(LATENCY, "1 to 100, 500 messages a second",       at_rate(fan(100, 1), 500), PEERS),
    "rate-mesh":     Workload(LATENCY, "100 peers on 10 topics, 2,000 a second",  at_rate(mesh(), 2_000),      PEERS),
    "rate-streamr":  Workload(LATENCY, "Streamr, unsigned, 1 to 100, 200 a second",
                              at_rate(fan(100, 1, STREAM), 200), BROKERS),
    "rate-events":   Workload(LATENCY, "events to 100, 200 a second", at_rate(events(100, 1), 200),
                              beside=at_rate(fan(100, 1), 200), beside_title="websocket"),
    "rate-publish":  Workload(LATENCY, "REST, 64 connections, 500 requests a second",
                              at_rate(Traffic((Group("publisher", 64, "rest"),)), 500), unit="messages"),

    "mixed": Workload(MIXED, "bursts, lone messages, history reads; all protocols", Mixed(8), unit="requests"),
}
# fmt: on
