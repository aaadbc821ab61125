"""The commands `check-config`, `verify`, `export` and `import`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from gateway.settings.settings import Settings
from gateway.storage import archive, importing, permissions
from gateway.storage.layout import BEYOND_ALL
from gateway.storage.record import decode_untrusted
from gateway.system.data_lock import lock

from .common import (
    Adapters,
    AsJson,
    CommandError,
    ConfigFile,
    Data,
    data_directory,
    load_settings,
    registry,
    say,
    show,
    visible,
)

SHOWN_FAULTS = 10  # of a file; its number of faults is always printed
_LEFT_OUT = "records that are not valid were left out; all others are in the log"
_FOREIGN = "nothing was imported: none of the {:,} lines is a record that `trellis export` wrote (the first: {})"
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key that TOML takes without quotes


def check_config(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None, data: Data = None) -> None:
    """Check the configuration, and print it.

    It is read as by `serve`, and printed as TOML. If there are faults, each is named by its key, and the exit code is
    2.

    \b
    Examples:
      trellis check-config
      trellis check-config --config /etc/trellis.toml --json
    """
    found = load_settings(context, config, {"data": data}).model_dump(mode="json")
    show(found, as_json, "\n".join(["# ok", *toml_lines(found)]))


def verify(context: typer.Context, as_json: AsJson = False, data: Data = None, config: ConfigFile = None) -> None:
    """Check every record of the log.

    Checksums, sequences without a gap, times that never decrease; the ids of nodes, and every signature. Changes
    nothing; the gateway may run.

    \b
    Examples:
      trellis verify
      trellis verify --data /var/lib/trellis --json
    """
    directory = _log_directory(context, config, data)
    report = archive.verify(directory, _check(registry(context)))
    text = f"{report.records} records, {report.first} to {report.last}, faults: {len(report.faults)}"
    faults = [fault._asdict() for fault in report.faults]
    show({"records": report.records, "first": report.first, "last": report.last, "faults": faults}, as_json, text)
    _complain(report, "the log has faults; nothing was changed")


def export(
    context: typer.Context,
    after: Annotated[int, typer.Option(min=0, help="Only records after this sequence.")] = 0,
    until: Annotated[
        int, typer.Option(min=0, help="Only records up to this sequence.", show_default=False)
    ] = BEYOND_ALL,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file.  [default: standard output]")] = None,
    grove: Annotated[Path | None, typer.Option(metavar="DIR", help="Write Arbor's forest there instead.")] = None,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Write the log's records, one a line.

    They are written as they are on disk (JSON lines); `import` reads them. Changes nothing; the gateway may run.

    With --grove the nodes of the Arbor forest are written instead, each to a file of its own, as the reference relay
    keeps them. Bridged messages are among them, signed by the gateway. No gateway may run meanwhile.

    \b
    Examples:
      trellis export -o log.jsonl
      trellis export --after 1000 | gzip > log.jsonl.gz
      trellis export --grove grove
    """
    if grove is not None:
        from .grove_commands import export_grove  # the whole gateway, which the other commands do not need

        export_grove(load_settings(context, config, {"data": data}), registry(context), grove)
        return
    directory = _log_directory(context, config, data)
    with ExitStack() as stack:
        out = sys.stdout.buffer if output is None else stack.enter_context(_created(output))
        report = archive.export(directory, out, after, until)
    say(f"{report.records} records")
    _complain(report, "records that are not valid were left out; all others were written")


