"""The program's log, on standard error: levels, limits to lines that repeat, and nothing secret.

Laws of this file. Every line, of this program and of the libraries that it uses, passes the same limit, and the same
removal of secrets: what a peer sent must not fill the disk, reveal a key or control a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import structlog

from gateway.core.bounded_maps import BoundedMap

LINES_PER_SECOND = 5.0  # of one kind, once `BURST` lines have been written
BURST = 50.0
MAX_KINDS = 512  # that are limited each by itself
MAX_VALUE = 500  # characters of one value, unless it is a traceback
LONG = ("exception", "where")  # values of many lines
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
HIDDEN = "***"
ADMITTED = "admitted"  # a value of a line that the limit has admitted already: how many were left out before it
# API keys, as `gateway.access.keyfile` makes them; keys in URLs; what follows the scheme in an Authorization header.
_SECRETS = re.compile(
    r"(?P<key>trellis_)[\w-]{40,}|(?P<url>[?&]key=)[^&\s\"']+|(?P<header>(?i:bearer|basic)\s+)[\w.~+/=-]{8,}"
)


@dataclass(slots=True)
class _Kind:
    """Lines of one kind: how many may be written now, as of which time, and how many were left out lately."""

    tokens: float
    since: float
    left_out: int = 0


class LineLimit:
    """Limits how many lines of one kind are written, and counts those that are left out. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds = BoundedMap[str, _Kind](MAX_KINDS)
        self.left_out = 0  # since the start

    def admit(self, kind: str) -> int | None:
        """How many lines of this *kind* were left out before this one; None if this one is left out as well."""
        now = self._clock()
        with self._lock:
            row = self._kinds.get(kind)
            if row is None:
                row = self._kinds[kind] = _Kind(BURST, now)
            row.tokens = min(BURST, row.tokens + (now - row.since) * LINES_PER_SECOND)
            row.since = now
            if row.tokens < 1:
                row.left_out += 1
                self.left_out += 1
                return None
            row.tokens -= 1
            left_out, row.left_out = row.left_out, 0
            return left_out

    def take_overdue(self) -> list[tuple[str, int]]:
        """The kinds of which lines were left out, and of which none came for a second; with the number of lines."""
        now = self._clock()
        with self._lock:
            due = [(kind, row) for kind, row in self._kinds.items() if row.left_out and now - row.since > 1]
            counts = [(kind, row.left_out) for kind, row in due]
            for _, row in due:
                row.left_out = 0
        return counts


LIMIT = LineLimit()  # of this process, as logging itself is


def configure(form: str, level: str = "info") -> None:
    """Log to standard error from *level* on, in lines or as JSON (*form*); libraries log warnings and errors."""
    renderer: Any = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            _limited,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            _cleaned,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # looked up for each message: it may be replaced
    )
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        plain = _Formatter("%(asctime)s [%(levelname)s] %(name)s: %(message)s")
        handler.setFormatter(_JsonFormatter() if form == "json" else plain)
        handler.addFilter(_limit_record)
        root.addHandler(handler)
    root.setLevel(logging.INFO if level == "debug" else max(logging.WARNING, LEVELS[level]))
    logging.getLogger("trio.serve_listeners").addFilter(_without_traceback)


def flush() -> int:
    """Write how many lines were left out of what has ended; return how many there were since the start."""
    for kind, count in LIMIT.take_overdue():
        structlog.get_logger("trellis").warning("lines were left out", of=kind, count=count)
    return LIMIT.left_out


def cleaned(text: str) -> str:
    """*text* without secrets and control characters, cut to `MAX_VALUE` characters."""
    text = without_secrets(text)
    shown = text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= MAX_VALUE else f"{shown[:MAX_VALUE]}..."


def without_secrets(text: str) -> str:
    """*text* with stars in the place of API keys and of what stands where keys do."""
    return _SECRETS.sub(lambda found: f"{found['key'] or found['url'] or found['header']}{HIDDEN}", text)


def _limited(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    left_out = line.pop(ADMITTED, None)
    if left_out is None and (left_out := LIMIT.admit(str(line["event"]))) is None:
        raise structlog.DropEvent
    return line | {"left_out": left_out} if left_out else line  # type: ignore[operator]


def _cleaned(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: without_secrets(value) if name in LONG else _clean_value(value) for name, value in line.items()}


def _clean_value(value: Any) -> Any:
    match value:
        case str():
            return cleaned(value)
        case list() | tuple():
            return [_clean_value(each) for each in value]
        case dict():
            return {_clean_value(name): _clean_value(each) for name, each in value.items()}
    return value


class _Formatter(logging.Formatter):
    """Formats the lines of libraries without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


class _JsonFormatter(logging.Formatter):
    """Formats the lines of libraries, tracebacks too, as JSON with the members of the gateway's own lines."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        line = {"event": record.getMessage(), "level": record.levelname.lower(), "timestamp": when}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(line | {"logger": record.name}))


def _limit_record(record: logging.LogRecord) -> bool:
    """Whether *record* may be written; it tells how many such lines were left out before it."""
    left_out = LIMIT.admit(str(record.msg))
    if left_out:
        record.msg = f"{record.msg} ({left_out} such lines were left out)"
    return left_out is not None


def _without_traceback(record: logging.LogRecord) -> bool:
    """Remove the traceback from *record*: running out of file descriptors is not a bug of the program."""
    record.exc_info = None
    return True
