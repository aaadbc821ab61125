"""Which partition of a stream a keyed message belongs to."""

from __future__ import annotations

from hashlib import md5


def partition_of(key: str, partitions: int) -> int:
    """The partition, 0 to *partitions* - 1, in which all clients and brokers put the partition key *key*."""
    if partitions == 1:
        return 0
    head = md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4]
    return abs(int.from_bytes(head, "little", signed=True)) % partitions
