"""What all Sprout connections share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.answer_scheduler import AnswerScheduler

from .audience import Audience
from .delivery import OrderedDelivery
from .intake import Intake
from .nodes import NodeDirectory
from .presence import SproutPresence
from .reader import NodeReader
from .rights import Rights
from .waiting import WaitingQuota


@dataclass(frozen=True)
class Hub:
    """The parts that each connection is given, each of which knows one thing.

    *answer_scheduler* gives long answers their turns, *post* runs a call when the loop comes to it.
    """

    nodes: NodeDirectory
    rights: Rights
    audience: Audience
    reader: NodeReader
    presence: SproutPresence
    delivery: OrderedDelivery
    intake: Intake
    room: WaitingQuota
    answer_scheduler: AnswerScheduler
    post: Callable[[Callable[[], None]], None]
