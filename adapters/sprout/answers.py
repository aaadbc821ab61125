"""Answers of many nodes, gathered a few in each turn of the loop: nobody waits while another one's are looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gateway.errors import RequestError
from gateway.message import Form, Pending

from .codec import MAX_BODY

SLICE: Final = 16  # nodes that are looked for in one turn; one that has to be read from the disk takes some 100 us
SLICE_BYTES: Final = 1 << 18  # likewise: a line has at most 175 KiB

Find = Callable[[], Iterator[Form | None]]  # those that matter most first; None is a step that brought nothing


class Gathering:
    """What *find* finds, as far as one answer has room for it."""

    def __init__(self, find: Find) -> None:
        self.forms: list[Form] = []
        self.size = 0
        self._rest = find()

    def go_on(self) -> bool:
        """Gather a slice; whether that was the last one."""
        limit = self.size + SLICE_BYTES
        for _ in range(SLICE):
            form = next(self._rest, self)
            if form is self or self.size > MAX_BODY:
                return True
            if form is not None:
                assert not isinstance(form, Gathering)
                self.forms.append(form)
                self.size += len(_line(form) or b"")
                if self.size > limit:
                    break
        return False


class Answer:
    """An answer on its way: *done* gets its lines, those that matter most first, or None where they cannot be read.

    *post* runs a call when others had their turn. Where something has to be signed for it, it waits for that, and is
    gathered again: what was made may have opened a conversation, which belongs to the answer as well.
    """

    def __init__(
        self, find: Find, post: Callable[[Callable[[], None]], None], done: Callable[[list[bytes] | None], None]
    ) -> None:
        self._find = find
        self._post = post
        self._done = done
        self._made: list[Form] = []  # what was found first, and is made since
        self._gathering: Gathering | None = None
        self.over = False

    @property
    def size(self) -> int:
        """How many bytes were gathered so far."""
        return 0 if self._gathering is None else self._gathering.size

    def go_on(self) -> None:
        """Gather the next slice."""
        if self.over:
            return
        try:
            self._gathering = self._gathering or Gathering(self._find)
            if not self._gathering.go_on():
                self._post(self.go_on)
                return
        except RequestError:  # the index cannot be read; what was found before is not wrong
            self._end(_lines(self._made) if self._made else None)
            return
        forms = self._gathering.forms
        if self._made or not _unmade(forms):
            _when_made(forms, lambda: self._end(_lines(forms)))
        else:
            _when_made(forms, self._again)

    def _again(self) -> None:
        assert self._gathering is not None
        self._made, self._gathering = self._gathering.forms, None
        self.go_on()

    def _end(self, lines: list[bytes] | None) -> None:
        if not self.over:
            self.over = True
            self._done(lines)


def _line(form: Form) -> bytes | None:
    return form.data if isinstance(form, Pending) else form


def _lines(forms: Sequence[Form]) -> list[bytes]:
    return [line for form in forms if (line := _line(form)) is not None]


def _unmade(forms: Sequence[Form]) -> list[Pending]:
    """Those that are still being made."""
    return [form for form in forms if isinstance(form, Pending) and not form.done]


def _when_made(forms: Sequence[Form], then: Callable[[], None]) -> None:
    """Call *then* once all of them are made, or could not be."""
    unmade = _unmade(forms)
    left = len(unmade)

    def one_is() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    if not unmade:
        then()
    for form in unmade:
        form.when_done(one_is)
