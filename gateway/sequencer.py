"""Decides in which order, and at what time, submissions are logged.

The bus checks what is published and submits it to the sequencer; `Bus.take` stamps, logs and delivers it. Facts are
submitted as well. A gateway that runs alone takes at once what it submits.

Laws of this file. What is logged of a submission follows from the submission, the time that the sequencer gives it, and
the log before it: from no clock, no thread, and nothing else that another gateway does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gateway.core.bus import Bus
from gateway.core.message import Message
from gateway.core.subscriber import Subscriber
from gateway.storage.log import Log
from gateway.storage.record import Fact


class Sequencer(Protocol):
    """Gives each submission its place and time: it has `Bus.take` take a run, and `Log.fact` a fact."""

    def submit(self, run: Sequence[Message], origins: Sequence[Subscriber | None]) -> None:
        """Submit a *run* that was checked; *origins* are the sessions that its messages came from."""

    def submit_fact(self, kind: str, fields: dict[str, Any]) -> Fact:
        """Submit a fact, and return it as it is logged; *fields* are its own members, as JSON values."""


class LocalSequencer:
    """The sequencer of a gateway that runs alone: *bus* and *log* take everything at once."""

    def __init__(self, bus: Bus, log: Log) -> None:
        self.submit = bus.take
        self.submit_fact = log.fact
