"""File permissions of the data directory: only the gateway's own user may read it, whoever made the files."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_directory(path: Path) -> None:
    """Make the directory *path* and its parents if they do not exist."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


def restrict(data: Path) -> Iterator[OSError]:
    """Remove everybody else's permissions from the data directory *data*, its log and its databases.

    Yields an error for each file whose permissions cannot be changed.
    """
    log = data / "log"
    files = [*data.glob("*.sqlite*"), *(log.iterdir() if log.is_dir() else ())]
    for path in (data, log, data / "keys", *files):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & ~DIRECTORY_MODE:
                path.chmod(mode & DIRECTORY_MODE)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield error
