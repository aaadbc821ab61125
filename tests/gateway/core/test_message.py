from __future__ import annotations

import uuid

import pytest

from gateway.core.message import Message, MessageIds, Peer, PendingForm


def test_a_form_is_made_once() -> None:
    made: list[str] = []

    def make(_message: Message, key: str) -> bytes:
        made.append(key)
        return key.encode()

    message = Message("lobby", Peer(1, "toy"), "toy", b"1", forms={"own": b"as received"})
    assert [message.form(key, make) for key in ("a", "b", "a", "own")] == [b"a", b"b", b"a", b"as received"]
    assert made == ["a", "b"]


def test_a_pending_form_wakes_each_waiter_once() -> None:
    form, woken = PendingForm(), list[str]()
    form.when_done(lambda: woken.append("a"))
    form.when_done(lambda: woken.append("b"))
    assert (form.done, woken) == (False, [])
    form.fill(b"there")
    assert (form.done, form.data, woken) == (True, b"there", ["a", "b"])
    form.when_done(lambda: woken.append("late"))
    assert woken == ["a", "b", "late"]


def test_a_form_that_cannot_be_made_is_done_too() -> None:
    form = PendingForm()
    form.fill(None)
    assert (form.done, form.data) == (True, None)


@pytest.mark.parametrize("salt", [0, 1, 0x2BADCAFE, (1 << 30) - 1, (1 << 40) - 1])
@pytest.mark.parametrize("seq", [1, 2, 1 << 30, (1 << 44) - 1])
@pytest.mark.parametrize("time", [0, 1_763_700_000_123, (1 << 48) - 1])
def test_an_id_is_a_version_7_uuid_that_contains_its_seq(salt: int, seq: int, time: int) -> None:
    ids = MessageIds(salt)
    id = ids.make(time, seq)
    parsed = uuid.UUID(id)
    assert (str(parsed), parsed.version, parsed.variant) == (id, 7, uuid.RFC_4122)
    assert parsed.int >> 80 == time
    assert ids.seq(id) == seq


def test_two_gateways_do_not_collide() -> None:
    mine, theirs = MessageIds(1), MessageIds(1 << 18)
    assert mine.make(5, 1) != theirs.make(5, 1)
    assert mine.seq(theirs.make(5, 1)) is None
    assert mine.seq(MessageIds(2).make(5, 1)) is None


def test_later_ids_sort_later() -> None:
    ids = MessageIds(0x3FFFFFFF)
    made = [ids.make(time, seq) for time, seq in [(1, 9), (2, 10), (2, 11), (300, 12)]]
    assert made == sorted(made)


@pytest.mark.parametrize("id", ["", "x" * 36, "018e-", "\ud800" * 36, "00000000-0000-7000-zzzz-000000000000"])
def test_an_id_of_another_gateway_has_no_seq(id: str) -> None:
    assert MessageIds(0).seq(id) is None
