"""`trellis import --grove` and `export --grove`: the forest from and to a directory of the reference relay."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from gateway.adapter import TransferReport
from gateway.settings.settings import Settings

from .common import Adapters, CommandError, say, visible
from .offline import open_offline

FORMAT: Final = "grove"  # of `Adapter.file_format`


def import_grove(settings: Settings, adapters: Adapters, folder: Path) -> None:
    """Import the nodes in the grove *folder*."""
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a directory", param_hint="--grove")
    with open_offline(settings, adapters) as here:
        report = here.files(FORMAT).read([folder], here.wait_until_idle)
    unkept = f", {len(report.unkept)} not kept" if report.unkept else ""
    typer.echo(f"{report.done} nodes imported, {report.known} known already{unkept}, faults: {len(report.faults)}")
    for name, reason in report.unkept:
        say(f"{visible(name)}: {visible(reason)}")
    _complain(report)


def export_grove(settings: Settings, adapters: Adapters, folder: Path) -> None:
    """Write the forest into the grove *folder*."""
    if not (settings.data / "log").is_dir():
        raise CommandError(f"there is no log in {settings.data}; name its directory with --data")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write {folder}: {error.strerror}") from None
    with open_offline(settings, adapters) as here:
        report = here.files(FORMAT).write(folder, here.wait_until_idle)
    typer.echo(f"{report.done} nodes exported, {report.known} there already, faults: {len(report.faults)}")
    _complain(report)


def _complain(report: TransferReport) -> None:
    for name, reason in report.faults:
        say(f"{visible(name)}: {visible(reason)}")
    if report.faults:
        raise CommandError("faulty nodes were left out; all others are complete")
