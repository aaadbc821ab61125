"""Texts: why a gateway can no longer be a member, or cannot become one, and what its operator can do."""

from __future__ import annotations

from typing import Final

TOO_SHORT: Final = (
    "the log ends with record {}, and what the stream has begins with {}: restore a backup of a member that is younger "
    "than seven days (docs/how-to/cluster.md)"
)
UNWRITTEN: Final = (
    "the disk took the log up to record {}, and the stream has {}: see that the disk has room and is sound, and start "
    "again"
)
NAMESAKE: Final = (
    "another gateway of this cluster is named {}, and was there before: give each a name of its own (cluster.gateway)"
)
RESUMED: Final = (
    "another gateway named {} became a member while this one did not answer: stop one of them, or give each a name of "
    "its own (cluster.gateway)"
)

REMOVED: Final = (
    "this gateway was removed from the cluster (`trellis cluster remove`): move its data directory away, and restore a "
    "backup of a member that was made since; or give it another name (cluster.gateway)"
)
STREAM_DAMAGED: Final = (
    "the stream lacks a batch that others have read: a NATS server has lost or damaged it. Look at the servers, and if "
    "they are well, restore a backup of a member that was made since. If no other member is there, somebody else may "
    "have written a batch that does not follow, which the log names: start two members (docs/how-to/cluster.md)"
)
STRAY: Final = (
    "if other members continue, its sender is faulty, or is not a member and has credentials of the NATS servers: stop "
    "it, and give the members other credentials. If this gateway ends because of it, the stream lacks something"
)
LOG_DIFFERS: Final = (
    "the log is damaged: records {:,} to {:,} are not what other members have. See that the disk is sound, move the "
    "data directory away, and restore a backup of another member (docs/how-to/cluster.md)"
)
QUIET: Final = "no other member passes the turn on, or the servers have no quorum"
ELSEWHERE: Final = "another gateway accepts now; try again in a moment"
