"""Reads what is imported: groves, resends of a Streamr broker, exported logs. All workers read and verify them.

The results are `ImportEntry` values, whose sort keys give the order of the log (authors before nodes, parents before
children, messages by time), and rows of `bronze/rejects` for what is invalid.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adapters.sprout.forest import forest
from adapters.streamr import dump_files
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import channel_of
from adapters.streamr.wire.message import parse_message
from gateway.core.message import Message, Peer
from gateway.storage.archive import UNPUBLISHED
from gateway.storage.record import BadRecord, Entry, Fact, decode_base64url, encode_base64url
from pipeline import codecs
from pipeline.sources.fast_decoder import Row
from pipeline.sources.records import decode_row, reject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from adapters.streamr.wire.message import StreamMessage

TASKS = 8  # for each core
PREFIX = "SHA512_"  # of the names of node files in a grove

SortKey = tuple[int, ...]


class ImportEntry(NamedTuple):
    """A message or node to publish, and its place in the order."""

    sort_key: SortKey
    text: str  # a stream message's text, or a node in base64url
    id: str  # of a node; empty for a stream message


ImportResult = tuple[ImportEntry | None, Row | None]


def read_streamr(spark: SparkSession, path: Path) -> Any:
    """Read the stream messages in the file *path*, or in all files of that folder: an RDD of `ImportResult`."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return _parallelize(spark, files).flatMap(_dump)


def read_grove(spark: SparkSession, folder: Path) -> Any:
    """Read the nodes in the grove *folder*: an RDD of `ImportResult`."""
    files = _parallelize(spark, sorted(file for file in folder.iterdir() if file.name.startswith(PREFIX)))
    keys = dict(files.flatMap(_identity).collect())
    return files.map(partial(_node, spark.sparkContext.broadcast(keys)))


def read_lines(path: Path) -> tuple[list[bytes], list[Row]]:
    """Return the valid lines of one file of a log, and the rejects."""
    good: list[bytes] = []
    bad: list[Row] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                decode_row(line, "")
                good.append(line)
            except BadRecord as error:
                bad.append(reject(str(path), number, str(error), line))
    return good, bad


def make_entry(good: ImportEntry, seq: int) -> Entry:
    """Make the record of *good*, for a log that no gateway has imported yet."""
    if not good.id:
        return _message(parse_message(good.text), seq)
    native = {"sprout": good.id}
    node = forest.decode(decode_base64url(good.text))
    if not isinstance(node, forest.Reply):
        return Fact("entity", {"protocol": "sprout", "native": native, "wire": good.text}, seq)
    sender = Peer(0, "sprout", node.author)
    more: dict[str, Any] = {"seq": seq, "id": good.id, "timestamp": node.created, "native": native}
    return Message(node.community, sender, "sprout", b"null", wire=good.text.encode(), **more)


def _message(parsed: StreamMessage, seq: int) -> Message:
    stream, partition, timestamp, *_ = parsed.id
    publisher = parsed.id.publisher_id.lower() or None
    native = {"streamr": list(parsed.id)}
    more: dict[str, Any] = {"seq": seq, "id": f"{UNPUBLISHED}-{seq}", "timestamp": timestamp, "native": native}
    message = Message(
        channel_of(stream, partition), Peer(0, "streamr", publisher), "streamr", parsed.json_content(), **more
    )
    message.wire = parsed.wire
    return message


def _parallelize(spark: SparkSession, files: list[Path]) -> Any:
    context = spark.sparkContext
    return context.parallelize(files, max(1, min(len(files), TASKS * context.defaultParallelism)))


def _dump(file: Path) -> list[ImportResult]:
    try:
        return [_checked(file, found) for found in dump_files.read_dump(file.read_bytes())]
    except (OSError, ValueError) as error:
        return [(None, reject(str(file), 0, f"foreign: {error}", b""))]


def _checked(file: Path, found: dump_files.DumpEntry) -> ImportResult:
    message = found.message
    if message is None or message.wire is None:
        return None, reject(str(file), found.number, f"corrupt: {found.fault}", b"")
    wire = message.wire.decode()
    try:
        message.parsed_content()
        checked = codecs.check_stream(wire)
        reason = checked.reason if checked.verdict == codecs.BAD else None
    except StreamrError as error:
        reason = str(error)
    if reason is not None:
        return None, reject(str(file), found.number, f"corrupt: {reason}", message.wire)
    return ImportEntry((message.id.timestamp, message.id.sequence_number), wire, ""), None


def _identity(file: Path) -> list[tuple[str, bytes]]:
    """Return the id and the bytes of *file* if it is an identity, else nothing."""
    try:
        raw = file.read_bytes()
        return [(file.name, raw)] if isinstance(forest.decode(raw), forest.Identity) else []
    except (OSError, forest.NodeError):
        return []


def _node(keys: Any, file: Path) -> ImportResult:
    try:
        raw = file.read_bytes()
        node = forest.decode(raw)
    except (OSError, forest.NodeError) as error:
        return None, reject(str(file), 0, f"corrupt: {error}", b"")
    text = encode_base64url(raw)
    author = codecs.author_of(file.name, raw)
    for verdict in (codecs.check_id(file.name, raw), codecs.check_node(raw, keys.value.get(author))):
        if verdict.verdict != codecs.OK:
            return None, reject(str(file), 0, f"corrupt: {verdict.reason}", text)
    kind = 0 if isinstance(node, forest.Identity) else 1 if isinstance(node, forest.Community) else 2
    return ImportEntry((kind, node.depth, node.created), text.decode(), file.name), None
