"""`trellis import` of dumps of stream messages, and of folders that `trellis pipeline import` made.

Each message and node is published in the data directory, without listeners, by the rules of its protocol, so it gets
its form in all protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import typer

from gateway.adapter import TransferReport
from gateway.settings.settings import Settings
from gateway.storage.record import Entry

from .common import Adapters, CommandError, say, visible
from .offline import open_offline

FORMAT: Final = "dump"  # of `Adapter.file_format`


def import_dumps(settings: Settings, adapters: Adapters, files: list[Path]) -> None:
    """Publish the stream messages in *files*: responses of the broker's data API, in any of its formats."""
    with open_offline(settings, adapters) as here:
        report = here.files(FORMAT).read(files, here.wait_until_idle)
    _tell([report], "messages")


def import_unpublished(settings: Settings, adapters: Adapters, entries: Callable[[], Iterable[Entry]]) -> None:
    """Publish the nodes in *entries*, which come after their authors and parents, and then the messages."""
    with open_offline(settings, adapters) as here:
        reports = [
            here.files(adapter.file_format).publish(entries(), here.wait_until_idle)
            for adapter in adapters
            if adapter.file_format and any(entry.protocol == adapter.name for entry in entries())
        ]
    _tell(reports, "messages and nodes")


def _tell(reports: list[TransferReport], what: str) -> None:
    done, known = sum(report.done for report in reports), sum(report.known for report in reports)
    faults = [fault for report in reports for fault in (*report.unkept, *report.faults)]
    typer.echo(f"{done} {what} imported, {known} known already, faults: {len(faults)}")
    for place, reason in faults:
        say(f"{visible(place)}: {visible(reason)}")
    if faults:
        raise CommandError("faulty entries were left out; all others were imported")
