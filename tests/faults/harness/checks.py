"""The promises, compared with what the gateway serves and what is on its disk. Everything here is asked of it anew.

What was accepted is there, once, with its content byte for byte; in each chain in the order in which it was sent;
nobody is shown a message that was not sent. Sequences are dense and times never decrease.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from zlib import crc32

from adapters import ADAPTERS
from gateway.client.sse import EventReader
from gateway.storage import archive

from . import nodes
from .connections import PATIENCE, HttpConnection, RequestRefused, Socket
from .fork_server import GatewayProcess
from .ledger import LATE, Ledger, SentMessage, plain, token_of
from .load import CHANNELS, STREAMR, path_of, streamr_content

TRIES = 9  # at reading a history while something still comes in
SETTLED_READS = 2  # times in a row that the history was the same
FAULT_COUNTS = re.compile(r'^trellis_faults_total\{kind="(\w+)"\} (\S+)$', re.MULTILINE)
CONTENT = b'"content":'
OPEN = ".open-"
FACTS = ".facts.jsonl"
FRONT = re.compile(r"\d{20}-\d{20}\.facts\.jsonl")


class Record(NamedTuple):
    """A line of the log: the file it stands in, its place there, its number and time, and what it holds."""

    path: Path
    offset: int
    size: int
    seq: int
    time: int
    fields: dict[str, Any]


class HistoryMessage(NamedTuple):
    """A message as the gateway's history shows it; one that came *late* is not shown live on other protocols."""

    seq: int
    token: str
    id: str
    content: Any
    late: bool
    sender: tuple[Any, ...] = ()

    @classmethod
    def of(cls, shown: Any) -> HistoryMessage:
        """From a message of REST; the canonical id tells when it was accepted."""
        accepted = int(shown["id"].replace("-", "")[:12], 16)
        late = shown["timestamp"] < accepted - LATE
        sender = tuple(shown["sender"][name] for name in ("peer", "protocol", "identity"))
        return cls(shown["sequence"], token_of(shown["content"]), shown["id"], shown["content"], late, sender)


def counted(log: Path) -> list[Path]:
    """The files of *log* that count, in order, as docs/log.md has it."""
    names = {path.name for path in log.glob("*.jsonl")}
    front = max((name for name in names if FRONT.fullmatch(name)), key=_last_of, default="")
    last = _last_of(front) if front else 0
    others = [name for name in names if not FRONT.fullmatch(name) and first_of(log / name) > last]
    stale = {name for name in others if name.endswith(FACTS) and name.replace(FACTS, ".jsonl") in names}
    return sorted([log / name for name in (*others, *filter(None, [front])) if name not in stale], key=first_of)


def _last_of(name: str) -> int:
    return int(name[21:41])


def records(log: Path | list[Path]) -> list[Record]:
    """Every good record of the files that count in *log*, read without the gateway's help.

    What follows where the next segment begins was given up, and does not count.
    """
    paths = counted(log) if isinstance(log, Path) else log
    found: list[Record] = []
    for path, after in zip(paths, [*paths, None][1:], strict=True):
        end = 1 << 62 if after is None else first_of(after)
        offset = 0
        for line in path.read_bytes().splitlines(keepends=True):
            if (record := _record(path, offset, line)) is not None:
                if record.seq >= end:
                    break
                found.append(record)
            offset += len(line)
    return found


def first_of(path: Path) -> int:
    """The sequence that a segment begins with."""
    return int(path.name.removeprefix(OPEN)[:20])


def _record(path: Path, offset: int, line: bytes) -> Record | None:
    body, mark, check = line.rpartition(b',"crc":"')
    if not mark or check != b'%08x"}\n' % crc32(body):
        return None
    fields = json.loads(body + b"}")
    return Record(path, offset, len(line), fields["seq"], fields["time"], fields)


