"""API keys of all gateways of a cluster: a change in the key file of one counts on all.

The members share one value: all keys as they are in a key file, with digests in place of secrets. Each member merges,
key by key, the changes of its own file since both were the same with those of the others; a removed key stays removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from .keyfile import KEYS_FILE, ApiKey, KeyFile, keys_of, text_of

MAX_VALUE: Final = (8 << 20) - (64 << 10)  # bytes of a shared value, some 40,000 keys: as `cluster.batch.MAX_BATCH`
COMMON_FILE: Final = "api-keys-shared.json"

logger = structlog.get_logger("trellis")


class SharedKeys:
    """Keeps the key file in the folder *secrets* and the shared value the same.

    *put* replaces the shared value of a version. *reload* has the gateway read the file, which was changed, and then
    calls `merge`. The keys as they were when both were the same are kept in another file, so that it is known what was
    changed meanwhile, even while the gateway did not run.
    """

    def __init__(self, secrets: Path, put: Callable[[bytes, int], None], reload: Callable[[], None]) -> None:
        self.refused = 0  # values that were no keys
        self._keys = KeyFile(secrets / KEYS_FILE)
        self._common = KeyFile(secrets / COMMON_FILE)
        self._put = put
        self._reload = reload
        self._shared: tuple[int, list[ApiKey]] | None = None  # with its version

    def receive(self, version: int, data: bytes) -> None:
        """Take the shared value; an invalid one is ignored and counted."""
        try:
            shared = keys_of(data) if version else []
        except ValueError as error:
            self.refused += 1
            logger.error("the keys of the cluster cannot be read", error=str(error), consequence="the keys stay")
            return
        self._shared = version, shared
        self.merge()

    def merge(self) -> None:
        """Merge the key file and the shared value, if that is known; call this when either has changed."""
        if self._shared is None:
            return
        version, shared = self._shared
        try:
            common, here = self._common.load(), self._keys.load()
            merged = merged_keys(common if version else [], here, shared)  # a stream that was lost removes no key
            if merged != here:
                if self._keys.replace(here, merged):  # else it changed meanwhile, and is merged again
                    self._reload()
            elif merged != shared:
                self._share(merged, version)
            elif common != shared:
                self._common.replace(common, shared)
        except (OSError, ValueError) as error:
            logger.error("the keys cannot be shared in the cluster", error=str(error))

    def _share(self, keys: list[ApiKey], version: int) -> None:
        data = text_of(keys)
        if len(data) > MAX_VALUE:
            raise ValueError(f"{len(keys):,} keys are more than a cluster can share")
        self._put(data, version)


def merged_keys(common: Iterable[ApiKey], here: Iterable[ApiKey], shared: Iterable[ApiKey]) -> list[ApiKey]:
    """Merge the changes of two gateways since they had the *common* keys.

    A change of a key wins over no change. Of two changes, removal wins, and then the earlier expiry.
    """
    was, mine, theirs = ({key.id: key for key in keys} for keys in (common, here, shared))
    merged = [_merged(was.get(id), mine.get(id), theirs.get(id)) for id in theirs | mine]
    return [key for key in merged if key is not None]


def _merged(was: ApiKey | None, mine: ApiKey | None, theirs: ApiKey | None) -> ApiKey | None:
    if mine in (was, theirs):
        return theirs
    if theirs == was:
        return mine
    if mine is None or theirs is None:
        return None
    return min(mine, theirs, key=lambda key: (key.expires is None, key.expires or 0, json.dumps(key.rights)))
