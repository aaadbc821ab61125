"""Direct messages between random peers of all protocols reach their receiver, and no byte of them anything else.

Real sessions on a real disk (`parties.py`). After each move each peer has to have seen just what was for it, once. At
the end the files of the gateway are searched, and what was written for the operator. `make soak` makes 100,000 moves.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from structlog.testing import capture_logs

from adapters.sprout.store.direct_messages import REMEMBERED
from gateway import runtime
from gateway.core.directs import DIRECT_ID_LIFETIME
from tests.properties.in_process_gateway import NAMES, NOW, InProcessGateway, template
from tests.properties.parties import KINDS, Party, SproutParty, StreamrParty, marks
from tests.still import Clock

SOAK = "TRELLIS_SOAK" in os.environ
MOVES = 100_000 if SOAK else 2_500
STEPS = 150  # of one run, at most
MINUTE = 60_000  # ms
NOBODY = 1 << 40
MAX_PARTIES = 10

CHANNELS = st.sampled_from(NAMES)


class DirectMachine(RuleBasedStateMachine):
    """Peers that come, talk and go; `due` is what each is to have seen."""

    parties = Bundle("parties")
    moves: ClassVar[int] = 0  # of all runs

    def __init__(self) -> None:
        super().__init__()
        self.logged = capture_logs()
        self.entries = self.logged.__enter__()
        self.clock = Clock(NOW)
        self.former, runtime.clock = runtime.clock, self.clock
        self.folder = Path(mkdtemp(prefix="trellis-direct-"))
        shutil.copytree(template(), self.folder, dirs_exist_ok=True)
        self.instance = InProcessGateway(self.folder)
        self.due: dict[Party, Counter[int]] = {}
        self.private: dict[str, tuple[int, int, str]] = {}  # by node id: who said it, when, and where
        self.marks = 0

    @initialize(target=parties)
    def open(self) -> Any:
        """One of each kind, all in one place."""
        return multiple(*(self._enter(make(self.instance), NAMES[0]) for make in KINDS.values()))

    @precondition(lambda self: len(self.due) < MAX_PARTIES)
    @rule(target=parties, kind=st.sampled_from(list(KINDS)), channel=CHANNELS)
    def connect(self, kind: str, channel: str) -> Party:
        return self._enter(KINDS[kind](self.instance), channel)

    @rule(party=consumes(parties))
    def disconnect(self, party: Party) -> None:
        self._exit(party)

    @rule(target=parties, party=consumes(parties), channel=CHANNELS)
    def reconnect(self, party: Party, channel: str) -> Party:
        """An Arbor client comes back, and announces all that it holds before it asks for the rest."""
        self._exit(party)
        if not isinstance(party, SproutParty):
            return self._enter(type(party)(self.instance), channel)  # type: ignore[call-arg]  # these need nothing more
        again = SproutParty(self.instance, party.name, party.held)
        self._enter(again, channel)
        again.announce(*again.held.values())
        again.request_history(channel, list(again.held))
        return again

    @rule(party=parties, channel=CHANNELS)
    def join(self, party: Party, channel: str) -> None:
        party.join(channel)

    @rule(party=parties, channel=CHANNELS)
    def leave(self, party: Party, channel: str) -> None:
        party.leave(channel)

    @rule(party=parties, whose=parties, channel=CHANNELS)
    def open_inbox(self, party: Party, whose: Party, channel: str) -> None:
        if isinstance(party, StreamrParty):
            party.open_inbox(channel, whose.number)

    @rule(party=parties, channel=CHANNELS)
    def say(self, party: Party, channel: str) -> None:
        party.publish(channel, "something for everybody")

    @rule(party=parties, to=parties, channel=CHANNELS)
    def tell(self, party: Party, to: Party, channel: str) -> None:
        """Say something to a peer, who may be elsewhere, by the number of its connection or of its own."""
        for number in to.numbers(channel) or {to.number}:
            self._tell(party, channel, number)

    @rule(party=parties, channel=CHANNELS)
    def tell_each(self, party: Party, channel: str) -> None:
        """Say something to each who is in the channel, one after another."""
        for number in {max(to.numbers(channel)) for to in self.due if to.numbers(channel)}:
            self._tell(party, channel, number)

    @rule(party=parties, channel=CHANNELS)
    def tell_oneself_and_nobody(self, party: Party, channel: str) -> None:
        for number in (party.number, NOBODY):
            self._tell(party, channel, number)

    @precondition(lambda self: self._holders())
    @rule(who=st.integers(0, 20), which=st.integers(0, 20))
    def answer(self, who: int, which: int) -> None:
        """Answer a private node as if it were any other: within five minutes it goes to who said it."""
        holders = self._holders()
        party = holders[who % len(holders)]
        id = list(party.held)[-1 - which % len(party.held)]
        sender, time, channel = self.private[id]
        good = time >= self.clock.now + 1 - DIRECT_ID_LIFETIME  # making the node takes a millisecond
        mark = self._mark(party, channel, sender if good else NOBODY)
        delivered = party.reply(id, f"secret {mark:06}.")
        forgotten = time < self.clock.now - REMEMBERED  # then its parent is one that nobody knows: it waits for that
        self._note(party, None if forgotten else delivered, mark, channel)

    @precondition(lambda self: self._holders())
    @rule()
    def announce_again(self) -> None:
        for party in self._holders():
            party.announce(*party.held.values())

    @rule(party=parties, channel=CHANNELS)
    def look_back(self, party: Party, channel: str) -> None:
        party.request_history(channel, list(self.private))

    @rule(passed=st.sampled_from([1_000, MINUTE, 6 * MINUTE, 11 * MINUTE, 61 * MINUTE]))
    def time(self, passed: int) -> None:
        self.clock.now += passed
        self.instance.gateway.tick()

    @invariant()
    def each_has_seen_what_was_for_it_and_nothing_else(self) -> None:
        DirectMachine.moves += 1
        self.instance.settle()
        for party, due in self.due.items():
            party.read()
            assert party.seen == due, f"{type(party).__name__} {party.number}"
            assert all(session.closing is None for session in party.sessions)

    def teardown(self) -> None:
        self.instance.settle(synced=True)
        self.instance.stop()
        self.logged.__exit__(None, None, None)
        runtime.clock = self.former
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        found = {str(path): marks(path.read_bytes()) for path in files}
        shutil.rmtree(self.folder)
        assert len(files) > 3
        assert not any(found.values()), found
        assert not marks(repr(self.entries).encode())

    def _enter(self, party: Party, channel: str) -> Party:
        self.due[party] = Counter()
        party.join(channel)
        return party

    def _exit(self, party: Party) -> None:
        party.disconnect()
        del self.due[party]

    def _holders(self) -> list[SproutParty]:
        """The Arbor clients that hold private nodes."""
        return [party for party in self.due if isinstance(party, SproutParty) and party.held]

    def _tell(self, party: Party, channel: str, number: int) -> None:
        mark = self._mark(party, channel, number)
        self._note(party, party.send_direct(channel, number, f"secret {mark:06}."), mark, channel)

    def _mark(self, sender: Party, channel: str, number: int) -> int:
        """A new mark, due to those who have that number in the channel."""
        self.marks += 1
        for party, due in self.due.items():
            if number in party.numbers(channel, publishing=party is sender):
                due[self.marks] += 1
        return self.marks

    def _note(self, sender: Party, told: bool | None, mark: int, channel: str) -> None:
        """What the sender is *told*, if it is told, is so; remember the private nodes that Arbor clients hold then."""
        delivered = any(due[mark] for due in self.due.values())
        assert told in (None, delivered), type(sender).__name__
        if isinstance(sender, SproutParty) and delivered:
            sender.held |= sender.last
        self.instance.settle()
        for party in self.due:
            party.read()
        for holder in self._holders():
            for id in holder.held:
                self.private.setdefault(id, (sender.number, self.clock.now, channel))


def test_the_template_log_has_the_time_of_the_keys() -> None:
    lines = [line for path in (template() / "log").iterdir() for line in path.read_bytes().splitlines()]
    assert {json.loads(line)["time"] for line in lines} == {NOW}


@pytest.mark.slow
@pytest.mark.timeout(0 if SOAK else 600)
def test_a_direct_message_reaches_its_peer_and_nothing_else() -> None:
    limits = settings(
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    while (left := MOVES - DirectMachine.moves) > 0:  # how many there are in a run is chance
        runs = max(1, left * 6 // (5 * STEPS))
        run_state_machine_as_test(DirectMachine, settings=settings(limits, max_examples=runs))
