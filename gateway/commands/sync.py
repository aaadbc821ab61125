"""`trellis sync`: two gateways exchange the messages that only one of them has."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from time import time
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from gateway.core.durations import milliseconds_of
from gateway.core.shared_ids import is_canonical, second_id
from gateway.reconciliation.reading import digest_of

from .common import AsJson, CommandError, say, show, visible
from .remote import DEFAULT_URL, Key, Remote, Url

PATH: Final = "/v1/sync"
OCTETS, JSON, NDJSON = "application/octet-stream", "application/json", "application/x-ndjson"
MAX_ROUNDS: Final = 1_000  # another gateway could otherwise continue without end
BATCH: Final = 128  # messages that are handed over at a time
SHOWN: Final = 5  # refusals that are printed
NOT_ASKED: Final = "it was handed over although nobody asked for it"


Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only messages of the last `12h`; units are s, m, h, d and w.")
]
RemoteKey = Annotated[
    str | None, typer.Option("--remote-key", envvar="TRELLIS_REMOTE_KEY", help="An API key of the other gateway.")
]


@dataclass
class SyncReport:
    """What was found and exchanged; *sent* and *received* count bytes of the comparison."""

    rounds: int = 0
    sent: int = 0
    received: int = 0
    here: int = 0  # messages that only the first gateway has
    there: int = 0  # messages that only the other one has
    pushed: int = 0
    pulled: int = 0
    known: int = 0  # that the other one had under another id, or got meanwhile
    gone: int = 0  # that were no longer kept
    refused: list[str] = field(default_factory=list)


def sync(
    url: Annotated[str, typer.Argument(metavar="URL", help="The other gateway.")],
    channels: Annotated[
        list[str], typer.Option("--channels", metavar="NAMES", help="Channels, and patterns as news/*; repeatable.")
    ],
    pull: Annotated[bool, typer.Option("--pull", help="Only fetch what this gateway lacks.")] = False,
    push: Annotated[bool, typer.Option("--push", help="Only send what the other gateway lacks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the differences.")] = False,
    since: Since = None,
    remote_key: RemoteKey = None,
    as_json: AsJson = False,
    gateway: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Exchange the messages that only one of two gateways has.

    Both compare what they have in some channels, which takes few bytes where little differs, and then each gets what
    it lacks. Messages keep their ids; what was signed for Arbor or Streamr stays signed. Both keys need the right
    `history`, and `publish` where messages are to arrive. Exit code 1: something was refused.

    \b
    Examples:
      trellis sync https://other.example --channels 'news/*'
      trellis sync https://other.example --channels lobby --pull --since 7d
      trellis sync https://other.example --channels '*' --dry-run --json
    """
    if sum((pull, push, dry_run)) > 1:
        raise typer.BadParameter("give one of --pull, --push and --dry-run", param_hint="--pull")
    done, start = SyncReport(), _start(since)
    with Remote(gateway, key) as here, Remote(url, remote_key) as there:
        transfer = _Transfer(here, there, channels, done)
        for have, need in transfer.differences(start):
            done.pushed += 0 if dry_run or pull else transfer.hand_over(have, here, there)
            done.pulled += 0 if dry_run or push else transfer.hand_over(need, there, here)
        done.pushed += transfer.finish(here, there)
        done.pulled += transfer.finish(there, here)
    show(asdict(done), as_json, _text(done))
    if done.refused:
        raise CommandError(f"{len(done.refused)} messages were refused")


class _Orphan(NamedTuple):
    """A message whose parent or author was not there yet; *detail* says which."""

    timestamp: int
    digest: str
    id: str
    detail: str


class _Line(msgspec.Struct):
    """What is needed of a line that a gateway hands over; `gateway.http.sync_messages` has all of it."""

    digest: str
    id: str
    channel: str
    timestamp: int
    content: msgspec.Raw


