"""The options of a run of the pipeline: typed, and checked once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gateway.core.errors import OperatorError

from .places import ObjectPath, Place, local_folder, place

BATCH_BYTES = 256 << 20  # of segments that become one batch, unless one alone has more
BATCH_SEGMENTS = 2_000
HEAP_MEGABYTES = 1024
INTERVAL_SECONDS = 5.0  # between two polls of the source with --follow
KEEP_HOURS = 1  # how long the files of older versions are kept
FORMAT = 2  # of the warehouse: Delta tables, whose commits hold their `TableState`
FORMAT_FILE = "_warehouse.json"
MANIFEST = "_manifest.json"  # of each table in format 1
NO_PATH = frozenset("#%?")  # the package `deltalake` takes them for parts of a URL
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


class BadOption(OperatorError, ValueError):
    """An option is not valid; the text names it."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """A gateway's log directory, the data directory that contains it, or an exported file."""

    given: Path

    @property
    def directory(self) -> Path:
        """The log directory; looked up at each access, because a gateway creates it at its first start."""
        inner = self.given / "log"
        return inner if inner.is_dir() else self.given


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A gateway whose log is read over HTTP; *key* is an API key with the right `admin:*`."""

    url: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class GroveSource:
    """A directory of the Arbor reference, for `import`."""

    directory: Path


@dataclass(frozen=True, slots=True)
class DumpSource:
    """A file of messages as a Streamr broker resends them, or a folder of such files, for `import`."""

    path: Path


Source = LogSource | HttpSource | GroveSource | DumpSource


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a job.

    *warehouse* is the directory of the tables. If they are in *objects* instead, it has only locks and the report.
    *heap_megabytes* is the heap of the driver and of each executor. *publish* is the URL of the gateway on which
    statistics are published, *key* an API key for it and for the source. *query* is for the job `sql`, which prints
    rows for people, or *as_json*.
    """

    warehouse: Path
    source: Source | None = None
    master: str = "local[*]"
    follow: bool = False
    interval_seconds: float = INTERVAL_SECONDS
    heap_megabytes: int = HEAP_MEGABYTES
    batch_bytes: int = BATCH_BYTES
    batch_segments: int = BATCH_SEGMENTS
    keep_hours: int = KEEP_HOURS
    keep_days: int | None = None
    publish: str | None = None
    key: str | None = None
    output: Path | None = None
    query: str | None = None
    as_json: bool = False
    java_options: str = ""
    objects: ObjectPath | None = None

    @property
    def tables(self) -> Place:
        """Where the tables are."""
        return self.warehouse if self.objects is None else self.objects


def source(text: str, key: str | None = None) -> Source:
    """Parse `log:DIR`, `http:URL` (a bare URL will do), `grove:DIR` or `streamr:PATH`; raise `BadOption` for others.

    DIR is a log directory or the data directory that contains it; an exported log may be one file.
    """
    kind, _, rest = text.partition(":")
    if kind == "log" and rest:
        return LogSource(Path(rest).absolute())
    if kind in ("http", "https") and rest:
        url = text if rest.startswith("//") else rest
        if _is_url(url):
            return HttpSource(url.rstrip("/"), key)
    if kind == "grove" and rest:
        return GroveSource(Path(rest).absolute())
    if kind == "streamr" and rest:
        return DumpSource(Path(rest).absolute())
    raise BadOption(f"--source {text!r} is neither log:DIR nor http:URL (for import: grove:DIR or streamr:PATH)")


def warehouse(text: str) -> Place:
    """Parse the directory of the tables, or `s3a://BUCKET/PREFIX`; raise `BadOption` for a URL of anything else."""
    path = text.removeprefix("file://")
    if not NO_PATH.isdisjoint(path):
        raise BadOption(
            f"--warehouse {text!r}: the path of Delta tables may not have {', '.join(sorted(NO_PATH))} in it"
        )
    found = place(path)
    if isinstance(found, Path):
        if _SCHEME.match(path):
            raise BadOption(f"--warehouse {text!r} is neither a directory nor s3a://BUCKET/PREFIX")
        return found.absolute()
    if not all(found.key.split("/")):
        raise BadOption(f"--warehouse {text!r}: a bucket, or a part between two slashes, is empty")
    return found


def local(at: Place, environment: Mapping[str, str]) -> Path:
    """Return the directory of a warehouse on this machine: *at*, or for an object store one in the user's cache."""
    return at if isinstance(at, Path) else local_folder(at, cache_home(environment))


def objects(at: Place) -> ObjectPath | None:
    """Return where the tables of the warehouse *at* are, if they are in an object store."""
    return None if isinstance(at, Path) else at


def cache_home(environment: Mapping[str, str]) -> Path:
    """Return the folder for what a user can delete."""
    return Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/"), ".cache"))


def gateway_url(text: str) -> str:
    """Parse the URL of a gateway for `--publish`; raise `BadOption` for anything else."""
    if not _is_url(text):
        raise BadOption(f"--publish {text!r} is no URL such as http://127.0.0.1:8080")
    return text.rstrip("/")


def bearer(key: str | None) -> dict[str, str]:
    """Return the request headers that carry the API key *key*."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def is_temporary(status: int) -> bool:
    """Whether a gateway that answers with *status* may answer otherwise later: it is busy, ends or begins."""
    return status == 429 or status >= 500


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
