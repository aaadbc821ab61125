"""A data directory from a backup: everything is checked before anything is written, and it appears as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gateway.storage import permissions
from gateway.system.directories import sync_directory

from . import bundle
from .errors import BackupError
from .manifest import BackupFile, Manifest

SPARE_BYTES = 64 << 20  # that have to be free in addition to the restored files


def restore(path: Path, data: Path, ask: bundle.AskPassphrase) -> Manifest:
    """Make the data directory *data*, which must not exist or be empty, from the backup at *path*.

    The backup is read twice: once to check it, once to write it into a folder beside *data*, which is renamed at the
    end. Raises `BackupError` or `OSError`, and leaves *data* as it was.
    """
    data = data.absolute()
    _check_empty(data)
    passphrase: list[str] = []

    def ask_once() -> str:
        passphrase[:] = passphrase or [ask()]
        return passphrase[0]

    manifest = bundle.read(path, ask_once, bundle.skip)
    data.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(data.parent).free) < manifest.size + SPARE_BYTES:
        raise BackupError(f"{data.parent} has {free:,} bytes free, and {manifest.size:,} are needed")
    folder = data.with_name(f".{data.name}.restoring")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _write(path, folder, ask_once)
        _check_empty(data)
        _replace(folder, data)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return manifest


def target(folder: Path, name: str) -> Path:
    """Where the file called *name* in a backup belongs below the data directory *folder*."""
    top, _, rest = name.partition("/")
    return folder / rest if top in ("index", "files") else folder / top / rest


def _write(path: Path, folder: Path, ask: bundle.AskPassphrase) -> None:
    for part in (folder, folder / "log", folder / "keys"):
        permissions.make_directory(part)

    def take(entry: BackupFile, pieces: Iterator[bytes]) -> None:
        place = target(folder, entry.name)
        permissions.make_directory(place.parent)
        with os.fdopen(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, permissions.FILE_MODE), "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())

    bundle.read(path, ask, take)
    for part in (*(each for each in folder.iterdir() if each.is_dir()), folder):
        sync_directory(part)


def _check_empty(data: Path) -> None:
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise BackupError(f"{data} is not empty; name a new folder with --data, so that nothing is overwritten")


def _replace(folder: Path, data: Path) -> None:
    """Rename *folder* to *data*, which is empty if it exists."""
    try:
        folder.rename(data)
    except OSError as error:
        raise BackupError(
            f"{data} cannot be replaced ({error.strerror}); if it is a mounted volume, name a folder in it"
        ) from None
    sync_directory(data.parent)
