"""The parts that all Sprout connections share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adapters.sprout.announced.intake import Intake
from adapters.sprout.arrivals.waiting import WaitingQuota
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.rights import Rights
from adapters.sprout.outgoing.audience import Audience
from adapters.sprout.outgoing.delivery import OrderedDelivery
from adapters.sprout.outgoing.presence import SproutPresence
from adapters.sprout.outgoing.reader import NodeReader
from gateway.core.answer_scheduler import AnswerScheduler


@dataclass(frozen=True)
class SproutParts:
    """What connections use; `adapters.sprout.assembly` constructs it.

    `answer_scheduler` schedules long answers, `post` runs a call in a later iteration of the event loop.
    """

    nodes: NodeDirectory
    rights: Rights
    audience: Audience
    reader: NodeReader
    presence: SproutPresence
    delivery: OrderedDelivery
    intake: Intake
    quota: WaitingQuota
    answer_scheduler: AnswerScheduler
    post: Callable[[Callable[[], None]], None]
