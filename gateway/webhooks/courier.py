"""All webhooks of a gateway: loads them, runs their deliveries, wakes those that have something to deliver.

Laws of this file. Everything here runs on the loop, except the calls of the store, which run in threads. Ten times a
second, and only while there are webhooks, the new part of the log is searched once for all idle ones, a few of them in
each turn of the loop. Positions are saved once a second and when the gateway stops, so a kill repeats what was
delivered in the last second, and loses nothing. At most `MAX_ATTEMPTS` attempts are under way at once, and half of them
for webhooks whose last one failed or that are slow, and for dead letters that are sent again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import ip_network
from time import time
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskStatus

from gateway.core.errors import Unavailable
from gateway.http import views
from gateway.http.bodies import SHORT_BODY
from gateway.http.paced import run_in_turn
from gateway.runtime import Gateway, clock

from .backlog import Backlog, BacklogEntry
from .delivery import Delivery
from .model import DeadLetter, Webhook
from .pauses import matching
from .sender import Outcome, Sender, Verdict
from .signature import derive_secret, signature_headers
from .store import WebhookStore

POLL_SECONDS = 0.1  # between two searches of what is new
SAVE_SECONDS = 1.0  # between two times that positions are saved
RETRY_SECONDS = 1.0  # until a write that failed, or a delivery that a bug ended, is tried again
STEP = 16  # webhooks in one turn of the loop; each is compared with up to `backlog.PAGE` channels
TURNS = "webhooks"  # stands for a network: all searches of backlogs take one network's turns
MAX_ATTEMPTS = 16  # under way at once, for all webhooks
MAX_DOUBTFUL = MAX_ATTEMPTS // 2  # of those, for webhooks that fail, or whose receivers are slow
SLOW_SECONDS = 1.0  # of an attempt, after which the receiver counts as slow
SLOW_FACTOR = 60  # for so many times that long: so it holds one of the other places for 2 % of the time at most

Result = TypeVar("Result")

logger = structlog.get_logger("trellis")


class Courier:
    """The webhooks of a *gateway*, by id. `run` has to run for anything to be delivered."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.settings = gateway.settings.webhooks
        self.clock = clock
        self.webhooks: dict[str, Webhook] = {}
        self._deliveries: dict[str, Delivery] = {}
        cluster = gateway.settings.cluster
        self.store = WebhookStore(gateway.settings.data, cluster.gateway if cluster.url else "")
        self._networks = tuple(map(ip_network, self.settings.allow_networks))
        self._head = 0  # the sequence up to which the log was searched for idle webhooks
        self._changed = False  # a position that is not saved
        self._unready: str | None = "they are being loaded"
        self._sender: Sender | None = None  # created with the first webhook

    # Running

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Load the webhooks, report that it has started, and deliver until cancelled; then save the positions.

        Webhooks that cannot be loaded hold up nothing else: all requests for them are refused with the reason.
        """
        self._slots, self._doubtful_slots = anyio.Semaphore(MAX_ATTEMPTS), anyio.Semaphore(MAX_DOUBTFUL)
        self._any = anyio.Event()  # set once there is a webhook
        self.backlog = Backlog(self.gateway.index)
        self._head = self.backlog.end
        try:
            loaded = await anyio.to_thread.run_sync(self.store.load)
        except (sqlite3.Error, OSError, ValueError) as error:
            self._unready = f"the webhooks cannot be loaded: {error}"
            self._report(error)
            task_status.started()
            return
        if self.store.foreign:
            logger.info("webhooks of other members of the cluster are left to them", count=self.store.foreign)
        gauges = self.gateway.metrics.gauges
        gauges["webhook_dead_letters"] = lambda: sum(each.dead_letters for each in self.webhooks.values())
        gauges["webhooks_disabled"] = lambda: sum(not each.enabled for each in self.webhooks.values())
        try:
            async with anyio.create_task_group() as self._tasks:
                for count, webhook in enumerate(loaded, 1):
                    await self.add(webhook)
                    if not count % STEP:
                        await anyio.sleep(0)
                self._unready = None
                task_status.started()
                await self._watch()
        finally:
            with anyio.CancelScope(shield=True):
                await self._save_positions()
                if self._sender is not None:
                    await self._sender.close()
            self.store.close()

    async def _watch(self) -> None:
        """Search new messages and save positions, until cancelled."""
        saved_at = anyio.current_time()
        while True:
            await self._any.wait()
            await anyio.sleep(POLL_SECONDS)
            try:
                await self._search()
            except Unavailable:  # the index is being rebuilt
                pass
            except Exception as error:
                self._report_bug(error)
            if self._changed and anyio.current_time() - saved_at >= SAVE_SECONDS:
                saved_at = anyio.current_time()
                await self._save_positions()

    async def _search(self) -> None:
        """Wake the idle webhooks that a new message matches, and move the positions of the others."""
        while self._head < self.backlog.end:
            if not any(each.idle for each in self._deliveries.values()):
                self._head = self.backlog.end  # the others search for themselves
                return
            found, end = self.backlog.page(self._head)
            channels = {place.channel for place in found}
            for count, each in enumerate(list(self._deliveries.values()), 1):
                if not count % STEP:
                    await anyio.sleep(0)
                if not each.idle:  # it searches for itself, beyond *end* if it becomes idle meanwhile
                    continue
                is_behind = each.scanned < self._head
                matches = is_behind or await matching(each.webhook, channels)
                if not each.idle or self._deliveries.get(each.webhook.id) is not each:
                    continue  # meanwhile
                if matches:
                    each.wake()
                else:
                    each.pass_by(end)
            self._head = end
            await anyio.sleep(0)

    async def add(self, webhook: Webhook) -> None:
        """Add *webhook*, and deliver to it if it is enabled."""
        if self._sender is None:
            self._sender = await anyio.to_thread.run_sync(Sender, self._networks, self.gateway.version)
        self.webhooks[webhook.id] = webhook
        self._any.set()
        if webhook.enabled:
            delivery = self._deliveries[webhook.id] = Delivery(webhook, self)
            self._tasks.start_soon(self._deliver, delivery)

    async def _deliver(self, delivery: Delivery) -> None:
        """Run *delivery*; a bug in it must not end anything else."""
        while self._deliveries.get(delivery.webhook.id) is delivery:
            try:
                await delivery.run()
                return
            except Exception as error:
                self._report_bug(error)
                await anyio.sleep(RETRY_SECONDS)

    def stop(self, webhook: Webhook) -> None:
        """Stop the deliveries to *webhook*."""
        if (delivery := self._deliveries.pop(webhook.id, None)) is not None:
            delivery.stop()

    # Called by deliveries

    async def page(self, after: int) -> tuple[list[BacklogEntry], int]:
        """Return `Backlog.page` in a turn of the loop that long answers share: a backlog may be the whole log."""
        return await run_in_turn(self.gateway.answer_scheduler, TURNS, partial(self.backlog.page, after))

    async def attempt(self, webhook: Webhook, place: BacklogEntry) -> Outcome | None:
        """Send the message at *place* once; None if it is not kept any more. Raises `Unavailable`."""
        doubtful = webhook.failures > 0 or anyio.current_time() < webhook.slow_until
        if (outcome := await self.send(webhook, place, doubtful=doubtful)) is not None:
            self._note(webhook, outcome)
        return outcome

    async def send(self, webhook: Webhook, place: BacklogEntry, *, doubtful: bool) -> Outcome | None:
        """Do what `attempt` does, but do not note whether the webhook fails.

        *doubtful* says that it is likely to fail, or to take long; such attempts have places of their own.
        """
        async with AsyncExitStack() as stack:
            if doubtful:
                await stack.enter_async_context(self._doubtful_slots)
            await stack.enter_async_context(self._slots)
            message = self.backlog.message(place)
            if message is None:
                return None
            body, now = views.message(self.gateway.peers, message), time()
            keys = [
                derive_secret(self.gateway.home.secret, webhook.id, generation)
                for generation in webhook.generations(int(now * 1000))
            ]
            sign = partial(signature_headers, keys, message.id, int(now), body)
            headers = sign() if len(body) <= SHORT_BODY else await anyio.to_thread.run_sync(sign)
            assert self._sender is not None
            begun = anyio.current_time()
            outcome = await self._sender.send(webhook.url, headers, body, self.settings.timeout_seconds)
            if (took := anyio.current_time() - begun) > SLOW_SECONDS:
                webhook.slow_until = begun + SLOW_FACTOR * took
        self.gateway.metrics.count("webhook_attempts", outcome.verdict.value)
        return outcome

    def _note(self, webhook: Webhook, outcome: Outcome) -> None:
        """Note whether *webhook* fails; the first failure is logged."""
        webhook.last_status, webhook.last_error = outcome.status, outcome.error or None
        if outcome.verdict is Verdict.DELIVERED:
            webhook.failures, webhook.failing_since = 0, None
            return
        webhook.failures += 1
        if webhook.failing_since is None:
            webhook.failing_since = self.clock()
            self.mark_changed()
            logger.warning("a webhook fails", webhook=webhook.id, host=webhook.host, reason=outcome.error)

    def mark_changed(self) -> None:
        """Save the positions soon."""
        self._changed = True

    async def add_dead_letter(self, webhook: Webhook, letter: DeadLetter) -> None:
        """Keep *letter* durably; retry until that succeeds."""
        while not await self._try(lambda: self.store.add_dead_letter(webhook.id, letter)):
            await anyio.sleep(RETRY_SECONDS)
        webhook.dead_letters += 1
        logger.warning("a webhook has a dead letter", webhook=webhook.id, sequence=letter.seq, reason=letter.error)

    async def disable(self, webhook: Webhook, reason: str) -> None:
        """Stop the deliveries of *webhook* until it is enabled again."""
        webhook.enabled, webhook.reason = False, reason
        logger.error("a webhook was disabled", webhook=webhook.id, host=webhook.host, reason=reason)
        self.stop(webhook)
        with anyio.CancelScope(shield=True):  # the task that calls this was just stopped
            await self._try(lambda: self.store.put(webhook))

    def check_ready(self) -> None:
        """Raise `Unavailable` unless the webhooks are loaded."""
        if self._unready is not None:
            raise Unavailable(self._unready)

    # The store

    async def _save_positions(self) -> None:
        self._changed = False
        rows = [(each.position, each.failing_since, each.id) for each in self.webhooks.values()]
        if rows and not await self._try(lambda: self.store.save_positions(rows)):
            self._changed = True

    async def run_saving(self, call: Callable[[], Result]) -> Result:
        """Run *call*, a method of the store, in a thread; raise `Unavailable` if it fails."""
        try:
            return await anyio.to_thread.run_sync(call)
        except (sqlite3.Error, OSError) as error:
            self._report(error)
            raise Unavailable(f"the webhooks cannot be saved: {error}") from error

    async def _try(self, call: Callable[[], Any]) -> bool:
        """Whether *call* succeeded; a failure is reported."""
        try:
            await anyio.to_thread.run_sync(call)
        except (sqlite3.Error, OSError) as error:
            self._report(error)
            return False
        return True

    def _report_bug(self, error: Exception) -> None:
        self.gateway.metrics.count("faults", "webhook")
        logger.error("deliveries to webhooks failed by a bug; they are tried again", exc_info=error)

    def _report(self, error: Exception) -> None:
        self.gateway.metrics.count("faults", "webhook")
        logger.error("the webhooks cannot be read or saved", error=repr(error), consequence="it is retried")
