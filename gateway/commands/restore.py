"""`trellis import` of dumps of stream messages, and of folders that `trellis pipeline import` made.

Each message and node is published in the data directory, without listeners, by the rules of its protocol, so it gets
its form in all protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from adapters.sprout import SproutAdapter, grove
from adapters.streamr import StreamrAdapter, dumps
from adapters.streamr.restore import restore
from adapters.streamr.wire.message import parse_message
from gateway.adapter import Adapter
from gateway.core.message import Message
from gateway.settings.settings import Settings
from gateway.storage.record import Entry

from .common import Adapters, CommandError, say, visible
from .offline import OfflineGateway, open_offline

if TYPE_CHECKING:
    from adapters.streamr.wire.message import StreamMessage

Kind = TypeVar("Kind", bound=Adapter)
Flaws = list[tuple[str, str]]


def import_dumps(settings: Settings, adapters: Adapters, files: list[Path]) -> None:
    """Publish the stream messages in *files*: responses of the broker's data API, in any of its formats."""
    flaws: Flaws = []
    with open_offline(settings, adapters) as here:
        report = restore(_adapter(here, StreamrAdapter), _dumped(files, flaws), here.wait_until_idle)
    _tell(report.done, report.known, [*flaws, *report.flaws], "messages")


def import_unpublished(settings: Settings, adapters: Adapters, entries: Callable[[], Iterable[Entry]]) -> None:
    """Publish the nodes in *entries*, which come after their authors and parents, and then the messages."""
    with open_offline(settings, adapters) as here:
        nodes = grove.GroveReport()
        if any(entry.protocol == SproutAdapter.name for entry in entries()):
            lines = (grove.entry_line(entry) for entry in entries() if entry.protocol == SproutAdapter.name)
            nodes = grove.import_nodes(_adapter(here, SproutAdapter), filter(None, lines), here.wait_until_idle)
        messages = restore(_adapter(here, StreamrAdapter), _logged(entries()), here.wait_until_idle)
    flaws = [*((flaw.name, flaw.reason) for flaw in (*nodes.unkept, *nodes.flaws)), *messages.flaws]
    _tell(nodes.done + messages.done, nodes.known + messages.known, flaws, "messages and nodes")


def _dumped(files: list[Path], flaws: Flaws) -> Iterator[tuple[str, StreamMessage]]:
    for file in files:
        try:
            for found in dumps.read_dump(file.read_bytes()):
                place = f"{file}, message {found.number}"
                if found.message is None:
                    flaws.append((place, found.fault))
                else:
                    yield place, found.message
        except (OSError, ValueError) as error:
            flaws.append((str(file), str(error)))


def _logged(entries: Iterable[Entry]) -> Iterator[tuple[str, StreamMessage]]:
    for entry in entries:
        if isinstance(entry, Message) and entry.protocol == StreamrAdapter.name and entry.wire is not None:
            yield f"record {entry.seq}", parse_message(entry.wire)


def _adapter(here: OfflineGateway, kind: type[Kind]) -> Kind:
    for adapter in here.gateway.adapters:
        if isinstance(adapter, kind):
            return adapter
    raise CommandError(f"{kind.title} is switched off; set {kind.name}.enabled to true for this")


def _tell(done: int, known: int, flaws: Flaws, what: str) -> None:
    typer.echo(f"{done} {what} imported, {known} known already, faults: {len(flaws)}")
    for place, reason in flaws:
        say(f"{visible(place)}: {visible(reason)}")
    if flaws:
        raise CommandError("faulty entries were left out; all others were imported")
