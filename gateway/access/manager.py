"""Keeps who may do what true while the gateway runs: the key file, keys that end, their last use, live connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from gateway.core.bus import Bus
from gateway.settings import Settings

from .auth import Access, ApiKey, KeyFile
from .lastuse import FILE_NAME, LastUse
from .origins import Origins, is_local
from .revocation import Revocation

Work = Callable[[Callable[[], Any], Callable[[Any], None]], None]

logger = structlog.get_logger("trellis")


class AccessManager:
    """The keys in *secrets* and the grants of *settings*, as one `Access` that a running gateway asks."""

    def __init__(self, settings: Settings, secrets: Path) -> None:
        self.keys = KeyFile(secrets / "api-keys.json")
        self._uses = LastUse(secrets / FILE_NAME)
        self.access = Access(self.keys.load(), settings.auth.grants, origins(settings))

    def start(self, bus: Bus, post: Callable[[Callable[[], None]], None], work: Work) -> None:
        """Look after the connections of *bus*; *work* runs a call in a thread, *post* one on the loop."""
        self._bus = bus
        self._work = work
        self._revocation = Revocation(self.access, bus, post)

    def tick(self) -> None:
        """A second has passed."""
        if self.keys.changed():
            self.reload_keys()
        self.access.tick()
        self._record_uses()
        if (write := self._uses.pending_write(self.access.clock(), self.access.valid_key_ids())) is not None:
            self._work(write, lambda _: None)

    def stop(self) -> None:
        """Write what is known of the last uses; nothing is under way any more."""
        self._record_uses()
        write = self._uses.pending_write(self.access.clock(), self.access.valid_key_ids(), last=True)
        try:
            if write is not None:
                write()
        except OSError as error:
            logger.error("when keys were last used cannot be written", error=str(error))

    def reload_keys(self) -> None:
        """Follow what `trellis key` did; a file that cannot be read changes nothing, and the log says so."""
        before = self.access.valid_keys()
        try:
            self.access.set_keys(self.keys.load())
        except (OSError, ValueError) as error:
            logger.error("the key file cannot be read", error=str(error), consequence="the keys stay as they were")
        else:
            logger.info("the keys were read again", **difference(before, self.access.valid_keys()))

    def _record_uses(self) -> None:
        """Keys that were shown since the last time, and those whose connections are open."""
        used, self.access.used_key_ids = self.access.used_key_ids, set()
        live = {key for session in self._bus.sessions() if (key := session.principal.key)}
        self._uses.record(used | live, self.access.clock())


def origins(settings: Settings) -> Origins:
    """The web pages that may connect, and the names that the gateway goes by, as *settings* say."""
    return Origins(settings.auth.origins, private=is_local(settings.host) and not settings.open_to_all)


def difference(before: list[ApiKey], after: list[ApiKey]) -> dict[str, list[str]]:
    """What became of the keys, by their names, without anything that is secret; empty where nothing did."""
    old, new = {key.id: key for key in before}, {key.id: key for key in after}
    found = {
        "added": [key.name for id, key in new.items() if id not in old],
        "removed": [key.name for id, key in old.items() if id not in new],
        "changed": [key.name for id, key in new.items() if id in old and key != old[id]],
    }
    return {what: sorted(names) for what, names in found.items() if names}
