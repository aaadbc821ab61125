"""What a run of the pipeline is told: typed, checked once, and passed along."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

BATCH_BYTES = 256 << 20  # of segments that become one batch, unless one alone has more
BATCH_SEGMENTS = 2_000
HEAP_MEGABYTES = 1024
INTERVAL_SECONDS = 5.0  # between two looks for something new, while following
GRACE_SECONDS = 3600.0  # for which files that were replaced are kept
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


class BadOption(ValueError):
    """An option that cannot be used; the text names it."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """The directory that a gateway keeps its log in, or the data directory around it; or an exported file."""

    given: Path

    @property
    def directory(self) -> Path:
        """The log itself; asked each time, since a gateway makes it when it starts first."""
        inner = self.given / "log"
        return inner if inner.is_dir() else self.given


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A gateway that is asked for its log; *key* is an API key with the right `admin`."""

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
    """Everything that a job needs to know.

    *heap_megabytes* are those of the driver and of each executor. *publish* is the URL of a gateway that is told the
    statistics, *key* an API key for it and for the source.
    """

    warehouse: Path
    source: Source | None = None
    master: str = "local[*]"
    follow: bool = False
    interval_seconds: float = INTERVAL_SECONDS
    heap_megabytes: int = HEAP_MEGABYTES
    batch_bytes: int = BATCH_BYTES
    batch_segments: int = BATCH_SEGMENTS
    grace_seconds: float = GRACE_SECONDS
    keep_days: int | None = None
    publish: str | None = None
    key: str | None = None
    output: Path | None = None
    java_options: str = ""


def source(text: str, key: str | None = None) -> Source:
    """Read `log:DIR`, `http:URL` (a bare URL will do), `grove:DIR` or `streamr:PATH`; `BadOption` where it is none.

    DIR is the log itself or the data directory around it; what was exported may be one file.
    """
    kind, _, rest = text.partition(":")
    if kind == "log" and rest:
        return LogSource(Path(rest).absolute())
    if kind in ("http", "https") and rest:
        url = text if rest.startswith("//") else rest
        if urlsplit(url).scheme in ("http", "https") and urlsplit(url).netloc:
            return HttpSource(url.rstrip("/"), key)
    if kind == "grove" and rest:
        return GroveSource(Path(rest).absolute())
    if kind == "streamr" and rest:
        return DumpSource(Path(rest).absolute())
    raise BadOption(f"--source {text!r} is neither log:DIR nor http:URL (for import: grove:DIR or streamr:PATH)")


def warehouse(text: str) -> Path:
    """The directory of the tables; `BadOption` for what is no directory of a mounted file system."""
    path = text.removeprefix("file://")
    if _SCHEME.match(path):
        raise BadOption(f"--warehouse {text!r}: only directories that every node has mounted; object stores not yet")
    return Path(path).absolute()
