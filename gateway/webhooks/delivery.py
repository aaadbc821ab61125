"""Delivers the messages of one webhook, one after another, in the order of the log.

Laws of this file. The next message is sent only when the one before it was delivered, or is a dead letter on disk, so
the order is that of the log. Nothing of a message is kept in memory between two attempts. While a receiver cannot be
reached, its messages wait, and none becomes a dead letter. A message that the receiver refuses is tried
`webhooks.attempts` times. A webhook that has failed for `webhooks.disable_after_hours` is disabled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio
import structlog

from gateway.core.backoff import retry_seconds
from gateway.core.errors import Unavailable
from gateway.settings.settings import WebhookSettings

from .backlog import Backlog, BacklogEntry
from .model import DeadLetter, Webhook
from .pauses import matching
from .sender import Outcome, Verdict

FIRST_RETRY_SECONDS = 1.0  # until the second attempt
MAX_RETRY_SECONDS = 300.0  # between two attempts
UNREADABLE_SECONDS = 1.0  # until the log is read again, when it could not be
HOUR = 3_600_000  # ms

logger = structlog.get_logger("trellis")


class Carrier(Protocol):
    """What deliveries need of `gateway.webhooks.courier.Courier`."""

    settings: WebhookSettings
    backlog: Backlog
    clock: Callable[[], int]  # ms since 1970

    async def page(self, after: int) -> tuple[list[BacklogEntry], int]:
        """Return `Backlog.page` in a turn of the loop that long answers share."""

    async def attempt(self, webhook: Webhook, place: BacklogEntry) -> Outcome | None:
        """Send the message at *place* once; None if it is not kept any more. Raises `Unavailable`."""

    async def add_dead_letter(self, webhook: Webhook, letter: DeadLetter) -> None:
        """Store *letter* durably."""

    async def disable(self, webhook: Webhook, reason: str) -> None:
        """Stop the deliveries to *webhook* until it is enabled again."""

    def mark_changed(self) -> None:
        """Save the positions soon."""


class Delivery:
    """The deliveries of one enabled *webhook*; `run` ends when it is disabled, or stopped."""

    def __init__(self, webhook: Webhook, carrier: Carrier) -> None:
        self.webhook = webhook
        self.scanned = webhook.position  # the sequence up to which the log was searched
        self.idle = False  # waits until `wake` is called, or `pass_by` tells that nothing matched
        self._carrier = carrier
        self._places: deque[BacklogEntry] = deque()  # of matching messages that follow, read already
        self._woken = anyio.Event()
        self._stopped = False
        self._scope: anyio.CancelScope | None = None  # while `run` runs

    def wake(self) -> None:
        """Search the log: it has something that matches."""
        self.idle = False
        self._woken.set()

    def pass_by(self, end: int) -> None:
        """Count every message up to *end* as done, because none matches. Call this only while `idle`."""
        self.scanned = self.webhook.position = max(end, self.scanned)

    def stop(self) -> None:
        """Stop; an attempt under way may have been delivered, and is repeated later."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Deliver until the webhook is disabled or `stop` is called."""
        with anyio.CancelScope() as self._scope:
            while self.webhook.enabled and not self._stopped:
                try:
                    place = await self._next()
                    if place is not None:
                        await self._deliver(place)
                except Unavailable:  # the index is being rebuilt, or the log cannot be read
                    await anyio.sleep(UNREADABLE_SECONDS)
                    continue
                if place is None:
                    await self._woken.wait()

    async def _next(self) -> BacklogEntry | None:
        """Return the place of the next message; None, and become idle, if there is none yet."""
        backlog = self._carrier.backlog
        while not self._places:
            self._skip_retired()
            found, end = await self._carrier.page(self.scanned)
            channels = await matching(self.webhook, {place.channel for place in found})
            self._places.extend(place for place in found if place.channel in channels)
            if not self._places:
                self.pass_by(end)
                if end >= backlog.end:
                    self.idle, self._woken = True, anyio.Event()
                    self.webhook.failures, self.webhook.failing_since = 0, None  # dead letters are all that is left
                    return None
            self.scanned = end
        return self._places[0]

    async def _deliver(self, place: BacklogEntry) -> None:
        """Deliver the message at *place*, or make it a dead letter; or disable the webhook."""
        refusals = 0
        while True:
            outcome = await self._carrier.attempt(self.webhook, place)
            if outcome is None:
                self._skip_retired()
                if not self._places or self._places[0] is not place:
                    return
                break  # it is damaged, which the log reports
            if outcome.verdict is Verdict.DELIVERED:
                break
            refusals += outcome.verdict is Verdict.REFUSED
            if refusals >= self._carrier.settings.attempts:
                if not await self._add_dead_letter(place, refusals, outcome):
                    return
                break
            if (reason := self._reason_to_disable(outcome)) is not None:
                await self._carrier.disable(self.webhook, reason)
                return
            pause = retry_seconds(self.webhook.failures, FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
            await anyio.sleep(max(pause, outcome.retry_after))
        self._places.popleft()
        self.webhook.position = place.seq
        self._carrier.mark_changed()

    async def _add_dead_letter(self, place: BacklogEntry, attempts: int, outcome: Outcome) -> bool:
        """Keep the message as a dead letter, durably; disable the webhook and return False if it has too many."""
        webhook = self.webhook
        if webhook.dead_letters >= self._carrier.settings.max_dead_letters:
            reason = f"it has {webhook.dead_letters} dead letters (webhooks.max_dead_letters)"
            await self._carrier.disable(webhook, reason)
            return False
        found = self._carrier.backlog.message(place)
        if found is not None:
            now = self._carrier.clock()
            await self._carrier.add_dead_letter(
                webhook, DeadLetter(place.seq, found.id, place.channel, now, attempts, outcome.error)
            )
        return True

    def _reason_to_disable(self, outcome: Outcome) -> str | None:
        webhook, hours = self.webhook, self._carrier.settings.disable_after_hours
        if outcome.verdict is Verdict.GONE:
            return outcome.error
        if webhook.failing_since is not None and self._carrier.clock() - webhook.failing_since > hours * HOUR:
            return f"it has failed for {hours:g} hours; {outcome.error}"
        return None

    def _skip_retired(self) -> None:
        """Continue with what retention has kept, and log that it may have removed something that was not delivered."""
        first = self._carrier.backlog.first_kept
        if first <= (self._places[0].seq if self._places else self.scanned + 1):
            return
        logger.warning(
            "a webhook may have missed messages, because retention removed them first",
            webhook=self.webhook.id,
            after=self.webhook.position,
            before=first,
        )
        while self._places and self._places[0].seq < first:
            self._places.popleft()
        self.scanned = max(self.scanned, first - 1)
        self.webhook.position = max(self.webhook.position, first - 1)
        self._carrier.mark_changed()
