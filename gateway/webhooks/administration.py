"""What administrators do with webhooks and their dead letters; a change is on disk before it is answered."""

from __future__ import annotations

import secrets
from dataclasses import replace

import anyio
import structlog

from .backlog import BacklogEntry
from .courier import Courier
from .model import DeadLetter, Webhook
from .sender import Outcome, Verdict
from .signature import derive_secret, encode_secret

logger = structlog.get_logger("trellis")


class Administration:
    """Changes the webhooks of a *courier*. Everything raises `Unavailable` if the store cannot be used."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._gateway = courier.gateway
        self._store = courier.store
        self._lock = anyio.Lock()  # one change at a time

    def secret(self, webhook: Webhook) -> str:
        """Return the newest secret of *webhook*, as receivers get it."""
        return encode_secret(derive_secret(self._gateway.home.secret, webhook.id, webhook.generation))

    async def create(self, url: str, channels: str, after: int | None, by: str | None) -> Webhook | None:
        """Create a webhook for what follows the sequence *after*, by default for messages from now on.

        Returns None if there are `webhooks.limit` already.
        """
        async with self._lock:
            if len(self._courier.webhooks) >= self._courier.settings.limit:
                return None
            newest = self._gateway.log.next_seq - 1
            position = newest if after is None else min(after, newest)
            webhook = Webhook(f"wh_{secrets.token_hex(8)}", url, channels, self._courier.clock(), by, position)
            await self._courier.run_saving(lambda: self._store.put(webhook))
            await self._courier.add(webhook)
        logger.info("a webhook was created", webhook=webhook.id, host=webhook.host, channels=channels, by=by)
        return webhook

    async def change(self, webhook: Webhook, *, url: str | None = None, enabled: bool | None = None) -> None:
        """Change the URL of *webhook*, or enable or disable it; enabling it tries again at once."""
        async with self._lock:
            goal = replace(webhook, url=url or webhook.url)
            if enabled is not None:
                goal = replace(goal, enabled=enabled, reason=None if enabled else "an administrator disabled it")
            await self._courier.run_saving(lambda: self._store.put(goal))
            self._courier.stop(webhook)
            webhook.url, webhook.enabled, webhook.reason = goal.url, goal.enabled, goal.reason
            webhook.failures, webhook.failing_since = 0, None
            await self._courier.add(webhook)

    async def rotate(self, webhook: Webhook) -> str:
        """Give *webhook* a new secret and return it; the old one signs as well for `ROTATION_MS`."""
        async with self._lock:
            goal = replace(webhook, generation=webhook.generation + 1, rotated=self._courier.clock())
            await self._courier.run_saving(lambda: self._store.put(goal))
            webhook.generation, webhook.rotated = goal.generation, goal.rotated
        return self.secret(webhook)

    async def delete(self, webhook: Webhook) -> None:
        """Delete *webhook* and its dead letters."""
        async with self._lock:
            await self._courier.run_saving(lambda: self._store.delete(webhook.id))
            self._courier.stop(webhook)
            self._courier.webhooks.pop(webhook.id, None)
        logger.info("a webhook was deleted", webhook=webhook.id)

    async def dead_letters(self, webhook: Webhook, after: int, limit: int) -> list[DeadLetter]:
        """Return dead letters above the sequence *after*, lowest first."""
        return await self._courier.run_saving(lambda: self._store.dead_letters(webhook.id, after, limit))

    async def retry(self, webhook: Webhook, letter: DeadLetter) -> Outcome | None:
        """Send a dead letter again, at once, and delete it if it is delivered; None if its message is not kept."""
        outcome = await self._courier.send(webhook, BacklogEntry(letter.seq, 0, letter.channel), doubtful=True)
        if outcome is not None and outcome.verdict is Verdict.DELIVERED:
            await self.delete_dead_letter(webhook, letter.seq)
        return outcome

    async def delete_dead_letter(self, webhook: Webhook, seq: int) -> None:
        """Delete one dead letter."""
        if await self._courier.run_saving(lambda: self._store.delete_dead_letter(webhook.id, seq)):
            webhook.dead_letters -= 1