async def served(http: HttpConnection, channel: str) -> tuple[list[HistoryMessage], bytes]:
    """The whole history of *channel*, and the text of the answers."""
    found: list[HistoryMessage] = []
    texts: list[bytes] = []
    path: str | None = path_of(channel) + "?limit=256"
    while path is not None:
        status, body = await http.ask("GET", path)
        if status != 200:
            raise RequestRefused(status, body.decode())
        page = json.loads(body)
        found += map(HistoryMessage.of, page["messages"])
        texts.append(body)
        path = page["next"]
    return found, b"".join(texts)


@asynccontextmanager
async def quiet_timeout(seconds: float) -> AsyncIterator[None]:
    """Leave it there after so many *seconds*."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


def check_history(ledger: Ledger, channel: str, found: list[HistoryMessage], text: bytes = b"") -> None:
    """Record what is missing, duplicated, changed, reordered or unknown in the history of *channel*."""
    place = {served.token: number for number, served in enumerate(found)}
    for token, times in Counter(served.token for served in found).items():
        if times > 1:
            ledger.add_violation(f"{token} is in the history {times} times")
    for served in found:
        sent = ledger.messages.get(served.token)
        if sent is None or sent.channel != channel:
            ledger.add_violation(f"the history of {channel} has {served.content!r}, which was not sent")
        elif plain(served.content) != sent.content:
            ledger.add_violation(f"the history has {served.token} as {served.content!r}")
        elif text and sent.text is not None and CONTENT + sent.text.encode() not in text:
            ledger.add_violation(f"the history has {served.token}, but not as it was written")
    if back := [served.token for served in found if served.seq < ledger.first_retained]:
        ledger.add_violation(f"{len(back)} are shown that retention took: {', '.join(back[:9])}")
    expected = [sent for sent in ledger.accepted if sent.channel == channel]
    if lost := [sent.token for sent in expected if sent.token not in place]:
        ledger.add_violation(f"{len(lost)} that were accepted are lost: {', '.join(lost[:9])}")
    for sent in expected:
        if sent.token in place and sent.seq is not None and sent.seq >= ledger.first_retained:  # else it was sent again
            now = found[place[sent.token]]
            if (sent.seq, sent.id) != (now.seq, now.id):
                ledger.add_violation(f"{sent.token} was accepted as {sent.seq} {sent.id} and is {now.seq} {now.id}")
    seqs = [served.seq for served in found]
    if seqs != sorted(set(seqs)):
        ledger.add_violation(f"the history of {channel} is not in the order of its sequences")
    for connection, tokens in ledger.chains.items():
        places = [place[token] for token in tokens if token in place and not ledger.may_be_reordered(token)]
        if connection[1] == channel and places != sorted(places):
            ledger.add_violation(f"what {connection[0]} said in {channel} is in another order")
    by_seq = {served.seq: served.token for served in found}
    for (name, seq), token in ledger.seen.items():
        if name == channel and seq >= ledger.first_retained and by_seq.get(seq) != token:
            ledger.add_violation(f"{token} was shown as record {seq} of {channel}, which is {by_seq.get(seq)!r} now")


class GatewayChecks:
    """Checks by every protocol what a gateway holds. *sure*: no record that other nodes refer to was damaged."""

    def __init__(self, running: GatewayProcess, ledger: Ledger, communities: dict[str, str], *, sure: bool) -> None:
        self._running = running
        self._ledger = ledger
        self._communities = communities
        self._sure = sure

    async def check_all(self) -> None:
        """Record every broken promise, once nothing more comes in."""
        await self._wait_until_settled()
        async with HttpConnection(self._running.http) as http:
            for channel in CHANNELS:
                await self._channel(http, channel)
            if self._sure:
                await self._forest(http)

    async def _wait_until_settled(self) -> None:
        """Wait until everything that was sent has arrived and is on disk: a message published after it is."""
        async with asyncio.timeout(PATIENCE), HttpConnection(self._running.http) as http:
            before, same = None, 0
            while same < SETTLED_READS:
                await asyncio.sleep(0.04)
                token = f"calm.{len(self._ledger.messages)}"
                if await publish(http, self._ledger, token) == 201:
                    histories = [(await served(http, channel))[0] for channel in CHANNELS]
                    tokens = [each.token for found in histories for each in found if not each.token.startswith("calm.")]
                    same = same + 1 if tokens == before else 0
                    before = tokens

    async def _forest(self, http: HttpConnection) -> None:
        """What Arbor is offered; what retention takes meanwhile is judged neither way."""
        await self._keep(http)
        before = nodes.Before.of(self._ledger)
        offered = await nodes.ask(self._running.sprout, self._ledger, before, self._communities)
        await self._keep(http)
        nodes.judge(self._ledger, self._communities, before, offered)

    async def _keep(self, http: HttpConnection) -> None:
        """Learn what retention has left."""
        if self._ledger.retention_runs:
            self._ledger.record_retention(*await first_message(http))

    async def _channel(self, http: HttpConnection, channel: str) -> None:
        """The history of a channel, by each way to read it; again where something came in meanwhile."""
        found, text = await served(http, channel)
        wrong: list[str] = []
        for _ in range(TRIES):
            await self._keep(http)
            middle = found[len(found) // 2].seq if found else 0
            wrong = [*await self._events(http, channel, 0, found), *await self._resends(channel, found)]
            wrong += await self._events(http, channel, middle, [each for each in found if each.seq > middle])
            before, (found, text) = found, await served(http, channel)
            if found == before:
                break
        check_history(self._ledger, channel, found, text)
        if self._sure:
            _, about = await http.ask("GET", f"/v1/channels/{quote(channel, safe='')}")
            self._ledger.check_unchanged(
                channel, {n: v for n, v in json.loads(about).items() if n not in ("members", "sequence")}
            )
            for each in found:
                self._ledger.check_unchanged(f"{each.token} at {each.seq}", each.sender)
        for complaint in wrong:
            self._ledger.add_violation(complaint)

    async def _events(
        self, asker: HttpConnection, channel: str, after: int, expected: list[HistoryMessage]
    ) -> list[str]:
        """An event stream that goes on after the sequence *after* shows what the history has from there on."""
        found: list[HistoryMessage] = []
        gaps: list[int] = []
        lost = any(after < seq < self._ledger.first_retained for seq in self._ledger.positions.values())
        last = expected[-1].seq if expected else 0  # retention may take what is expected; then a gap tells of it
        async with quiet_timeout(PATIENCE), HttpConnection(self._running.http) as http:
            await http.begin("GET", f"/v1/channels/{quote(channel, safe='')}/events", {"last-event-id": str(after)})
            await http.head()
            reader, pieces = EventReader(), http.pieces()
            while max([after, *(gap - 1 for gap in gaps), *(each.seq for each in found)]) < last or (lost and not gaps):
                events = reader.receive_data(await anext(pieces))
                found += [HistoryMessage.of(json.loads(event.data)) for event in events if event.name == "message"]
                gaps += [json.loads(event.data)["before"] for event in events if event.name == "gap"]
        await self._keep(asker)
        if gaps and gaps[-1] > self._ledger.first_retained:
            return [
                f"events of {channel} after {after} are told of a gap up to {gaps}, not {self._ledger.first_retained}"
            ]
        if lost and not gaps:
            return [f"events of {channel} after {after} are not told of a gap"]
        return [] if found == expected else [f"events of {channel} after {after} are not what the history has"]

    async def _resends(self, channel: str, found: list[HistoryMessage]) -> list[str]:
        """A resend of everything is the history, as it was written; one from its middle on is its rest."""
        wrong: list[str] = []
        async with Socket(self._running.http, STREAMR) as socket:
            resent = await self._resend(socket, channel, 0)
            tokens = [token_of(streamr_content(message)) for message in resent]
            if sorted(tokens) != sorted(served.token for served in found):
                missing = {served.token for served in found} - set(tokens)
                wrong.append(f"a resend of {channel} has {len(tokens)} of {len(found)}, without {missing}")
            for message, token in zip(resent, tokens, strict=True):
                sent = self._ledger.messages.get(token)
                if sent is not None and sent.text is not None and message[7] != sent.text:
                    wrong.append(f"{token} was resent as {message[7]!r}")
            if resent:
                since = resent[len(resent) // 2][1][2]
                rest = [message for message in resent if message[1][2] >= since]
                if await self._resend(socket, channel, since) != rest:
                    wrong.append(f"a resend of {channel} from {since} on is not its rest")
        return wrong

    async def _resend(self, socket: Socket, channel: str, since: int) -> list[Any]:
        await socket.send(json.dumps([2, 12, "resend", channel, 0, [since, 0], None, None]))
        found: list[Any] = []
        async with asyncio.timeout(PATIENCE):
            while (frame := await socket.receive())[1] not in (5, 6):
                if frame[1] == 7:
                    raise RequestRefused(frame)
                if frame[1] == 1:
                    found.append(frame[3])
        return found


def check_log(ledger: Ledger, log: Path, damaged: set[int]) -> None:
    """Check the files in *log*, as we and `trellis verify` read them; the harness changed the *damaged* records."""
    found = records(log)
    seqs = [record.seq for record in found]
    kept = next((first_of(path) for path in counted(log) if not path.name.endswith(FACTS)), max(seqs, default=0))
    sure, damaged = not damaged - set(seqs), {seq for seq in damaged if seq >= kept}
    if missing := set(range(kept, max(seqs, default=0) + 1)) - set(seqs) - damaged:
        ledger.add_violation(f"the log has no records {sorted(missing)[:9]}")
    if seqs != sorted(set(seqs)):
        ledger.add_violation("the records of the log are not in order, or some are there twice")
    if [record.time for record in found] != sorted(record.time for record in found):
        ledger.add_violation("the times in the log decrease")
    proofs = [adapter.signature_check() for adapter in ADAPTERS]
    report = archive.verify(log, lambda entry: next(filter(None, (proof(entry) for proof in proofs)), None))
    if report.faults and sure:
        ledger.add_violation(f"`trellis verify` finds {report.faults[:3]}")
    if damaged & set(range(1, max(seqs, default=0))) - set(seqs) and not report.faults:
        ledger.add_violation("`trellis verify` does not see the damage")


async def publish(http: HttpConnection, ledger: Ledger, token: str, channel: str = CHANNELS[0]) -> int:
    """Publish a message with the *token*; the status of the answer."""
    content = {"content": token}
    sent = ledger.add(token, SentMessage(token, channel, "rest", content, json.dumps(content)))
    status, body = await http.ask("POST", path_of(sent.channel), json.dumps(content).encode())
    if status == 201:
        receipt = json.loads(body)
        ledger.record_accept(sent, receipt["sequence"], receipt["id"])
    return status


async def first_message(http: HttpConnection) -> tuple[int, int]:
    """The sequence and the time of the first message in `GET /v1/log`; of the next one where there is none."""
    after = time = 0
    while True:
        status, body = await http.ask("GET", f"/v1/log?after={after}&limit=1000")
        if status != 200:
            raise RequestRefused(status, body.decode())
        lines = [json.loads(line) for line in body.splitlines()]
        if found := next((line for line in lines if line["kind"] == "message"), None):
            return found["seq"], found["time"]
        if not lines:
            return after + 1, time
        after, time = lines[-1]["seq"], lines[-1]["time"]


async def reported(http: HttpConnection) -> Counter[str]:
    """How many faults the gateway has reported in this life, by kind, as `/metrics` tells."""
    _, text = await http.ask("GET", "/metrics")
    counts = FAULT_COUNTS.findall(text.decode())
    return Counter({kind: int(float(count)) for kind, count in counts})


async def ready(http: HttpConnection, seconds: float) -> bool:
    """Whether the gateway is ready within so many *seconds*."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status, _ = await http.ask("GET", "/readyz")
        if status == 200:
            return True
        await asyncio.sleep(0.02)
    return False
