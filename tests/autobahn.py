"""What a WebSocket client says in the cases 1 to 7 and 10 of the Autobahn test suite, and what a server answers.

Made from RFC 6455, RFC 3629 and the suite's list of cases, whose numbers these are. The suite's server echoes each
message as what it was. A gateway has text messages only: it answers a binary one, in 1.2 and nowhere else, with a text
in which U+FFFD stands for what is not UTF-8. Where the suite has an OK and a NON-STRICT answer, this is the OK one. The
pauses of the suite are left out, except where it ends on a byte that must be answered (6.4): there nothing follows it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = b"\x9c\x01\x80\x53"
KOSME = "κόσμε".encode()
GREETING = "Hello-µ@ßöäüàá-UTF-8!!".encode()

Answer = tuple[int, bytes]


@dataclass(frozen=True)
class AutobahnCase:
    """*pieces* are written one after the other; *answers* are (opcode, payload), the last of them a `CLOSE`.

    *bye* is what the client writes once it has all answers but the last.
    """

    number: str
    pieces: tuple[bytes, ...]
    answers: tuple[Answer, ...]
    bye: bytes = b""


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0) -> bytes:
    """A masked frame; *reserved* is the three reserved bits as a number."""
    first, size = fin << 7 | reserved << 4 | opcode, len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    else:
        head = struct.pack("!BBH", first, 0xFE, size) if size < 1 << 16 else struct.pack("!BBQ", first, 0xFF, size)
    key = (MASK * (size // 4 + 1))[:size]
    return head + MASK + (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def chop(data: bytes, size: int = 1) -> list[bytes]:
    """*data* in pieces of *size* bytes."""
    return [data[place : place + size] for place in range(0, len(data), size)]


def fragments(payloads: Sequence[bytes], opcode: int = TEXT) -> list[bytes]:
    """The frames of one message."""
    last = len(payloads) - 1
    return [frame(CONTINUATION if i else opcode, payload, fin=i == last) for i, payload in enumerate(payloads)]


def said(code: int) -> Answer:
    """A close with *code*, whatever the reason."""
    return CLOSE, code.to_bytes(2, "big")


def good(number: str, pieces: Sequence[bytes], *answers: Answer) -> AutobahnCase:
    """A case after which the client closes with 1000, which is answered with the same."""
    return AutobahnCase(number, tuple(pieces), (*answers, said(1000)), frame(*said(1000)))


def failed(number: str, pieces: Sequence[bytes], *answers: Answer, code: int = 1002) -> AutobahnCase:
    """A case that the server ends with *code*."""
    return AutobahnCase(number, tuple(pieces), (*answers, said(code)))


def in_cuts(numbers: str, frames: Sequence[bytes]) -> Iterator[tuple[str, Sequence[bytes]]]:
    """*frames* for three case *numbers*: in one piece, a frame at a time, a byte at a time."""
    return zip(numbers.split(), ([b"".join(frames)], frames, chop(b"".join(frames))), strict=True)


# 1: messages of several sizes


def sizes() -> Iterator[AutobahnCase]:
    """1.1 text, 1.2 binary; the last one in pieces of 997 bytes."""
    for i, size in enumerate((0, 125, 126, 127, 128, 65535, 65536, 65536), 1):
        for kind, opcode, payload in ((1, TEXT, b"*"), (2, BINARY, b"\xfe")):
            data = frame(opcode, payload * size)
            answer = (payload * size).decode(errors="replace").encode()
            yield good(f"1.{kind}.{i}", chop(data, 997) if i == 8 else [data], (TEXT, answer))


# 2: pings and pongs


def pings() -> Iterator[AutobahnCase]:
    """A ping is answered with its payload, a pong with nothing."""
    binary = b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff"
    for number, payload in (("2.1", b""), ("2.2", b"Hello, world!"), ("2.3", binary), ("2.4", b"\xfe" * 125)):
        yield good(number, [frame(PING, payload)], (PONG, payload))
    yield failed("2.5", [frame(PING, b"\xfe" * 126)])
    yield good("2.6", chop(frame(PING, b"\xfe" * 125)), (PONG, b"\xfe" * 125))
    yield good("2.7", [frame(PONG)])
    yield good("2.8", [frame(PONG, b"unsolicited pong payload")])
    yield good("2.9", [frame(PONG, b"unsolicited"), frame(PING, b"ping payload")], (PONG, b"ping payload"))
    payloads = [b"payload-%d" % i for i in range(10)]
    data = b"".join(frame(PING, payload) for payload in payloads)
    yield good("2.10", [data], *((PONG, payload) for payload in payloads))
    yield good("2.11", chop(data), *((PONG, payload) for payload in payloads))


# 3 and 4: reserved bits and opcodes


def reserved() -> Iterator[AutobahnCase]:
    """What comes before the bad frame is answered, what comes after it is not."""
    hello, ping, echo = frame(TEXT, b"Hello, world!"), frame(PING), (TEXT, b"Hello, world!")
    yield failed("3.1", [frame(TEXT, b"Hello, world!", reserved=1)])
    yield failed("3.2", [hello + frame(TEXT, b"Hello, world!", reserved=2) + ping], echo)
    yield failed("3.3", [hello, frame(TEXT, b"Hello, world!", reserved=3), ping], echo)
    yield failed("3.4", chop(hello + frame(TEXT, b"Hello, world!", reserved=4) + ping), echo)
    yield failed("3.5", [frame(BINARY, b"\x00\xff\xfe\xfd", reserved=5)])
    yield failed("3.6", [frame(PING, b"Hello, world!", reserved=6)])
    yield failed("3.7", [frame(*said(1000), reserved=7)])
    for kind, first in ((1, 3), (2, 11)):
        yield failed(f"4.{kind}.1", [frame(first)])
        yield failed(f"4.{kind}.2", [frame(first + 1, b"reserved opcode payload")])
        yield failed(f"4.{kind}.3", [hello + frame(first + 2) + ping], echo)
        yield failed(f"4.{kind}.4", [hello, frame(first + 3, b"reserved opcode payload"), ping], echo)
        yield failed(f"4.{kind}.5", chop(hello + frame(first + 4, b"reserved opcode payload") + ping), echo)


# 5: fragments


def fragmented() -> Iterator[AutobahnCase]:
    """Only messages are in fragments, and all of one come before the next; control frames may come in between."""
    yield failed("5.1", fragments([b"fragment1", b"fragment2"], PING))
    yield failed("5.2", fragments([b"fragment1", b"fragment2"], PONG))
    first, second = fragments([b"fragment1", b"fragment2"])
    echo, ping, hello = (TEXT, b"fragment1fragment2"), frame(PING, b"ping payload"), frame(TEXT, b"Hello, world!")
    for number, pieces in in_cuts("5.3 5.4 5.5", [first, second]):
        yield good(number, pieces, echo)
    for number, pieces in in_cuts("5.6 5.7 5.8", [first, ping, second]):
        yield good(number, pieces, (PONG, b"ping payload"), echo)
    stray, open_stray = frame(CONTINUATION, b"stray"), frame(CONTINUATION, b"stray", fin=False)
    for number, pieces in in_cuts("5.9 5.10 5.11", [stray, hello]):
        yield failed(number, pieces)
    for number, pieces in in_cuts("5.12 5.13 5.14", [open_stray, hello]):
        yield failed(number, pieces)
    yield failed("5.15", [first + second + open_stray + hello], echo)
    yield failed("5.16", [open_stray, first, second] * 2)
    yield failed("5.17", [stray, first, second] * 2)
    yield failed("5.18", [first, frame(TEXT, b"fragment2")])
    parts = [b"fragment%d" % i for i in range(1, 6)]
    one, two, three, four, five = fragments(parts)
    pieces = [one, two, frame(PING, b"pongme 1!"), three, four, frame(PING, b"pongme 2!"), five]
    answers = (PONG, b"pongme 1!"), (PONG, b"pongme 2!"), (TEXT, b"".join(parts))
    yield good("5.19", pieces, *answers)
    yield good("5.20", [b"".join(pieces)], *answers)


# 6: UTF-8


def texts() -> Iterator[AutobahnCase]:
    """Fragments of texts, which may end within a character; a bad one is refused at its first bad byte (6.4)."""
    for number, parts in (("6.1.1", [b""]), ("6.1.2", [b""] * 3), ("6.1.3", [b"", b"middle frame payload", b""])):
        yield good(number, fragments(parts), (TEXT, b"".join(parts)))
    for number, parts in (
        ("6.2.1", [GREETING]),
        ("6.2.2", [GREETING[:12], GREETING[12:]]),
        ("6.2.3", chop(GREETING)),
        ("6.2.4", chop(KOSME)),
    ):
        yield good(number, fragments(parts), (TEXT, b"".join(parts)))
    surrogate, large = KOSME + b"\xed\xa0\x80edited", KOSME + b"\xf4\x90\x80\x80edited"
    yield failed("6.3.1", [frame(TEXT, surrogate)], code=1007)
    yield failed("6.3.2", fragments(chop(surrogate)), code=1007)
    size = len(KOSME)
    yield failed("6.4.1", fragments([KOSME, large[size:-6], b"edited"])[:2], code=1007)
    yield failed("6.4.2", fragments([large[: size + 1], large[size + 1 : size + 2], b"\x80\x80edited"])[:2], code=1007)
    whole = frame(TEXT, large)
    start = len(whole) - len(large)
    yield failed("6.4.3", [whole[: start + size], whole[start + size : start + size + 4]], code=1007)
    yield failed("6.4.4", [whole[: start + size + 1], whole[start + size + 1 : start + size + 2]], code=1007)


# By section of case 6, in hexadecimal. Valid ones are echoed, the others end with 1007.
# fmt: off
VALID = {
    5: [KOSME.hex(), "68656c6c6f24776f726c64", "68656c6c6fc2a2776f726c64", "68656c6c6fe282ac776f726c64",
        "68656c6c6ff0a4ada2776f726c64"],
    7: ["00", "c280", "e0a080", "f0908080"],  # the first of each length
    9: ["7f", "dfbf", "efbfbf", "f48fbfbf"],  # the last of each length
    22: [chr(plane << 16 | 0xFFFE | last).encode().hex() for plane in range(17) for last in (0, 1)],  # no characters
    23: [chr(code).encode().hex() for code in range(0xFFF9, 0x10000)],
}
INVALID = {
    8: ["f888808080", "fc8480808080"],  # five and six bytes
    10: ["f7bfbfbf", "fbbfbfbfbf", "fdbfbfbfbfbf"],
    12: ["80", "bf", "80bf", "80bf80", "80bf80bf", "80bf80bf80", "80bf80bf80bf", bytes(range(0x80, 0xBF)).hex()],
    13: [b"".join(bytes((byte, 0x20)) for byte in range(*edges)).hex()  # beginnings of nothing
         for edges in ((0xC0, 0xE0), (0xE0, 0xF0), (0xF0, 0xF8), (0xF8, 0xFC), (0xFC, 0xFE))],
    14: ["c0", "e080", "f08080", "f8808080", "fc80808080", "df", "efbf", "f7bfbf", "fbbfbfbf", "fdbfbfbfbf"],
    15: ["c0e080f08080f8808080fc80808080dfefbff7bfbffbbfbfbffdbfbfbfbf"],
    16: ["fe", "ff", "fefeffff"],
    17: ["c0af", "e080af", "f08080af", "f8808080af", "fc80808080af"],  # a slash in too many bytes
    18: ["c1bf", "e09fbf", "f08fbfbf", "f887bfbfbf", "fc83bfbfbfbf"],
    19: ["c080", "e08080", "f0808080", "f880808080", "fc8080808080"],
    20: ["eda080", "edadbf", "edae80", "edafbf", "edb080", "edbe80", "edbfbf"],  # surrogates
    21: [high + low for high in ("eda080", "edadbf", "edae80", "edafbf") for low in ("edb080", "edbfbf")],
}
EDGES = ["ed9fbf", "ee8080", "efbfbd", "f48fbfbf", "f4908080"]  # 6.11; the last one is beyond Unicode
# fmt: on


def characters() -> Iterator[AutobahnCase]:
    """6.5 to 6.23: whole texts; 6.6 is all that κόσμε begins with."""
    for section, texts in VALID.items():
        yield from (character(f"6.{section}.{i}", bytes.fromhex(text)) for i, text in enumerate(texts, 1))
    for section, texts in INVALID.items():
        yield from (
            failed(f"6.{section}.{i}", [frame(TEXT, bytes.fromhex(text))], code=1007) for i, text in enumerate(texts, 1)
        )
    yield from (character(f"6.11.{i}", bytes.fromhex(text)) for i, text in enumerate(EDGES[:4], 1))
    yield failed("6.11.5", [frame(TEXT, bytes.fromhex(EDGES[4]))], code=1007)
    ends = set(accumulate(len(letter.encode()) for letter in KOSME.decode()))
    for i in range(1, len(KOSME) + 1):
        if i in ends:
            yield character(f"6.6.{i}", KOSME[:i])
        else:
            yield failed(f"6.6.{i}", [frame(TEXT, KOSME[:i])], code=1007)


def character(number: str, text: bytes) -> AutobahnCase:
    """A whole text that is valid."""
    return good(number, [frame(TEXT, text)], (TEXT, text))


# 7: closes


def closes() -> Iterator[AutobahnCase]:
    """A close is answered with the same, and nothing after it with anything."""
    hello, bye = frame(TEXT, b"Hello, world!"), frame(*said(1000))
    yield AutobahnCase("7.1.1", (hello + bye,), ((TEXT, b"Hello, world!"), said(1000)))
    yield AutobahnCase("7.1.2", (bye + bye,), (said(1000),))
    yield AutobahnCase("7.1.3", (bye + frame(PING),), (said(1000),))
    yield AutobahnCase("7.1.4", (bye + hello,), (said(1000),))
    first, second = fragments([b"fragment1", b"fragment2"])
    yield AutobahnCase("7.1.5", (first + bye + second,), (said(1000),))
    large = b"BAsd7&jh23" * 26_215  # 256 KiB
    yield AutobahnCase("7.1.6", (frame(TEXT, large), bye, frame(PING)), ((TEXT, large), said(1000)))
    yield AutobahnCase("7.3.1", (frame(CLOSE),), ((CLOSE, b""),))
    yield failed("7.3.2", [frame(CLOSE, b"a")])
    for number, reason in (("7.3.3", b""), ("7.3.4", b"Hello, world!"), ("7.3.5", b"*" * 123)):
        yield AutobahnCase(number, (frame(CLOSE, said(1000)[1] + reason),), ((CLOSE, said(1000)[1] + reason),))
    yield failed("7.3.6", [frame(CLOSE, said(1000)[1] + b"*" * 124)])
    yield failed("7.5.1", [frame(CLOSE, said(1000)[1] + KOSME + b"\xed\xa0\x80edited")], code=1007)
    codes = 1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999
    for i, code in enumerate(codes, 1):
        yield AutobahnCase(f"7.7.{i}", (frame(*said(code)),), (said(code),))
    for i, code in enumerate((0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999), 1):
        yield failed(f"7.9.{i}", [frame(*said(code))])
    for i, code in enumerate((5000, 65535), 1):
        yield failed(f"7.13.{i}", [frame(*said(code))])


# 10: a message that a library fragments by itself


def automatic() -> Iterator[AutobahnCase]:
    """64 KiB in fragments of 1,300 bytes."""
    yield good("10.1.1", fragments(chop(b"*" * 65536, 1300)), (TEXT, b"*" * 65536))


CASES = [
    *(*sizes(), *pings(), *reserved(), *fragmented()),
    *(*texts(), *characters(), *closes(), *automatic()),
]
