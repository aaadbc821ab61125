"""A grove: a directory of the reference that holds a forest, one node in each file.

The name of a file is the id of the node that it holds; other files are ignored. The reference does not compare name and
content, and fails at every file that holds no node; here such a file is reported and skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from adapters.sprout.forest.forest import Community, Identity, NodeError, decode, node_id
from adapters.sprout.forest.trusted_gateways import is_node_id
from adapters.sprout.forest.validate import EXPIRED
from adapters.sprout.intake.outcome import NodeOutcome
from adapters.sprout.sessions.session import SproutSession
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import NodeLine, node_line
from gateway.core.errors import Unavailable
from gateway.core.message import Form, Message, PendingForm
from gateway.core.principal import Principal
from gateway.storage.record import Entry, decode_base64url

if TYPE_CHECKING:
    from .adapter import SproutAdapter

PREFIX: Final = "SHA512_"  # of the names that the reference takes for nodes
OPERATOR: Final = "sprout:operator"  # the principal that imports
GATHER: Final = 256  # nodes between two waits for the disk


class Flaw(NamedTuple):
    """A file or node that cannot be imported, and the reason."""

    name: str
    reason: str


@dataclass
class GroveReport:
    """The number of nodes imported or written, of those that existed already, and everything that is wrong.

    `unkept` are valid nodes that are not kept, each with its reason.
    """

    done: int = 0
    known: int = 0
    unkept: list[Flaw] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)


class _SortKey(NamedTuple):
    """Sorts nodes so that authors and parents come first."""

    type: int
    depth: int
    created: int
    path: Path


def scan_grove(folder: Path) -> tuple[list[Path], list[Flaw]]:
    """The files of the grove *folder* that hold nodes, authors and parents first, and the flaws of all others."""
    places: list[_SortKey] = []
    flaws: list[Flaw] = []
    for path in folder.iterdir():
        if path.name.startswith(PREFIX):
            found = _read_file(path)
            if isinstance(found, Flaw):
                flaws.append(found)
            else:
                places.append(found)
    return [place.path for place in sorted(places)], sorted(flaws)


def _read_file(path: Path) -> _SortKey | Flaw:
    try:
        raw = path.read_bytes()
        node = decode(raw)
    except OSError as error:
        return Flaw(path.name, f"it cannot be read: {error.strerror}")
    except NodeError as error:
        return Flaw(path.name, f"it holds no node: {error}")
    if (id := node_id(raw)) != path.name:
        return Flaw(path.name, f"its name is wrong: it holds {id}")
    type = 0 if isinstance(node, Identity) else 1 if isinstance(node, Community) else 2
    return _SortKey(type, node.depth, node.created, path)


def import_grove(adapter: SproutAdapter, folder: Path, settle: Callable[[], None]) -> GroveReport:
    """Import the nodes of the grove *folder* as if a peer announced them; *settle* waits for the disk.

    Every node is checked like an announced one, except for rights: a user who can write to the data directory may
    import.
    """
    paths, flaws = scan_grove(folder)
    raws = (path.read_bytes() for path in paths)
    report = import_nodes(adapter, (node_line(node_id(raw), raw) for raw in raws), settle)
    report.flaws[:0] = flaws
    return report


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


def import_nodes(adapter: SproutAdapter, lines: Iterable[NodeLine], settle: Callable[[], None]) -> GroveReport:
    """Import the nodes on *lines*, authors and parents first, as `import_grove` does.

    A node that would not be kept for itself is kept if a descendant is kept, as if it had been requested.
    """
    report = GroveReport()
    session = adapter.open(SproutSession, Principal(OPERATOR))
    session.link = True  # it carries nodes of many authors
    left: dict[str, NodeLine] = {}
    for count, line in enumerate(lines, 1):
        if adapter.parts.nodes.info(line.id) is not None:
            report.known += 1
        else:
            _plant(line, partial(_take, adapter, session, settle), report, left)
        if not count % GATHER:
            settle()
            session.data_to_send()  # discards what is announced to it
    session.receive_eof()
    settle()
    for flaws in (report.unkept, report.flaws):  # some of these were imported later, for nodes below them
        unkept = [flaw for flaw in flaws if adapter.parts.nodes.info(flaw.name) is None]
        report.done += len(flaws) - len(unkept)
        flaws[:] = unkept
    return report


def _plant(
    line: NodeLine, take: Callable[[NodeLine, bool], NodeOutcome], report: GroveReport, left: dict[str, NodeLine]
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
        report.flaws.append(Flaw(line.id, taken.reason or f"it needs {' and '.join(taken.missing)}"))
    elif taken.dropped:
        report.unkept.append(Flaw(line.id, taken.dropped))
    else:
        report.done += 1


def _take(
    adapter: SproutAdapter, session: SproutSession, settle: Callable[[], None], line: NodeLine, asked: bool
) -> NodeOutcome:
    while True:
        try:
            return adapter.parts.intake.take(line, session, asked=asked)
        except Unavailable:
            settle()


def export_grove(adapter: SproutAdapter, folder: Path, settle: Callable[[], None]) -> GroveReport:
    """Write every node that Arbor is offered into the grove *folder*; *settle* waits until pending ones are signed."""
    report = GroveReport()
    for line in _form_lines(adapter, settle):
        name, _, wire = line.partition(b" ")
        _write(folder, name.decode(), base64url.decode(wire), report)
    return report


def _write(folder: Path, name: str, raw: bytes, report: GroveReport) -> None:
    """Write one node to a new file whose name is its id, which is checked and so cannot contain a path."""
    if not is_node_id(name) or node_id(raw) != name:
        report.flaws.append(Flaw(name, "its id in the log is wrong"))
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
            report.flaws.append(Flaw(name, "a file of that name holds something else, and was not changed"))


def _form_lines(adapter: SproutAdapter, settle: Callable[[], None]) -> Iterator[bytes]:
    """The line of every node, in the order of the log, including the nodes that are signed for it."""
    log, index, first = adapter.services.log, adapter.services.index, 1
    while first < log.next_seq:
        seqs = range(first, min(first + GATHER, log.next_seq))
        forms = [_form(adapter, index.entry(seq)) for seq in seqs if adapter.parts.nodes.lineage.is_complete(seq)]
        if any(isinstance(form, PendingForm) and not form.done for form in forms):
            settle()
        for form in forms:
            line = form.data if isinstance(form, PendingForm) else form
            if line is not None:
                yield line
        first = seqs.stop


def _form(adapter: SproutAdapter, entry: Entry | None) -> Form | None:
    if isinstance(entry, Message):
        return None if entry.protocol != NAME and NAME in entry.undelivered else adapter.parts.nodes.entry_line(entry)
    if entry is None or entry.kind != "entity" or entry.protocol != NAME:
        return None
    return adapter.parts.nodes.entry_line(entry)
