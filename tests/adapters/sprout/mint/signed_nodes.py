"""What a client is shown of the nodes that the gateway signs, and a log without the facts about them."""

from __future__ import annotations

from typing import Any


def response(text: str) -> str:
    """The responses alone: a connection also hears of identities that are minted on its account."""
    found, lines = [], iter(text.splitlines())
    for line in lines:
        if line.startswith("response"):
            found += [line, *(next(lines) for _ in range(int(line.split(" ")[2])))]
    return "\n".join(found)


def said_before(place: Any, community: str) -> str:
    line = place.connect()
    line.send(f"subscribe 0 {community}\n")
    toy = place.toy()
    for n in range(3):
        toy.say({"n": n})
    place.settle()
    return response(line.ask(f"leaves_of 1 {community} 99\nlist 2 0 99\nlist 3 1 99\n"))


def asked_again(place: Any, community: str) -> str:
    return response(place.connect().ask(f"leaves_of 1 {community} 99\nlist 2 0 99\nlist 3 1 99\n"))


def forms(place: Any) -> int:
    return sum(b'"kind":"form"' in line.data for line in place.gateway.log.segments.scan())


def cut_behind_the_messages(place: Any) -> None:
    """Stop; the disk has lost everything behind the last message."""
    place.stop()
    (segment,) = (place.gateway.settings.data / "log").glob("*.jsonl")
    lines = segment.read_bytes().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if b'"kind":"message"' in line)
    first_lost = next(n for n, line in enumerate(lines) if b'"kind":"entity"' in line and b'"what":"peer' in line)
    assert first_lost > last, "the facts come behind the messages"
    segment.write_bytes(b"".join(lines[: last + 1]))
    for file in place.gateway.settings.data.glob("index.sqlite*"):
        file.unlink()
