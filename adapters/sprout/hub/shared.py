"""What all Sprout connections share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.answer_scheduler import AnswerScheduler

from .audience import Audience
from .intake import Intake
from .nodes import Nodes
from .presence import Presence
from .reader import Reader
from .rights import Rights
from .telling import Telling
from .waiting import Room


@dataclass(frozen=True)
class Shared:
    """The parts that each connection is given, each of which knows one thing.

    *answer_scheduler* gives long answers their turns, *post* runs a call when the loop comes to it.
    """

    nodes: Nodes
    rights: Rights
    audience: Audience
    reader: Reader
    presence: Presence
    telling: Telling
    intake: Intake
    room: Room
    answer_scheduler: AnswerScheduler
    post: Callable[[Callable[[], None]], None]
