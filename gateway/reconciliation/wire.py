"""Messages of the negentropy protocol, version 1, as bytes and as ranges.

A message is an ordered list of ranges that cover all places; a range has an upper bound, which it does not include, and
says nothing (`None`), the fingerprint of what its sender has there (`bytes`), or the ids of all of that (`list`).
Source: the specification "Negentropy Protocol V1" of https://github.com/hoytech/negentropy.

Laws of this file. A place is bytes that sort as the protocol sorts: a time (ms, 8 bytes, big-endian), then an id or the
beginning of one. Integers have 64 bits at most. What cannot be read raises `MalformedSync`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.core.errors import RequestError

VERSION: Final = 0x61
VERSIONS: Final = range(0x60, 0x70)  # first bytes that any version of the protocol may have
ID_SIZE: Final = 32
FINGERPRINT_SIZE: Final = 16
TIME_SIZE: Final = 8
START: Final = b""  # before every place
INFINITY: Final = b"\xff" * TIME_SIZE  # after every place
MAX_TIME: Final = (1 << 64) - 2
SKIP, FINGERPRINT, IDS = 0, 1, 2
MAX_RANGES: Final = 1 << 15  # of a message; 256 KiB have room for 27,000 that say something or lie between such ranges

Payload = None | bytes | list[bytes]


class MalformedSync(RequestError):
    """A message that is not one of the protocol."""


class Range(NamedTuple):
    """What a message says about the places below *upper*, and not below the bound before it."""

    upper: bytes
    payload: Payload


def place(time: int, id: bytes = b"") -> bytes:
    """The place of *id*, or of the beginning of an id, at *time* (ms)."""
    return time.to_bytes(TIME_SIZE) + id


def bound_between(lower: bytes, upper: bytes) -> bytes:
    """The shortest place above *lower* and not above *upper*, which are the places of two ids."""
    if lower[:TIME_SIZE] != upper[:TIME_SIZE]:
        return upper[:TIME_SIZE]
    same = next(at for at in range(TIME_SIZE, TIME_SIZE + ID_SIZE) if lower[at] != upper[at])
    return upper[: same + 1]


class MessageWriter:
    """Writes a message range by range; ranges without payload become one, and none at the end."""

    def __init__(self) -> None:
        self._data = bytearray((VERSION,))
        self._time = 0  # of the bound that was written last
        self._skipped = START  # the end of ranges that have no payload and are not written yet

    @property
    def size(self) -> int:
        """How many bytes were written."""
        return len(self._data)

    @property
    def is_empty(self) -> bool:
        """Whether the message has no range with a payload."""
        return len(self._data) == 1

    def add(self, upper: bytes, payload: Payload) -> None:
        """Add the range up to *upper*."""
        if payload is None:
            self._skipped = upper
            return
        if self._skipped:
            self._add_bound(self._skipped)
            self._data += encode_integer(SKIP)
            self._skipped = START
        self._add_bound(upper)
        if isinstance(payload, bytes):
            self._data += encode_integer(FINGERPRINT) + payload
        else:
            self._data += encode_integer(IDS) + encode_integer(len(payload)) + b"".join(payload)

    def message(self) -> bytes:
        """The message."""
        return bytes(self._data)

    def _add_bound(self, bound: bytes) -> None:
        if bound == INFINITY:
            self._data += encode_integer(0) + encode_integer(0)
            return
        time, prefix = int.from_bytes(bound[:TIME_SIZE]), bound[TIME_SIZE:]
        self._data += encode_integer(1 + time - self._time) + encode_integer(len(prefix)) + prefix
        self._time = time


def encode(ranges: list[Range]) -> bytes:
    """The message of *ranges*."""
    writer = MessageWriter()
    for upper, payload in ranges:
        writer.add(upper, payload)
    return writer.message()


def decode(message: bytes) -> list[Range]:
    """The ranges of *message*, whose first byte is `VERSION`; the last one ends at `INFINITY`."""
    found = list(_Reader(message).ranges())
    if not found or found[-1].upper != INFINITY:
        found.append(Range(INFINITY, None))
    return found


def encode_integer(value: int) -> bytes:
    """*value* in groups of seven bits, the highest first; all bytes but the last have their highest bit set."""
    encoded = bytes((value & 0x7F,))
    while value := value >> 7:
        encoded = bytes((value & 0x7F | 0x80,)) + encoded
    return encoded


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1
        self._time = 0

    def ranges(self) -> Iterator[Range]:
        last, count = START, 0
        while self._at < len(self._data):
            upper = self._bound()
            if upper < last or last == INFINITY:
                raise MalformedSync("its bounds do not ascend")
            last = upper
            count += 1
            if count > MAX_RANGES:
                raise MalformedSync(f"it has more than {MAX_RANGES:,} ranges")
            yield Range(upper, self._payload())

    def _payload(self) -> Payload:
        match self._integer():
            case 0:
                return None
            case 1:
                return self._take(FINGERPRINT_SIZE)
            case 2:
                ids = self._take(self._integer() * ID_SIZE)
                return [ids[at : at + ID_SIZE] for at in range(0, len(ids), ID_SIZE)]
            case mode:
                raise MalformedSync(f"a range has the mode {mode}; there are 0, 1 and 2")

    def _bound(self) -> bytes:
        delta = self._integer()
        size = self._integer()
        if size > ID_SIZE:
            raise MalformedSync(f"a bound has {size} bytes of an id; an id has {ID_SIZE}")
        prefix = self._take(size)
        if not delta:
            if prefix:
                raise MalformedSync("the last bound has a part of an id")
            return INFINITY
        self._time += delta - 1
        if self._time > MAX_TIME:
            raise MalformedSync("a time has more than 64 bits")
        return place(self._time, prefix.rstrip(b"\0"))

    def _integer(self) -> int:
        value = 0
        for _ in range(10):
            (byte,) = self._take(1)
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value
        raise MalformedSync("an integer has more than 64 bits")

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise MalformedSync("it ends within a range")
        self._at += size
        return taken