class _Transfer:
    """Hands messages over. The other gateway is not trusted: it could answer with messages that nobody asked for.

    They would be published with the rights of whoever calls the command. So a line is passed on only if its message is
    in the *channels* that are exchanged, and has an id that was asked for. The gateway that takes it is told the
    channels as well.
    """

    def __init__(self, here: Remote, there: Remote, channels: list[str], report: SyncReport) -> None:
        self._here = here
        self._there = there
        self._channels = channels
        names = [name for text in channels for name in text.split(",")]
        self._names = frozenset(names)
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
        self._report = report
        self._waiting: dict[Remote, list[_Orphan]] = {here: [], there: []}  # by where they are from

    def differences(self, since: int) -> Iterator[tuple[list[str], list[str]]]:
        """Yield what each round found: the ids of what only this gateway has, and only the other one; each id once."""
        report, seen = self._report, set[str]()
        answer: bytes | None = None
        while report.rounds < MAX_ROUNDS:
            asked = {"message": None if answer is None else b64encode(answer).decode(), "since": since}
            found = json.loads(self._post(self._here, "/differences", json.dumps(asked).encode(), JSON))
            have, need = ([id for id in found[name] if id not in seen] for name in ("have", "need"))
            seen.update(have, need)
            report.here += len(have)
            report.there += len(need)
            yield have, need
            if found["message"] is None:
                return
            message = b64decode(found["message"])
            answer = self._post(self._there, "", message, OCTETS)
            report.rounds += 1
            report.sent += len(message)
            report.received += len(answer)
        raise CommandError(
            f"the comparison has not ended after {MAX_ROUNDS} rounds; the messages found so far are exchanged"
        )

    def hand_over(self, ids: list[str], source: Remote, target: Remote) -> int:
        """Have *target* take the messages with these *ids* from *source*; return how many were new."""
        new, rest = 0, iter(ids)
        while batch := list(islice(rest, BATCH)):
            left = set(batch)
            while left:
                asked = json.dumps({"ids": sorted(left)}).encode()
                handed, lines = list[_Line](), list[bytes]()
                for line in self._post(source, "/export", asked, JSON).splitlines():
                    if (found := self._wanted(line, left)) is not None:
                        left.remove(found.digest)
                        handed.append(found)
                        lines.append(line)
                if not handed:
                    break
                results = self._post(target, "/import", b"\n".join(lines), NDJSON).splitlines()
                new += self._count(handed, map(json.loads, results), self._waiting[source])
            self._report.gone += len(left)
        return new

    def _wanted(self, line: bytes, asked: Collection[str]) -> _Line | None:
        """What *line* says, if its digest is one of those *asked* for and its own, and its channel is exchanged."""
        try:
            found = _LINE.decode(line)
        except (ValueError, RecursionError) as error:
            self._report.refused.append(f"a line is no message of a gateway: {error}")
            return None
        if found.digest not in asked or not self._covers(found.channel) or not _has_digest(found):
            self._report.refused.append(f"{found.id} in {found.channel}: {NOT_ASKED}")
            return None
        return found

    def _covers(self, channel: str) -> bool:
        return channel in self._names or channel.startswith(self._prefixes)

    def finish(self, source: Remote, target: Remote) -> int:
        """Send *target* again the messages that needed others first; return how many were new."""
        new = 0
        while waiting := sorted(self._waiting[source]):
            self._waiting[source] = []
            new += self.hand_over([each.digest for each in waiting], source, target)
            if len(self._waiting[source]) == len(waiting):
                self._report.refused += [f"{each.id}: {each.detail}" for each in waiting]
                break
        return new

    def _count(self, handed: list[_Line], results: Iterable[Any], waiting: list[_Orphan]) -> int:
        """Count the *results* of what was *handed* over; return how many were new. Some are left *waiting*."""
        new = 0
        for each, result in zip(handed, results, strict=True):
            if result["status"] == "accepted":
                new += 1
            elif result["status"] == "known":
                self._report.known += 1
            elif result["status"] == "incomplete":
                waiting.append(_Orphan(each.timestamp, each.digest, result["id"], result["detail"]))
            else:
                self._report.refused.append(f"{result['id']}: {result['detail']}")
        return new

    def _post(self, gateway: Remote, path: str, body: bytes, media_type: str) -> bytes:
        return gateway.call(lambda: gateway.client.post(PATH + path, body, media_type, channels=self._channels))


_LINE: Final = msgspec.json.Decoder(_Line)


def _has_digest(line: _Line) -> bool:
    """Whether *line* is the message that its digest names (`gateway.core.shared_ids.common_id`)."""
    if line.digest == digest_of(line.id).hex():
        return True
    if not is_canonical(line.id):
        return False
    return line.digest == digest_of(second_id(line.id, line.channel, bytes(line.content))).hex()


def _start(since: str | None) -> int:
    """The time (ms) from which messages count, where *since* is how long ago."""
    try:
        return 0 if since is None else max(0, int(time() * 1000) - milliseconds_of(since))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None


def _text(done: SyncReport) -> str:
    for refusal in done.refused[:SHOWN]:
        say(visible(refusal))
    return "\n".join(
        [
            f"{done.here} messages only here, {done.there} only there"
            f" ({done.rounds} rounds, {done.sent} bytes sent, {done.received} received)",
            f"{done.pushed} sent, {done.pulled} fetched, {done.known} known already, {done.gone} no longer kept,"
            f" {len(done.refused)} refused",
        ]
    )
