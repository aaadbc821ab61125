"""Every table that the pipeline makes of a log, by plain Python.

Nothing of `pipeline` is used here, and no codec: the wire texts of Streamr are read as JSON, and of each node it is
known what genuine programs wrote in it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tests.pipeline.faulty_log import Known, Record, compact

Rows = list[tuple[Any, ...]]


class Oracle:
    """The tables of the records on the good lines of a log."""

    def __init__(self, told: list[bytes], bad: list[tuple[int, str]], known: Known) -> None:
        self.bad, self.known = bad, known
        places = {at for at, _ in bad}
        self.records = [json.loads(line) for at, line in enumerate(told, 1) if at not in places]
        self.messages = [record for record in self.records if record["kind"] == "message"]
        self.streams = [(one["seq"], stream_of(one["wire"])) for one in self.messages if one["protocol"] == "streamr"]
        self.nodes = [(one["seq"], known.nodes[one["seq"]]) for one in self.records if one["seq"] in known.nodes]

    def streamr(self) -> Rows:
        """Return the message ids, with what else a row has; the first copy counts. Unreadable ones have a record."""
        rows: dict[Any, tuple[Any, ...]] = {}
        for seq, one in self.streams:
            if one is None:
                rows[seq] = (seq, True)
            else:
                more = (one["prev"], one["version"], one["content"], one["signature"])
                rows.setdefault(one["key"], (seq, False, one["key"], *more))
        return [*rows.values()]

    def arbor_nodes(self) -> Rows:
        rows: dict[str, tuple[Any, ...]] = {}
        for seq, node in self.nodes:
            rows.setdefault(node["id"], (seq, *fields_of(node)))
        return [*rows.values()]

    def topic_packets(self) -> Rows:
        rows = []
        for one in self.messages:
            if one["protocol"] == "topic_relay":
                wire = json.loads(one["wire"])
                whole = isinstance(wire, dict)
                extra = {"n": wire["n"]} if whole else None
                rows.append((one["seq"], 6 if whole else None, one["peer"], extra, not whole))
        return rows

    def integrity(self) -> Rows:
        """Return record, check, verdict, and whose signature it claims to be."""
        rows: Rows = []
        for seq, one in self.streams:
            if one is None:
                rows.append((seq, "eth", "bad", None))
            else:
                verdict = "unverifiable" if one["signature"] is None else "bad" if seq in self.known.forged else "ok"
                rows.append((seq, "eth", verdict, one["key"][2]))
        identities = {node["id"] for _, node in self.nodes if node["node_type"] == 0}
        for seq, node in self.nodes:
            author = node["id"] if node["node_type"] == 0 else node["author"]["text"]
            rows.append((seq, "node_id", "ok" if node["genuine"] else "bad", author))
            verdict = "unverifiable" if author not in identities else "ok" if node["genuine"] else "bad"
            rows.append((seq, "openpgp", verdict, author))
        return rows

    def gaps(self) -> Rows:
        """Return each message whose predecessor is not the one before it in its chain."""
        chains: dict[Any, dict[Any, tuple[Any, int]]] = defaultdict(dict)
        for seq, one in self.streams:
            if one is not None:
                stream, partition, publisher, chain, *place = one["key"]
                chains[stream, partition, publisher, chain].setdefault(tuple(place), (one["prev"], seq))
        rows: Rows = []
        for chain, links in chains.items():
            before = None
            for at in sorted(links):
                want, seq = links[at]
                if want is not None and before is None:
                    rows.append((*chain, *at, *want, None, "unknown before"))
                elif want is not None and want != before:
                    rows.append((*chain, *at, *want, before, "fork" if want < before and want in links else "open"))
                elif want is not None and links[before][1] > seq:
                    rows.append((*chain, *at, *want, before, "filled"))
                before = at
        return rows

    def forest(self) -> Rows:
        nodes = {row[1]: row[2:7] for row in self.arbor_nodes()}
        threads = {
            id: (id if conv.startswith("NullHash") else conv)
            for id, (kind, _, _, conv, _) in nodes.items()
            if kind == 2
        }
        sizes, children = Counter(threads.values()), Counter(parent for kind, parent, *_ in nodes.values() if kind == 2)
        rows: Rows = []
        for id, (kind, parent, community, _, depth) in nodes.items():
            above = nodes.get(parent)
            fits = depth == 0 if kind != 2 else None if above is None else depth == above[-1] + 1
            root, size = (community, sizes[threads[id]]) if kind == 2 else (id, None)
            rows.append((id, root, fits, kind != 2 or above is not None, children[id], not children[id], size))
        return rows

    def channel_minute(self) -> Rows:
        cells: dict[Any, Rows] = defaultdict(list)
        for one in self.messages:
            if not one["channel"].startswith("gateway/"):
                minute = one["time"] // 60_000
                text = one.get("wire") or json.dumps(one["content"], ensure_ascii=False, separators=(",", ":"))
                who = one.get("sender", one["peer"])
                cells[minute, one["protocol"], one["channel"]].append((size(text), who, bool(one.get("undelivered"))))
        return [
            (
                *key,
                len(told),
                sum(n for n, *_ in told),
                len({who for _, who, _ in told}),
                sum(missed for *_, missed in told),
            )
            for key, told in cells.items()
        ]

    def latency_minute(self) -> Rows:
        flows: dict[Any, list[Record]] = defaultdict(list)
        for one in self.records:
            if one["kind"] == "counts":
                for flow in one["flows"]:
                    flows[one["minute"] // 60_000, flow["from"], flow["to"]].append(flow)
        rows: Rows = []
        for key, told in flows.items():
            cells = Counter[int]()
            for flow in told:
                cells.update(dict(flow["latency"]))
            shares = [round(quantile(cells, share), 6) for share in (0.5, 0.95, 0.99)]
            rows.append((*key, sum(flow["delivered"] for flow in told), *shares, len(told)))
        return rows

    def answers(self) -> Rows:
        counted = Counter[tuple[str, ...]]()
        for answer in self.messages:
            counted.update({(*who(answer), *who(asked)) for asked in self.asked_by(answer)})
        return [(*pair, n) for pair, n in counted.items()]

    def asked_by(self, answer: Record) -> list[Record]:
        earlier = (one for one in self.messages if one["seq"] < answer["seq"])
        return [one for one in earlier if answer.get("parent") in (one["id"], *one.get("ids", ()))]

    def answer_times(self) -> Rows:
        took: dict[str, list[int]] = defaultdict(list)
        for one in self.messages:
            ids = (one["id"], *one.get("ids", ()))
            later = [two["time"] for two in self.messages if two["seq"] > one["seq"] and two.get("parent") in ids]
            if later:
                took[one["channel"]].append(min(later) - one["time"])
        return [(channel, len(ms), percentile(ms, 0.5), percentile(ms, 0.95)) for channel, ms in took.items()]

    def retention(self) -> Rows:
        weeks: dict[Any, set[date]] = defaultdict(set)
        for one in self.messages:
            if "sender" in one:
                day = datetime.fromtimestamp(one["time"] // 1000, UTC).date()
                weeks[who(one)].add(day - timedelta(day.weekday()))
        counted = Counter((min(told), (week - min(told)).days // 7) for told in weeks.values() for week in told)
        return [(*key, n) for key, n in counted.items()]

    def threads(self) -> Rows:
        above = {one["seq"]: asked[0] for one in self.messages if (asked := self.asked_by(one))}
        depth: dict[int, int] = {}
        top: dict[int, int] = {}
        took: dict[int, list[int]] = defaultdict(list)
        for one in self.messages:
            if before := above.get(one["seq"]):
                asked_seq: int = before["seq"]
                depth[one["seq"]] = depth.get(asked_seq, 0) + 1
                top[one["seq"]] = top.get(asked_seq, asked_seq)
                took[depth[one["seq"]]].append(one["time"] - before["time"])
        deepest: dict[int, int] = {}
        for seq, first in top.items():
            deepest[first] = max(depth[seq], deepest.get(first, 0))
        ends = Counter(deepest.values())
        below = [(n, len(ms), ends[n], percentile(ms, 0.5)) for n, ms in took.items()]
        return [(0, len(deepest), 0, None), *below]

    def faults(self) -> Rows:
        """Return kinds and causes with their numbers; those of checks by the check alone."""
        counted = Counter[tuple[str, str]](("line", cause) for _, cause in self.bad)
        counted.update((f"check {check}", "") for _, check, verdict, _ in self.integrity() if verdict == "bad")
        counted.update(("chain", row[-1]) for row in self.gaps() if row[-1] in ("open", "fork"))
        counted.update(("undelivered", name) for one in self.messages for name in one.get("undelivered", ()))
        same: dict[Any, list[str]] = defaultdict(list)
        for one in self.messages:
            same[one["channel"], one["id"]].append(json.dumps(one["content"]))
        for told in same.values():
            if len(told) > 1:
                counted["copy", "another content" if len({*told}) > 1 else "the same content"] += len(told) - 1
        return [(*key, n) for key, n in counted.items()]

    def storage(self) -> Rows:
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for one in self.messages:
            more = sum(size(compact(one[name])) for name in ("native", "refs") if name in one)
            told = (1, size(compact(one["content"])), size(one.get("wire", "")), more)
            sums[one["channel"]] = [a + b for a, b in zip(sums[one["channel"]], told, strict=True)]
        return [(channel, *told) for channel, told in sums.items()]

    def publishers(self) -> Rows:
        told = Counter[tuple[str, str]](("streamr", row[2][2]) for row in self.streamr() if not row[1])
        for id, kind, _, _, _, _, author in (row[1:] for row in self.arbor_nodes()):
            told["sprout", id if kind == 0 else author] += 1
        missing: dict[Any, list[int]] = defaultdict(list)
        for row in self.gaps():
            if row[-1] in ("open", "fork"):
                missing["streamr", row[2]].append(row[4])
        bad: dict[Any, set[int]] = defaultdict(set)
        for seq, check, verdict, publisher in self.integrity():
            if verdict == "bad" and publisher is not None:
                bad["streamr" if check == "eth" else "sprout", publisher].add(seq)
        rows: Rows = []
        for key in {*told, *missing, *bad}:
            late, wrong = missing.get(key, []), bad.get(key, ())
            rows.append((*key, told[key], len(late), max(late, default=None), len(wrong), max(wrong, default=None)))
        return rows


def stream_of(wire: str) -> Record | None:
    """Return what the text of a stream message of version 31 or 32 says; None if it is none."""
    told = json.loads(wire)
    if len(told[1]) < 6:
        return None
    stream, partition, ts, seq, publisher, chain = told[1]
    at = {31: (5, 6, 7), 32: (7, 9, 10)}[told[0]]
    content, kind, signature = (told[place] for place in at)
    previous = None if told[2] is None else (told[2][0], told[2][1] or 0)
    return {
        "key": (stream, partition, publisher.lower(), chain, ts, seq),
        "prev": previous,
        "version": told[0],
        "content": content,
        "signature": signature if kind else None,
    }


def fields_of(node: Record) -> tuple[Any, ...]:
    """Return id, type, parent, community, conversation, depth and author of a node."""
    reply = node["node_type"] == 2
    names = ("community_id", "conversation_id")
    community, conversation = (node[name]["text"] if reply else None for name in names)
    return (
        node["id"],
        node["node_type"],
        node["parent"]["text"],
        community,
        conversation,
        node["depth"],
        node["author"]["text"],
    )


def who(one: Record) -> tuple[str, str]:
    return str(one.get("sender_protocol", one["protocol"])), str(one.get("sender", f"peer {one['peer']}"))


def size(text: str) -> int:
    return len(text.encode())


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value at *share* of the sorted *values*, between two of them in proportion."""
    told = sorted(values)
    place = share * (len(told) - 1)
    low = int(place)
    high = min(low + 1, len(told) - 1)
    return told[low] + (told[high] - told[low]) * (place - low)


def quantile(cells: Counter[int], share: float) -> float:
    """Return the quantile (ms) of a histogram with bounds in microseconds."""
    rank, seen, below = share * cells.total(), 0, 0
    for bound in sorted(bound for bound, n in cells.items() if n):
        if seen + cells[bound] >= rank:
            return (below + (rank - seen) / cells[bound] * (bound - below)) / 1000
        seen, below = seen + cells[bound], bound
    raise AssertionError("there is nothing in the histogram")
