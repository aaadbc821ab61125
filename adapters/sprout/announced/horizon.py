"""How old an announced reply may be: what retention has removed must not be published as new."""

from __future__ import annotations

from collections.abc import Callable

from adapters.sprout.forest.forest import Node, Reply


class RetentionHorizon:
    """The time before which replies are no longer taken; *keep* gives how long messages are kept (ms), None for ever.

    `kept_since` (ms since 1970) is set once a second. Whether an older reply was here before cannot be known.
    """

    def __init__(self, keep: Callable[[], int | None]) -> None:
        self.kept_since = 0
        self._keep = keep

    def is_retired(self, node: Node, now: int) -> bool:
        """Whether *node* is a reply that was created before the horizon; *now* is in ms."""
        if not isinstance(node, Reply):
            return False
        keep = self._keep()
        return node.created < (self.kept_since if keep is None else max(self.kept_since, now - keep))
