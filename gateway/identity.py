"""Which gateway this is (`keys/gateway.json`), and whether the log in the same directory is its own.

The first record of a log says which gateway began it. A log that another gateway began, as after `export` and
`import`, comes without that gateway's keys: its Arbor identity, its API keys and its Streamr addresses would be others.
So `serve` refuses it until it is told to adopt it; the identity then names the gateways whose logs it has adopted.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.access.authorization import SecretFileError, read_secret, write_secret
from gateway.storage.layout import Layout
from gateway.storage.record import BadRecord, Fact, decode_untrusted_body
from gateway.storage.segments import verify_line

from .adapter import Installation

FILE = "gateway.json"
START = b'"kind":"start"'  # in the line of the fact that each run begins with
UNKNOWN = "unknown"  # the gateway that began a log in which no record says so


def load_or_create(keys: Path, version: str) -> Installation:
    """The identity of the gateway with the folder *keys*; generated at the first start."""
    path = keys / FILE
    if not path.exists():
        write_secret(path, json.dumps({"id": secrets.token_hex(8), "secret": secrets.token_hex(32)}).encode())
    try:
        found = json.loads(read_secret(path))
        return Installation(keys, found["id"], version, bytes.fromhex(found["secret"]))
    except SecretFileError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise SecretFileError(
            f"{path} does not say which gateway this is ({error}); restore it from a backup"
        ) from None


def foreign_origin(data: Path) -> str | None:
    """The id of the other gateway that began the log in *data* and was not adopted; None if there is none.

    `UNKNOWN` if the log has records, the directory has no identity, and no record says which gateway began it.
    """
    path = data / "keys" / FILE
    origin = _origin(data / "log")
    if not path.exists():
        return origin
    with suppress(ValueError, AttributeError, TypeError):  # a damaged identity is reported when it is loaded
        known = json.loads(read_secret(path))
        own = (known.get("id"), *known.get("adopted", ()))
        return origin if origin not in (None, UNKNOWN, *own) else None
    return None


def adopt(data: Path, origin: str, version: str) -> None:
    """Note in the identity of the gateway in *data* that the log of the gateway *origin* is its own from now on."""
    keys = data / "keys"
    load_or_create(keys, version)
    known: dict[str, Any] = json.loads(read_secret(keys / FILE))
    known["adopted"] = [*known.get("adopted", ()), origin]
    write_secret(keys / FILE, json.dumps(known).encode())


def _origin(log: Path) -> str | None:
    """Which gateway began the *log*; None if it has no record."""
    if not log.is_dir():
        return None
    empty = True
    for line in _first_lines(log):
        empty = False
        if START in line:
            with suppress(BadRecord):
                _, _, body = verify_line(line)
                entry = decode_untrusted_body(body)
                if isinstance(entry, Fact) and entry.kind == "start":
                    return str(entry.fields.get("gateway"))
    return None if empty else UNKNOWN


def _first_lines(log: Path) -> Iterator[bytes]:
    """All lines of the first file, and the first line of each other file: a run begins a file with its first record."""
    layout = Layout.read(log)
    for place in range(len(layout.first_seqs)):
        with suppress(FileNotFoundError), layout.file(log, place).open("rb") as file:
            if place == 0:
                yield from file
            else:
                yield file.readline()
