"""The commands `backup` and `restore`."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import time_ns
from typing import Annotated

import typer

from gateway.access.authorization import read_secret
from gateway.backup import bundle, restoring, snapshot
from gateway.backup.errors import BackupError
from gateway.backup.manifest import Manifest
from gateway.settings.settings import Settings
from gateway.storage import permissions
from gateway.system import machine
from gateway.system.directories import sync_directory

from .common import CommandError, ConfigFile, Data, load_settings, say, visible

PassphraseFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read the passphrase from the first line of this file, mode 0600.")
]


def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup; it must not exist yet.")],
    encrypt: Annotated[
        bool,
        typer.Option(
            "--encrypt", help="Ask for a passphrase, and encrypt it. --passphrase-file does so without asking."
        ),
    ] = False,
    passphrase_file: PassphraseFile = None,
    index: Annotated[
        bool, typer.Option("--index", help="Include the index; without it the first start rebuilds it from the log.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate, as for `serve`.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, as for `serve`.")] = None,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Write everything that a gateway keeps to one file.

    The log, all keys and identities, the certificate with its key, and the configuration file. The gateway may run:
    everything that it had acknowledged when the backup began is in it. The file has mode 0600, because it holds every
    secret.

    \b
    Examples:
      trellis backup monday.trellis
      trellis backup monday.trellis --passphrase-file passphrase
    """
    settings = load_settings(context, config, {"data": data, "tls_cert": tls_cert, "tls_key": tls_key})
    passphrase = _passphrase(passphrase_file, again=True) if encrypt or passphrase_file is not None else None
    machine.raise_descriptors()
    if not file.absolute().parent.is_dir():
        raise CommandError(f"{file.parent} is not a directory; make it, or name the file in another one")
    try:
        manifest = _write(file.absolute(), settings, _outside(settings, config), passphrase, index=index)
    except (OSError, sqlite3.Error, ValueError, KeyError) as error:
        raise CommandError(f"the backup failed: {error}") from None
    typer.echo(_summary(manifest))


def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `backup` wrote.")],
    check: Annotated[bool, typer.Option("--check", help="Only check the backup; write nothing.")] = False,
    passphrase_file: PassphraseFile = None,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Make a data directory from a backup.

    The directory must be empty or not exist. Everything is checked before anything is written; if anything is damaged,
    nothing is written, and the place of the damage is named.

    \b
    Examples:
      trellis restore monday.trellis --data copy
      trellis restore monday.trellis --check
    """
    directory = load_settings(context, config, {"data": data}).data
    ask = partial(_passphrase, passphrase_file, again=False)
    try:
        manifest = bundle.read(file, ask, bundle.skip) if check else restoring.restore(file, directory, ask)
    except OSError as error:
        raise CommandError(f"{error.filename or file}: {error.strerror}") from None
    typer.echo(_summary(manifest))
    if not check:
        for name, origin in manifest.origins.items():
            say(visible(f"{restoring.target(directory, name)} was {origin}"))


def _write(
    file: Path, settings: Settings, outside: dict[str, Path], passphrase: str | None, *, index: bool
) -> Manifest:
    """Write the backup to a temporary file beside *file*, and rename that when it is complete and on disk."""
    if file.exists():
        raise BackupError(f"{file} exists already; choose another name")
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    with ExitStack() as stack:
        stack.callback(unfinished.unlink, missing_ok=True)
        descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, permissions.FILE_MODE)
        out = stack.enter_context(os.fdopen(descriptor, "wb"))
        created = time_ns() // 1_000_000
        sources = snapshot.take(settings.data, outside, stack, file.parent, index=index)
        identity = json.loads(read_secret(settings.data / "keys" / "gateway.json"))
        manifest = Manifest(
            gateway=identity["id"],
            version=version("trellis-gateway"),
            created=created,
            last_seq=snapshot.last_seq(sources),
            files=tuple(bundle.entry_of(source) for source in sources),
            origins={name: str(path.absolute()) for name, path in outside.items()},
        )
        bundle.write(out, manifest, sources, passphrase)
        out.flush()
        os.fsync(out.fileno())
        unfinished.rename(file)
        sync_directory(file.parent)
    return manifest


def _outside(settings: Settings, config: Path | None) -> dict[str, Path]:
    """The files outside the data directory that a gateway with these settings needs, by their names in a backup."""
    found = {"tls/cert.pem": settings.tls_cert, "tls/key.pem": settings.tls_key, "config/trellis.toml": config}
    for _, value in settings:
        authorities = getattr(value, "authorities", None)
        if isinstance(authorities, Path):
            found["tls/authorities.pem"] = authorities
    return {name: path for name, path in found.items() if path is not None}


def _passphrase(file: Path | None, *, again: bool) -> str:
    """The passphrase from *file*, or from the terminal, where it is asked for twice if *again*."""
    if file is None:
        found: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=again, err=True)
        return found
    try:
        found = read_secret(file).decode().partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError as error:
        raise CommandError(str(error)) from None
    if not found:
        raise CommandError(f"{file} has no passphrase in its first line")
    return found


def _summary(manifest: Manifest) -> str:
    return (
        f"{len(manifest.files)} files, {manifest.size} bytes, records up to {manifest.last_seq}, "
        f"of the gateway {visible(manifest.gateway)}"
    )
