"""`trellis import --grove` and `export --grove`: the forest from and to a directory of the reference relay."""

from __future__ import annotations

from pathlib import Path

import typer

from adapters.sprout import SproutAdapter, grove
from gateway.settings.settings import Settings

from .common import Adapters, CommandError, say, visible
from .offline import OfflineGateway, open_offline


def import_grove(settings: Settings, adapters: Adapters, folder: Path) -> None:
    """Import the nodes in the grove *folder*."""
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a directory", param_hint="--grove")
    with open_offline(settings, adapters) as here:
        report = grove.import_grove(_adapter(here), folder, here.wait_until_idle)
    if report == grove.GroveReport():
        raise CommandError(
            f"there are no nodes in {folder}: the files of a grove have names that begin with {grove.PREFIX}"
        )
    unkept = f", {len(report.unkept)} not kept" if report.unkept else ""
    typer.echo(f"{report.done} nodes imported, {report.known} known already{unkept}, faults: {len(report.flaws)}")
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
        report = grove.export_grove(_adapter(here), folder, here.wait_until_idle)
    typer.echo(f"{report.done} nodes exported, {report.known} there already, faults: {len(report.flaws)}")
    _complain(report)


def _adapter(here: OfflineGateway) -> SproutAdapter:
    for adapter in here.gateway.adapters:
        if isinstance(adapter, SproutAdapter):
            return adapter
    raise CommandError(f"{SproutAdapter.title} is switched off; set {SproutAdapter.name}.enabled to true for this")


def _complain(report: grove.GroveReport) -> None:
    for name, reason in report.flaws:
        say(f"{visible(name)}: {visible(reason)}")
    if report.flaws:
        raise CommandError("faulty nodes were left out; all others are complete")
