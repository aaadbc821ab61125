"""The table of attacks: what each does, and the bounds that have to hold meanwhile."""

from __future__ import annotations

from typing import Final

from . import (
    brokers,
    floods,
    garbage,
    heavy_keys,
    hoards,
    relays,
    requests,
    rights,
    searches,
    silent,
    sprout_peers,
    subscribers,
    tls_records,
    unread,
)
from .attack import Attack
from .client_frames import RELAY, STREAMR

DROP = 15.0  # seconds: `limits.handshake_seconds`, and some more for a busy machine
SILENT = 17.0  # seconds, so that connections are dropped while the attack goes on
UNREAD = 6.0  # seconds until more was published than may wait for a link: publishers are paced
BUDGET = 400.0  # MiB that unfinished messages of all peers may take together: a quarter of a small machine
KEYS, TLS, TRIO, FEW = (frozenset({need}) for need in ("keys", "tls", "trio", "few"))
LINK, BROKER, PEER = (frozenset({need}) for need in ("link", "broker", "peer"))  # that the gateway dials

# fmt: off
# Longest waits and medians are the same for all (`AttackOutcome`); memory is in MiB.
ATTACKS: Final = (
    Attack("nothing", "nobody attacks: to compare with", silent.nothing, brief=False),
    Attack("counting", "another program uses a processor, and leaves the gateway alone: to compare with", silent.count,
           brief=False),

    Attack("silent", "1,000 connections to HTTP and Sprout that send nothing, or half a head",
           silent.wait("http silent", "http half head", "websocket half head", "sprout silent"),
           dropped=DROP, seconds=SILENT),
    Attack("silent-http", "1,000 HTTP connections without a word", silent.wait("http silent"),
           dropped=DROP, seconds=SILENT, brief=False),
    Attack("half-heads", "1,000 half heads of HTTP requests", silent.wait("http half head"),
           dropped=DROP, seconds=SILENT, brief=False),
    Attack("half-upgrades", "1,000 half WebSocket handshakes", silent.wait("websocket half head"),
           dropped=DROP, seconds=SILENT, brief=False),
    Attack("silent-sprout", "1,000 Sprout connections without a word", silent.wait("sprout silent"),
           dropped=DROP, seconds=SILENT, brief=False),
    Attack("half-lines", "1,000 Sprout connections with half a line", silent.wait("sprout half line"), brief=False),
    Attack("drip", "250 heads of requests, a byte a second", silent.drip, dropped=DROP, seconds=SILENT, brief=False),
    Attack("tls", "1,000 TLS connections on every port, silent, in half a handshake, or left after its first half",
           silent.wait("https silent", "https half handshake", "https handshake left alone",
                       "sprout tls silent", "sprout tls half handshake", "sprout tls handshake left alone"),
           dropped=DROP, seconds=SILENT, needs=TLS, memory=96),

    Attack("tls-records", "broadcasts of 30 kB in TLS records of one byte", tls_records.records, needs=TLS,
           brief=False),

    Attack("heads", "headers of 1 MB", hoards.heads, memory=16, dropped=DROP, answers=("http 4",)),
    Attack("fragments", "messages in fragments of one byte", hoards.fragments, memory=16),
    Attack("pings", "pings at full speed, the pongs unread", unread.pings, memory=16),
    Attack("bomb", "a compression bomb of 290 kB", hoards.bomb, memory=16, dropped=5),
    Attack("bomb-trio", "the same with `--loop trio`", hoards.bomb, memory=16, needs=TRIO),

    Attack("unread-relay", "a relay listener that stops reading, while 60 kB are said again and again", unread.relay),
    Attack("unread-streamr", "the same with Streamr", unread.streamr),
    Attack("unread-ws", "the same on /v1/ws", unread.ws),
    Attack("unread-sprout", "the same with Sprout", unread.sprout, memory=128),
    Attack("unread-events", "the same with event streams", unread.events),
    Attack("unread-history", "54 connections ask for pages of 4 MiB, pipelined, and do not read", unread.history),
    Attack("unread-data", "54 ask the data API for all there is, and do not read", unread.data),
    Attack("unread-resends", "27 Streamr clients ask for resends and do not read", unread.resends),
    Attack("unread-answers", "27 Arbor clients ask for all nodes and do not read", unread.answers),
    Attack("slowly", "one of each reads 1 kB a second", unread.slowly),

    Attack("brackets-relay", "1 MB of brackets on one relay connection, again and again",
           garbage.single(RELAY, "brackets")),
    Attack("brackets-streamr", "the same with Streamr", garbage.single(STREAMR, "brackets")),
    Attack("arrays-streamr", "1 MB of empty arrays, with Streamr", garbage.single(STREAMR, "empty arrays")),
    Attack("garbage-relay", "22 kinds of what is no packet, each on a connection, again and again",
           garbage.RELAY_GARBAGE, answers=("error InvalidJSON", "error MessageIsTooLong")),
    Attack("garbage-streamr", "the same with Streamr", garbage.STREAMR_GARBAGE),
    Attack("garbage-ws", "the same on /v1/ws", garbage.WS_GARBAGE),
    Attack("garbage-tracker", "the same with the tracker", garbage.TRACKER_GARBAGE),
    Attack("garbage-network", "the same with the network layer", garbage.NETWORK_GARBAGE),
    Attack("garbage-sprout", "13 kinds of lines that are no request: counts of -1 and 10^11, too long, noise",
           garbage.lines, answers=("sprout 1",)),
    Attack("garbage-rest", "15 kinds of bodies that are no JSON, to both publishing routes", garbage.bodies,
           memory=96, answers=("http 400",)),  # 30 bodies at once, each up to a MiB, and again while it is checked

    Attack("flood-relay", "broadcasts at full speed, from one address", floods.relay),
    Attack("members-relay", "broadcasts of 12,000 members, in every order", floods.members,
           answers=("error InvalidParams",)),
    Attack("flood-streamr", "unsigned messages at full speed", floods.streamr),
    Attack("flood-ws", "everything that can be asked on /v1/ws, at full speed", floods.ws),
    Attack("flood-sprout", "good announces at full speed", floods.sprout),
    Attack("flood-rest", "POST at full speed", floods.rest),
    Attack("flood-questions", "everything that REST can be asked, all the time", floods.asking),
    Attack("forged-streamr", "forged signatures at full speed", floods.forged_streamr),
    Attack("forged-sprout", "forged nodes at full speed", floods.forged_sprout, answers=("sprout 1",)),
    Attack("sync-ranges", "comparisons of 26,000 empty ranges in the middle of a channel of 4,000 messages",
           searches.compared, answers=("http 200",), brief=False),
    Attack("sync-told", "the answer to a comparison that the other gateway has nothing, again and again",
           searches.told, answers=("http 200",), brief=False),
    Attack("help-search", "searches of the documentation for 100 words", searches.helped, answers=("http 200",),
           brief=False),
    Attack("keys-sprout", "identities whose keys take as long to check as any, forged, at full speed",
           heavy_keys.announced, answers=("sprout 1",), brief=False),
    Attack("sync-keys", "messages handed over, each with 64 of these identities", heavy_keys.handed_over, brief=False),
    Attack("logins", "one login after another", floods.logins),
    Attack("challenges", "login challenges at full speed", floods.challenges),
    Attack("channels", "a new channel with every request, on all protocols", floods.channels),
    Attack("subscriptions", "one connection that subscribes to 11,000 topics", floods.subscriptions),
    Attack("crowded", "joining a channel with 200 pages in it and hanging up, at full speed", floods.crowded),
    Attack("churn", "connections opened, half used and reset at full speed", floods.churn),
    Attack("after-close", "WebSockets that send at full speed after their close frame", floods.after_close),

    Attack("ws-resume", "100 patterns on each connection to /v1/ws resume a long channel from the beginning",
           subscribers.resume, brief=False),
    Attack("ws-nothing", "the same with patterns that match nothing", subscribers.nothing_found, brief=False),
    Attack("ws-many", "2,000 channels on each connection to /v1/ws, from the beginning", subscribers.many, brief=False),
    Attack("ws-churn", "subscribing and unsubscribing, of a channel with 200 peers in it", subscribers.churn,
           brief=False),
    Attack("ws-huge", "patterns and channels of half a megabyte", subscribers.huge, brief=False),
    Attack("ws-unread", "pages, lists and pongs that nobody reads, on /v1/ws", subscribers.unread, brief=False),
    Attack("ws-gone", "direct messages to peers that are not there", subscribers.gone, brief=False),
    Attack("ws-keys", "an idempotency key with every message on /v1/ws", subscribers.keys, brief=False),

    Attack("ids", "stream ids of 1 MB, no two alike", hoards.ids),
    Attack("paths", "paths of 60 kB, no two alike", hoards.paths),
    Attack("arrays", "GET /v1/channels over newest messages of 1 MiB of empty arrays", hoards.arrays, memory=128),
    Attack("half-messages", "200 WebSocket messages of 1 MB without an end", hoards.half_messages, memory=BUDGET,
           patience=0.25),
    Attack("half-fragments", "the same in fragments", hoards.half_fragments, memory=BUDGET, patience=0.25),
    Attack("half-announces", "200 announces of 1 MB without an end", hoards.half_lines, memory=BUDGET, patience=0.25),
    Attack("bodies", "100 bodies of 1 MB without an end", hoards.bodies, memory=BUDGET),
    Attack("bodies-keyless", "the same without a key, where there are keys", hoards.bodies, needs=KEYS, memory=32,
           answers=("http 401",)),
    Attack("orphans", "20 Sprout connections announce 70 nodes of 60 kB whose parents are nowhere", hoards.orphans,
           memory=BUDGET),
    Attack("tracker", "a tracker node in 1,000 streams with others reports them again and again", hoards.tracker),
    Attack("descriptors", "connections until there are no descriptors; history is asked for meanwhile",
           hoards.descriptors, needs=FEW),

    Attack("link-flood", "a relay that the gateway dials broadcasts at full speed, with ids that it made up",
           relays.flood, needs=LINK),
    Attack("link-garbage", "it sends unrequested messages, in frames of all sizes and kinds", relays.garbage,
           needs=LINK, brief=False),
    Attack("link-unread", "it never reads, while 60 kB are said again and again on a linked channel", relays.unread,
           seconds=UNREAD, needs=LINK, brief=False),

    Attack("broker-flood", "a Streamr broker that the gateway dials sends new messages at full speed", brokers.flood,
           needs=BROKER, brief=False),
    Attack("broker-forged", "it replays a signed message in every way, and forges others", brokers.forged,
           needs=BROKER),
    Attack("broker-garbage", "it sends unrequested messages, in frames of all sizes and kinds", brokers.garbage,
           needs=BROKER, brief=False),
    Attack("broker-unread", "it never reads, while 60 kB are said again and again on a linked stream", relays.unread,
           seconds=UNREAD, needs=BROKER, brief=False, memory=128),  # the heap is fragmented: 54 to 85 MiB were taken

    Attack("peer-flood", "an Arbor relay that the gateway dials announces good nodes at full speed",
           sprout_peers.flood, needs=PEER, brief=False),
    Attack("peer-garbage", "it announces forged and broken nodes, and sends invalid messages", sprout_peers.garbage,
           needs=PEER, brief=False),
    Attack("peer-answers", "it answers with nodes that nobody asked for, whose author never comes",
           sprout_peers.answers, needs=PEER, brief=False),
    Attack("peer-endless", "its answer has no end", sprout_peers.endless, needs=PEER, brief=False),
    Attack("peer-silent", "it asks for everything, and neither reads nor answers", sprout_peers.silent, needs=PEER,
           brief=False),

    Attack("replay", "somebody's signed message is replayed, to be taken for them", rights.replay),
    Attack("spoof", "numbers of others as `src`; listening to direct messages", rights.spoof),
    Attack("pages", "a web page of another origin, and a rebound name", rights.pages, answers=("http 403",)),
    Attack("long-heads", "queries, lists of addresses and types, and headers, of all there is room for",
           requests.long_heads, answers=("http 414", "http 431")),
    Attack("small-chunks", "bodies in chunks of one byte, without an end", requests.small_chunks, patience=0.5),
    Attack("smuggling", "requests in the bodies of requests that ask for another protocol", requests.smuggled,
           answers=("http 201",)),
    Attack("smuggling-trio", "the same with `--loop trio`", requests.smuggled, needs=TRIO, answers=("http 201",)),
    Attack("keys", "no key, a wrong one, one without the right, for each verb", rights.keys, needs=KEYS,
           answers=("http 401", "http 403")),
)
# fmt: on

BY_NAME: Final = {attack.name: attack for attack in ATTACKS}
