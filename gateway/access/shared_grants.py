"""Grants of all gateways of a cluster: a change in the configuration of one counts on all.

The members share one value: the rights of each principal. A gateway notes what its configuration said when it shared it
last. What has changed there since then it changes in the shared value; everything else it takes from the shared value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from .authorization import Right
from .secretfile import read_secret, write_secret
from .shared_keys import MAX_VALUE

GRANTS_FILE: Final = "grants-shared.json"  # in the folder of secrets

Grants = dict[str, tuple[str, ...]]

_DECODER: Final = msgspec.json.Decoder(Grants)

logger = structlog.get_logger("trellis")


class SharedGrants:
    """Keeps the grants of the gateway, whose configuration has *configured*, and the shared value the same.

    *put* replaces the shared value of a version, *apply* makes grants count here.
    """

    def __init__(
        self,
        secrets: Path,
        configured: Mapping[str, tuple[str, ...]],
        put: Callable[[bytes, int], None],
        apply: Callable[[Grants], None],
    ) -> None:
        self.refused = 0  # values that were no grants
        self._path = secrets / GRANTS_FILE
        self._configured = dict(configured)
        self._put = put
        self._apply = apply
        self._shared: tuple[int, Grants] | None = None  # with its version
        self._now = dict(configured)  # what counts here

    def configure(self, configured: Mapping[str, tuple[str, ...]]) -> None:
        """Take the configuration as it is now; a change counts here at once, and elsewhere as soon as it is shared."""
        self._let_count(merged_grants(self._configured, dict(configured), self._now))
        self._configured = dict(configured)
        self._merge()

    def receive(self, version: int, data: bytes) -> None:
        """Take the shared value; an invalid one is ignored and counted."""
        try:
            shared = _decode(data) if version else {}
        except ValueError as error:
            self.refused += 1
            logger.error("the grants of the cluster cannot be read", error=str(error), consequence="the grants stay")
            return
        self._shared = version, shared
        self._merge()

    def _merge(self) -> None:
        if self._shared is None:
            return
        version, shared = self._shared
        try:
            was, here = self._read(), self._configured
            if not version:  # nobody has shared any yet, or the stream was lost
                was, shared = {}, {}
            merged = shared if was is None else merged_grants(was, here, shared)
            self._let_count(merged)
            if merged != shared or not version:
                self._share(merged, version)
            elif was != here:
                if was is None and shared != here:
                    names = sorted(name for name in shared.keys() | here.keys() if shared.get(name) != here.get(name))
                    logger.warning("the grants of the cluster count, not those of the configuration", differ=names)
                write_secret(self._path, msgspec.json.encode(here))
        except (OSError, ValueError) as error:
            logger.error("the grants cannot be shared in the cluster", error=str(error))

    def _let_count(self, grants: Grants) -> None:
        if grants != self._now:
            self._now = grants
            self._apply(grants)

    def _share(self, grants: Grants, version: int) -> None:
        data = msgspec.json.encode(grants)
        if len(data) > MAX_VALUE:
            raise ValueError(f"the grants of {len(grants):,} principals are more than a cluster can share")
        self._put(data, version)

    def _read(self) -> Grants | None:
        return _decode(read_secret(self._path)) if self._path.exists() else None


def merged_grants(was: Grants, here: Grants, shared: Grants) -> Grants:
    """Apply to *shared* the changes that were made *here* to what *was* configured."""
    changed = {name for name in was.keys() | here.keys() if was.get(name) != here.get(name)}
    kept = {name: rights for name, rights in shared.items() if name not in changed}
    return kept | {name: here[name] for name in here if name in changed}


def _decode(data: bytes) -> Grants:
    grants: Any = _DECODER.decode(data)
    for rights in grants.values():
        for right in rights:
            Right.parse(right)
    return dict(grants)
