"""A gateway without listeners and event loop, for commands that work in a data directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from gateway.adapter import ProtocolFiles
from gateway.monitoring import logs
from gateway.runtime import Gateway
from gateway.settings.settings import Settings

from .common import Adapters, CommandError

TIMEOUT_SECONDS = 60.0  # for the disk or the worker thread to make progress


class OfflineGateway:
    """A gateway whose threads post calls to a queue; the calls run during `wait_until_idle`."""

    def __init__(self, settings: Settings, adapters: Adapters) -> None:
        limits = settings.limits.model_copy(update={"rates": "off"})
        self._adapters = adapters
        self.gateway = Gateway(settings.model_copy(update={"limits": limits}), adapters)
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.gateway.access.enabled = False  # a user who can write to the data directory has every right
        self.gateway.start(self._posted.put)

    def files(self, file_format: str) -> ProtocolFiles:
        """Return what reads and writes files of that format; raise `CommandError` if its protocol is switched off."""
        for adapter in self.gateway.adapters:
            if adapter.file_format == file_format:
                return adapter.files()
        (off,) = (each for each in self._adapters if each.file_format == file_format)
        raise CommandError(f"{off.title} is switched off; set {off.name}.enabled to true for this")

    def wait_until_idle(self) -> None:
        """Wait until the worker thread is idle and everything that was appended is on disk; or `CommandError`."""
        work = self.gateway.adapters[0].services.work
        for _ in range(2):  # the worker's results are appended to the log, too
            self._wait(lambda done: work(lambda: None, lambda _: done()))
            self._wait(lambda done: self.gateway.log.when_synced(self.gateway.log.next_seq - 1, done))

    def _wait(self, begin: Callable[[Callable[[], None]], None]) -> None:
        done: list[bool] = []
        begin(lambda: done.append(True))
        while not done:
            try:
                self._posted.get(timeout=TIMEOUT_SECONDS)()
            except Empty:
                raise CommandError(
                    f"no progress for {TIMEOUT_SECONDS:.0f} s; the disk of the data directory may be too slow"
                ) from None
            if (reason := self.gateway.log.failing) is not None:
                raise CommandError(f"the log cannot be written: {reason}; what was imported before is in it")


@contextmanager
def open_offline(settings: Settings, adapters: Adapters) -> Iterator[OfflineGateway]:
    """Open the data directory of *settings* without a server; raise `DataDirectoryInUse` if one runs there."""
    if settings.cluster.url:
        raise CommandError(
            "the gateway is a member of a cluster (cluster.url), whose log grows only while it runs: publish over "
            "REST instead"
        )
    quiet = (
        "warning" if settings.log_level == "info" else settings.log_level
    )  # connections and channels are no news here
    logs.configure(settings.log_format, quiet)
    here = OfflineGateway(settings, adapters)
    try:
        yield here
        here.wait_until_idle()
    finally:
        here.gateway.stop()
