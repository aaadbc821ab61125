"""A grove: a directory of the reference that holds a forest, one node in each file.

The name of a file is the id of the node that it holds; other files are ignored. The reference does not compare name and
content, and fails at every file that holds no node; here such a file is reported and skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from adapters.sprout.announced.intake import Intake
from adapters.sprout.announced.outcome import NodeOutcome
from adapters.sprout.forest.forest import Community, Identity, NodeError, decode, is_node_id, node_id
from adapters.sprout.forest.node_rules import EXPIRED
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.sessions.session import SproutSession
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import NodeLine, node_line
from gateway.adapter import ProtocolFiles, TransferFault, TransferReport
from gateway.core.errors import OperatorError, Unavailable
from gateway.core.message import Form, Message, PendingForm
from gateway.core.principal import Principal
from gateway.storage.index import Index
from gateway.storage.log import Log
from gateway.storage.record import Entry, decode_base64url

PREFIX: Final = "SHA512_"  # of the names that the reference takes for nodes
OPERATOR: Final = "sprout:operator"  # the principal that imports
GATHER: Final = 256  # nodes between two waits for the disk


class EmptyGrove(OperatorError):
    """There is nothing to import; the text says what was expected."""


class _SortKey(NamedTuple):
    """Sorts nodes so that authors and parents come first."""

    type: int
    depth: int
    created: int
    path: Path


def scan_grove(folder: Path) -> tuple[list[Path], list[TransferFault]]:
    """The files of the grove *folder* that hold nodes, authors and parents first, and the flaws of all others."""
    places: list[_SortKey] = []
    flaws: list[TransferFault] = []
    for path in folder.iterdir():
        if path.name.startswith(PREFIX):
            found = _read_file(path)
            if isinstance(found, TransferFault):
                flaws.append(found)
            else:
                places.append(found)
    return [place.path for place in sorted(places)], sorted(flaws)


def _read_file(path: Path) -> _SortKey | TransferFault:
    try:
        raw = path.read_bytes()
        node = decode(raw)
    except OSError as error:
        return TransferFault(path.name, f"it cannot be read: {error.strerror}")
    except NodeError as error:
        return TransferFault(path.name, f"it holds no node: {error}")
    if (id := node_id(raw)) != path.name:
        return TransferFault(path.name, f"its name is wrong: it holds {id}")
    type = 0 if isinstance(node, Identity) else 1 if isinstance(node, Community) else 2
    return _SortKey(type, node.depth, node.created, path)


def entry_line(entry: Entry) -> NodeLine | None:
    """The node in *entry*; None if it has none."""
    wire = entry.wire if isinstance(entry, Message) else entry.fields.get("wire")
    if wire is None:
        return None
    try:
        raw = decode_base64url(wire)
    except (ValueError, TypeError):
        return None
    return node_line(node_id(raw), raw)


class Groves(ProtocolFiles):
    """Groves, and nodes that stand in none; *open* opens a session, and *log* and *index* are those of *nodes*.

    Nodes come as if a peer announced them. Pending ones are signed before they are written.
    """

    def __init__(
        self, open: Callable[[Principal], SproutSession], nodes: NodeDirectory, intake: Intake, log: Log, index: Index
    ) -> None:
        self._open = open
        self._nodes = nodes
        self._intake = intake
        self._log = log
        self._index = index

    def read(self, paths: Sequence[Path], settle: Callable[[], None]) -> TransferReport:
        """Publish the nodes in *paths*, which is one grove; raises `EmptyGrove` if it has none."""
        (folder,) = paths
        files, flaws = scan_grove(folder)
        raws = (path.read_bytes() for path in files)
        report = self._import((node_line(node_id(raw), raw) for raw in raws), settle)
        report.faults[:0] = flaws
        if report == TransferReport():
            raise EmptyGrove(
                f"there are no nodes in {folder}: the files of a grove have names that begin with {PREFIX}"
            )
        return report

    def publish(self, entries: Iterable[Entry], settle: Callable[[], None]) -> TransferReport:
        """Publish the nodes in *entries*, authors and parents first."""
        lines = (entry_line(entry) for entry in entries if entry.protocol == NAME)
        return self._import(filter(None, lines), settle)

    def write(self, folder: Path, settle: Callable[[], None]) -> TransferReport:
        """Write every node that Arbor is offered into the grove *folder*."""
        report = TransferReport()
        for line in self._form_lines(settle):
            name, _, wire = line.partition(b" ")
            _write(folder, name.decode(), base64url.decode(wire), report)
        return report

    def _import(self, lines: Iterable[NodeLine], settle: Callable[[], None]) -> TransferReport:
        """Import the nodes on *lines*, authors and parents first.

        A node that would not be kept for itself is kept if a descendant is kept, as if it had been requested.
        """
        report = TransferReport()
        session = self._open(Principal(OPERATOR))
        session.link = True  # it carries nodes of many authors
        left: dict[str, NodeLine] = {}
        for count, line in enumerate(lines, 1):
            if self._nodes.info(line.id) is not None:
                report.known += 1
            else:
                _plant(line, partial(self._take, session, settle), report, left)
            if not count % GATHER:
                settle()
                session.data_to_send()  # discards what is announced to it
        session.receive_eof()
        settle()
        for flaws in (report.unkept, report.faults):  # some of these were imported later, for nodes below them
            unkept = [flaw for flaw in flaws if self._nodes.info(flaw.name) is None]
            report.done += len(flaws) - len(unkept)
            flaws[:] = unkept
        return report

    def _take(self, session: SproutSession, settle: Callable[[], None], line: NodeLine, requested: bool) -> NodeOutcome:
        while True:
            try:
                return self._intake.take(line, session, requested=requested)
            except Unavailable:
                settle()

    def _form_lines(self, settle: Callable[[], None]) -> Iterator[bytes]:
        """The line of every node, in the order of the log, including the nodes that are signed for it."""
        first = 1
        while first < self._log.next_seq:
            seqs = range(first, min(first + GATHER, self._log.next_seq))
            forms = [self._form(self._index.entry(seq)) for seq in seqs if self._nodes.lineage.is_complete(seq)]
            if any(isinstance(form, PendingForm) and not form.done for form in forms):
                settle()
            for form in forms:
                line = form.data if isinstance(form, PendingForm) else form
                if line is not None:
                    yield line
            first = seqs.stop

    def _form(self, entry: Entry | None) -> Form | None:
        if isinstance(entry, Message):
            return None if entry.protocol != NAME and NAME in entry.undelivered else self._nodes.entry_line(entry)
        if entry is None or entry.kind != "entity" or entry.protocol != NAME:
            return None
        return self._nodes.entry_line(entry)


def _plant(
    line: NodeLine, take: Callable[[NodeLine, bool], NodeOutcome], report: TransferReport, left: dict[str, NodeLine]
) -> None:
    """Import the node on *line*, and those that it needs of the ones *left* out so far, which are tried once more."""
    wanted = [line]
    while wanted:
        taken = take(wanted[-1], len(wanted) > 1)
        needed = [left.pop(id) for id in taken.missing if id in left]
        if needed:
            wanted += needed
        else:
            wanted.pop()
    if taken.dropped or taken.reason == EXPIRED:
        left[line.id] = line
    if taken.reason or taken.missing:
        report.faults.append(TransferFault(line.id, taken.reason or f"it needs {' and '.join(taken.missing)}"))
    elif taken.dropped:
        report.unkept.append(TransferFault(line.id, taken.dropped))
    else:
        report.done += 1


def _write(folder: Path, name: str, raw: bytes, report: TransferReport) -> None:
    """Write one node to a new file whose name is its id, which is checked and so cannot contain a path."""
    if not is_node_id(name) or node_id(raw) != name:
        report.faults.append(TransferFault(name, "its id in the log is wrong"))
        return
    path = folder / name
    try:
        with path.open("xb") as file:
            file.write(raw)
        report.done += 1
    except FileExistsError:
        if path.is_file() and path.read_bytes() == raw:
            report.known += 1
        else:
            report.faults.append(TransferFault(name, "a file of that name holds something else, and was not changed"))
