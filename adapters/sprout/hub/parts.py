"""The parts that all Sprout connections share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.answer_scheduler import AnswerScheduler

from .audience import Audience
from .delivery import OrderedDelivery
from .horizon import RetentionHorizon
from .intake import Intake
from .nodes import NodeDirectory
from .presence import SproutPresence
from .reader import NodeReader
from .rights import Rights
from .waiting import WaitingQuota


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
    horizon: RetentionHorizon
    intake: Intake
    quota: WaitingQuota
    answer_scheduler: AnswerScheduler
    post: Callable[[Callable[[], None]], None]
