"""Responses with many nodes, collected a few per turn of the loop, and sent no faster than the peer reads.

A response begins with the number of its nodes, so all of them are found before any is sent. Of a long response only
the sequences are kept meanwhile; the lines are read again when the peer takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import MAX_BODY
from gateway.core.errors import RequestError
from gateway.core.message import Form, PendingForm
from gateway.core.outbox import LOW_WATER

SLICE: Final = 16  # nodes that are looked up in one turn; reading one from the disk takes some 100 us
SLICE_BYTES: Final = 1 << 18  # likewise: a line has at most 175 KiB
KEPT: Final = LOW_WATER  # bytes of a response that are kept; the lines of a longer one are read again


class FoundNode(NamedTuple):
    """A node of a response: its sequence, and its line, which may not be signed yet."""

    seq: int
    form: Form


class AnswerLine(NamedTuple):
    """A line of a response; its *text* is None if it is to be read again."""

    seq: int
    size: int
    text: bytes | None


FindNodes = Callable[
    [], Iterator[FoundNode | None]
]  # the most important nodes first; None after a step without a result
Schedule = Callable[[Callable[[], None]], None]  # runs a call when its turn has come


class NodeCollector:
    """Collects the nodes of *find*, as many as one response has room for."""

    def __init__(self, find: FindNodes) -> None:
        self.found: list[FoundNode | AnswerLine] = []
        self.size = 0
        self._rest = find()
        self._forgotten = 0  # of the nodes found so far

    def advance(self) -> bool:
        """Collect a slice; return whether it was the last one."""
        limit = self.size + SLICE_BYTES
        for _ in range(SLICE):
            found = next(self._rest, self)
            if isinstance(found, NodeCollector) or self.size > MAX_BODY:
                return True
            if found is not None:
                self.found.append(found)
                self.size += len(_text(found.form) or b"")
                if self.size > limit:
                    break
        if self.size > KEPT:
            self._forget()
        return False

    @property
    def unsigned(self) -> list[PendingForm]:
        """The lines that are not signed yet."""
        return _unsigned([found.form for found in self.found if isinstance(found, FoundNode)])

    def lines(self) -> list[AnswerLine]:
        """All lines, except those that could not be signed."""
        lines = [line for found in self.found if (line := _line(found)) is not None]
        if sum(line.size for line in lines) <= KEPT:
            return lines
        return [line._replace(text=None) for line in lines]

    def _forget(self) -> None:
        """Keep only the sequences of the nodes whose lines are signed."""
        for place in range(self._forgotten, len(self.found)):
            found = self.found[place]
            if isinstance(found, FoundNode) and (text := _text(found.form)) is not None:
                self.found[place] = AnswerLine(found.seq, len(text), None)
        self._forgotten = len(self.found)


class PendingAnswer:
    """A response that is being collected: *done* gets its lines by importance, or None if they cannot be read.

    *give* runs a call after others had their turn. If nodes have to be signed for it, it waits for that and collects
    again: signing may have opened a conversation, which belongs to the response as well.
    """

    def __init__(self, find: FindNodes, give: Schedule, done: Callable[[list[AnswerLine] | None], None]) -> None:
        self._find = find
        self._give = give
        self._done = done
        self._made: NodeCollector | None = None  # the first collection, signed since
        self._gathering: NodeCollector | None = None
        self.over = False

    @property
    def size(self) -> int:
        """The bytes of it that are kept so far."""
        return 0 if self._gathering is None else min(self._gathering.size, KEPT)

    def advance(self) -> None:
        """Collect the next slice."""
        if self.over:
            return
        try:
            self._gathering = self._gathering or NodeCollector(self._find)
            if not self._gathering.advance():
                self._give(self.advance)
                return
        except RequestError:  # the index cannot be read; the first collection is still right
            self._end(None if self._made is None else self._made.lines())
            return
        gathering, unsigned = self._gathering, self._gathering.unsigned
        if self._made is not None or not unsigned:
            _when_signed(unsigned, lambda: self._end(gathering.lines()))
        else:
            _when_signed(unsigned, self._again)

    def _again(self) -> None:
        self._made, self._gathering = self._gathering, None
        self.advance()

    def _end(self, lines: list[AnswerLine] | None) -> None:
        if not self.over:
            self.over = True
            self._done(lines)


class StreamedAnswer(PendingForm):
    """A response in the outbox. A long one is sent in parts, each made when the peer has taken the one before.

    *read* reads the line of a node again; if that changed or is gone, *broken* ends the connection.
    """

    __slots__ = ("_broken", "_give", "_read", "_rest", "left")

    def __init__(self, read: Callable[[int], Form | None], give: Schedule, broken: Callable[[], None]) -> None:
        super().__init__()
        self.left = 0  # bytes of the parts to come
        self._rest: deque[AnswerLine] = deque()
        self._read = read
        self._give = give
        self._broken = broken

    @property
    def size(self) -> int:
        """The bytes of this part and of the parts to come."""
        return super().size + self.left

    def answer(self, id: int, lines: Sequence[AnswerLine]) -> None:
        """Fill it with the response to the request *id*: *lines*, in this order."""
        texts = [line.text for line in lines if line.text is not None]
        if len(texts) == len(lines):
            self.fill(codec.encode_response(id, texts))
            return
        self._rest.extend(lines)
        self.left = sum(line.size + 1 for line in lines) + 1
        self.fill(codec.response_head(id, len(lines)))

    def advance(self) -> bool:
        """Request the next part, which is made in the peer's next turn; return False if there is none."""
        if not self._rest:
            return False
        self.done, self.data = False, None
        self._give(self._make_next_part)
        return True

    def _make_next_part(self) -> None:
        """Make the next part. It begins with a newline, so that it is not mistaken for a node to be announced."""
        part: list[tuple[AnswerLine, Form]] = []
        size = 0
        while self._rest and len(part) < SLICE and size < LOW_WATER:
            line = self._rest.popleft()
            form = self._read(line.seq)
            if form is None:
                self._broken()
                return
            part.append((line, form))
            size += line.size
        _when_signed(_unsigned([form for _, form in part]), lambda: self._made(part))

    def _made(self, part: Sequence[tuple[AnswerLine, Form]]) -> None:
        """Fill in the lines of a *part*, all of which are signed."""
        data = b""
        for line, form in part:
            text = _text(form) or b""
            if len(text) != line.size:
                self._broken()
                return
            data += b"\n" + text
        if not self._rest:
            data += b"\n"
        self.left -= len(data)
        self.fill(data)


def _text(form: Form) -> bytes | None:
    return form.data if isinstance(form, PendingForm) else form


def _line(found: FoundNode | AnswerLine) -> AnswerLine | None:
    if isinstance(found, AnswerLine):
        return found
    text = _text(found.form)
    return None if text is None else AnswerLine(found.seq, len(text), text)


def _unsigned(forms: Sequence[Form]) -> list[PendingForm]:
    return [form for form in forms if isinstance(form, PendingForm) and not form.done]


def _when_signed(unsigned: Sequence[PendingForm], then: Callable[[], None]) -> None:
    """Call *then* once all of them are signed, or have failed."""
    left = len(unsigned)

    def one_is() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    if not unsigned:
        then()
    for form in unsigned:
        form.when_done(one_is)