def import_(
    context: typer.Context,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="What `export` wrote, or a folder of segments.")
    ] = None,
    streamr: Annotated[
        bool, typer.Option("--streamr", help="The files are resends of a Streamr broker: object, protocol or raw.")
    ] = False,
    grove: Annotated[Path | None, typer.Option(metavar="DIR", help="Import the nodes of this grove.")] = None,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Put exported records into the log.

    Into an empty data directory they are copied unchanged; to any other one messages are appended with new sequences,
    and known messages are skipped. No gateway may run with that data directory meanwhile.

    With --grove the nodes in a directory of the reference relay are imported as if they were announced. A file whose
    name is wrong, or that holds no valid node, is reported and skipped. With --streamr the responses of a broker's data
    API are published again, and so is a folder that `trellis pipeline import` made.

    \b
    Examples:
      trellis import log.jsonl --data copy
      trellis import --grove ~/.local/share/arbor/grove
      trellis import --streamr stream.json
    """
    if (grove is None) == (not files) or (streamr and not files):
        raise typer.BadParameter("give either files or --grove", param_hint="FILE")
    if grove is not None:
        from .grove_commands import import_grove

        import_grove(load_settings(context, config, {"data": data}), registry(context), grove)
        return
    chosen = [path for file in files or [] for path in _within(file)]
    if streamr or archive.is_unpublished(chosen):
        _publish_again(load_settings(context, config, {"data": data}), registry(context), chosen, streamr)
    else:
        _import_files(context, chosen, data, config)


def _within(path: Path) -> list[Path]:
    """Return the file *path*, or the segments in that folder, in order."""
    if path.is_dir():
        return archive.sealed_files(path)
    if not path.is_file():
        raise typer.BadParameter(f"{path} is neither a file nor a folder", param_hint="FILE")
    return [path]


def _publish_again(settings: Settings, adapters: Adapters, files: list[Path], streamr: bool) -> None:
    from .import_dumps import import_dumps, import_unpublished  # the whole gateway

    if streamr:
        import_dumps(settings, adapters, files)
    else:
        import_unpublished(settings, adapters, lambda: map(decode_untrusted, _lines(files)))


def _import_files(context: typer.Context, files: list[Path], data: Path | None, config: Path | None) -> None:
    from gateway.identity import foreign_origin  # the other commands start faster without them
    from gateway.runtime import clock

    directory = data_directory(context, config, data)
    permissions.make_directory(directory)
    taken = lock(directory)
    try:
        report = importing.import_log(_lines(files), directory, clock(), _check(registry(context)))
    finally:
        os.close(taken)
    if report.faults and not (report.records or report.skipped):
        raise CommandError(_FOREIGN.format(len(report.faults), visible(report.faults[0].reason)))
    typer.echo(f"{report.records} records imported, {report.skipped} skipped, refused: {len(report.faults)}")
    if (origin := foreign_origin(directory)) is not None:
        say(
            f"the gateway {origin} began this log, and an export has none of its keys: `trellis serve` needs --adopt "
            "(`trellis backup` and `trellis restore` keep the keys)"
        )
    _complain(report, _LEFT_OUT)


def _check(adapters: Adapters) -> archive.EntryCheck:
    """Return a function that checks an entry for every protocol, its content and its signature."""
    checks = [*(adapter.flaw for adapter in adapters), *(adapter.signature_check() for adapter in adapters)]
    return lambda entry: next(filter(None, (check(entry) for check in checks)), None)


def _log_directory(context: typer.Context, config: Path | None, data: Path | None) -> Path:
    directory = data_directory(context, config, data) / "log"
    if not directory.is_dir():
        raise CommandError(f"there is no log in {directory.parent}; name its directory with --data")
    return directory


def _created(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None


def _lines(files: list[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            yield from file


def _complain(report: archive.LogReport, outcome: str) -> None:
    """Print the first faults; if there is one, raise `CommandError` with the *outcome*."""
    for fault in report.faults[:SHOWN_FAULTS]:
        say(f"{fault.file or 'input'}, byte {fault.offset}: {visible(fault.reason)}")
    if (more := len(report.faults) - SHOWN_FAULTS) > 0:
        say(f"and {more} more")
    if report.faults:
        raise CommandError(outcome)


def toml_lines(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield each value with its dotted key; None becomes a comment. Secrets are stars by their type (`SecretStr`)."""
    for name, value in values.items():
        key = prefix + (name if _BARE.fullmatch(name) else json.dumps(name))
        if isinstance(value, dict) and value:
            yield from toml_lines(value, f"{key}.")
        elif value is None:
            yield f"# {key} ="
        else:
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
