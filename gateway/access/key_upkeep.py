"""Manages access while the gateway runs: reloads keys, expires them, records their use, and revokes connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from gateway.core.bus import Bus
from gateway.settings.settings import Settings

from .authorization import Access, ApiKey, KeyFile
from .keyfile import KEYS_FILE
from .lastuse import FILE_NAME, LastUse
from .origins import Origins, is_local
from .revocation import Revocation

Work = Callable[[Callable[[], Any], Callable[[Any], None]], None]

logger = structlog.get_logger("trellis")


class AccessManager:
    """Keeps an `Access` up to date with the key file in the folder *secrets*, and with the grants of *settings*."""

    def __init__(self, settings: Settings, secrets: Path) -> None:
        self.keys = KeyFile(secrets / KEYS_FILE)
        self._uses = LastUse(secrets / FILE_NAME)
        self.access = Access(self.keys.load(), settings.auth.grants, origins(settings))
        self.grants = settings.auth.grants  # of the configuration, at the start
        self.set_grants: Callable[[Mapping[str, tuple[str, ...]]], None] = self.access.set_grants  # as they are changed
        self.on_reloaded: Callable[[], None] = lambda: None

    def start(self, bus: Bus, post: Callable[[Callable[[], None]], None], work: Work) -> None:
        """Begin to manage the connections of *bus*; *work* runs a call in a thread, *post* one on the loop."""
        self._bus = bus
        self._work = work
        self._revocation = Revocation(self.access, bus, post)
        self.access.look_for_keys = self._reload_changed_keys  # a key counts as soon as `trellis key add` prints it

    def tick(self) -> None:
        """Reload a changed key file, expire keys and record their use; call this once a second."""
        self._reload_changed_keys()
        self.access.tick()
        self._record_uses()
        if (write := self._uses.pending_write(self.access.clock(), self.access.valid_key_ids())) is not None:
            self._work(write, lambda _: None)

    def stop(self) -> None:
        """Write when keys were last used; call this when no write is under way."""
        self._record_uses()
        write = self._uses.pending_write(self.access.clock(), self.access.valid_key_ids(), last=True)
        try:
            if write is not None:
                write()
        except OSError as error:
            logger.error("when keys were last used cannot be written", error=str(error))

    def last_used(self) -> dict[str, int]:
        """When each key was last used (ms since 1970), by its id; those with open connections are in use now."""
        self._record_uses()
        return self._uses.times()

    def reload_keys(self) -> None:
        """Load the key file that `trellis key` changed; if it cannot be read, log that and keep the present keys."""
        before = self.access.valid_keys()
        try:
            self.access.set_keys(self.keys.load())
        except (OSError, ValueError) as error:
            logger.error("the key file cannot be read", error=str(error), consequence="the keys stay as they were")
        else:
            logger.info("the keys were read again", **difference(before, self.access.valid_keys()))
            self.on_reloaded()

    def _reload_changed_keys(self) -> None:
        if self.keys.changed():
            self.reload_keys()

    def _record_uses(self) -> None:
        """Record the keys that were presented since the last call, and those with open connections."""
        used, self.access.used_key_ids = self.access.used_key_ids, set()
        live = {key for session in self._bus.sessions() if (key := session.principal.key)}
        self._uses.record(used | live, self.access.clock())


def origins(settings: Settings) -> Origins:
    """The web origins and host names that *settings* allow."""
    return Origins(settings.auth.origins, private=is_local(settings.host) and not settings.open_to_all)


def difference(before: list[ApiKey], after: list[ApiKey]) -> dict[str, list[str]]:
    """The names of the keys that were added, removed and changed; empty if none were."""
    old, new = {key.id: key for key in before}, {key.id: key for key in after}
    found = {
        "added": [key.name for id, key in new.items() if id not in old],
        "removed": [key.name for id, key in old.items() if id not in new],
        "changed": [key.name for id, key in new.items() if id in old and key != old[id]],
    }
    return {what: sorted(names) for what, names in found.items() if names}
