"""A running gateway: the log, the index, the bus and the adapters, put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from time import monotonic, time_ns
from typing import Any

import structlog

from gateway.access.key_upkeep import AccessManager
from gateway.access.throttle import Throttle
from gateway.core.answer_scheduler import AnswerScheduler
from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.contracts import Policies
from gateway.core.message import MessageIds, Peer
from gateway.core.peers import PeerRegistry
from gateway.core.stamper import LogClock, Stamper
from gateway.core.trace import Tracer
from gateway.core.watchdog import Progress, Watchdog
from gateway.listeners.admission import Admission
from gateway.listeners.certificate import Certificate
from gateway.listeners.proxies import TrustedProxies
from gateway.membership import cluster_report
from gateway.membership.membership import Membership
from gateway.membership.remote_entries import ForeignEntries
from gateway.monitoring import logs, tracing
from gateway.monitoring.access_log import AccessLog
from gateway.monitoring.faults import Faults
from gateway.monitoring.metrics import Metrics
from gateway.settings.configured_limits import memory_budget, read_pacer, retention_limits
from gateway.settings.settings import Settings
from gateway.shells.links import Dialler
from gateway.storage import permissions
from gateway.storage.compaction import Compaction
from gateway.storage.fact_lifetimes import Lifetimes
from gateway.storage.index import Index
from gateway.storage.indexed_log import IndexedLog
from gateway.storage.log import SealPolicy
from gateway.storage.retention import Retention
from gateway.storage.segments import Segments
from gateway.system import machine, systemd
from gateway.system.data_lock import lock
from gateway.system.posting import Post
from gateway.system.worker import Timer, Work, Worker

from . import identity
from .adapter import Adapter, Services
from .channel_setup import configure_channels, load_channels
from .facts_in_use import GatewayFactCache
from .sequencer import LocalSequencer, Sequencer

MINUTE = 60_000  # ms

logger = structlog.get_logger("trellis")


def clock() -> int:
    """Milliseconds since 1970."""
    return time_ns() // 1_000_000


class Gateway:
    """Everything between the listeners and the disk: created, started with a way to call its loop, and stopped.

    Its `membership` in a cluster, if it is to have one, is set before it starts.
    """

    def __init__(self, settings: Settings, adapters: Iterable[type[Adapter]]) -> None:
        self.settings = settings
        self.membership: Membership | None = None
        self.version = version("trellis-gateway")
        kinds = [row for row in adapters if settings.section(row).enabled]
        self.metrics = Metrics(row.name for row in kinds)
        self.faults = Faults(self.metrics)
        self.started = clock()
        permissions.make_directory(settings.data)
        for error in permissions.restrict(settings.data):
            logger.warning("other users may read the data", error=str(error), consequence="the permissions stay")
        self._lock = lock(settings.data)
        self.home = identity.load_or_create(settings.data / "keys", self.version)
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self.certificate = Certificate(settings)
        self.access_manager = AccessManager(settings, settings.data / "keys")
        self.access = self.access_manager.access
        self.adapters = [row(settings.section(row), self.home) for row in kinds]
        self.access_log = AccessLog(settings.access_log)
        self.tracing = tracing.of(settings, self.version, self.home.gateway_id)
        self.ready = False
        self.watchdog = Watchdog(self.faults.stalled, self.faults.late)
        self.links: list[Dialler] = []  # the application runs them on its loop
        self.at_goodbye: set[Callable[[], None]] = set()  # called when the gateway stops, for what is not a session
        self._is_stopped = False
        self._ticking = False  # whether `_tick` waits for the turn
        self._retain_at = 0.0  # by the monotonic clock
        self._minute = self.started // MINUTE * MINUTE  # the minute whose counts are logged next

    def start(self, post: Post) -> None:
        """Open the log and the index, and start everything; *post* runs a call on this thread's loop."""
        ids = MessageIds(int(self.home.gateway_id, 16))
        if self.membership is not None:
            self.membership.join(self.settings.data, partial(self._index_log, post, ids))
        self._open_storage(post, ids)
        self._open_bus(ids)
        self.sequencer: Sequencer = self.membership or LocalSequencer(self.bus, self.log)
        self.bus.submit = self.sequencer.submit
        if self.membership is not None:
            foreign = ForeignEntries(self.bus, self.log, self.adapters, self.log_clock.reach)
            self.membership.start(self.log, self.bus, foreign)
        self.budget.post = post
        loop, post = post, self._when_acting(post)
        notices = self.bus.presence.notices
        notices.post, notices.later = loop, Timer(loop).later
        self._open_retention(post)
        self.index.start()
        self.log.start()
        self.sequencer.submit_fact("start", {"gateway": self.home.gateway_id, "version": self.version})
        self.channels.on_created = self.access_log.channel_created
        configure_channels(self.channels, self.settings.channels, {each.name for each in self.adapters}, self.metrics)
        self._worker = Worker(loop, self.faults.worker)
        self._trimmer = machine.Trimmer(self._worker.submit)
        self.answer_scheduler = AnswerScheduler(
            loop,
            Timer(loop).later,
            lambda: self.log.next_seq,
            clock,
            charge_network=self._read_pacer.charge_answer,
        )
        services = self._services(post)
        self.access_manager.start(self.bus, loop, self._worker.submit)  # what is revoked ends without a turn
        for adapter in self.adapters:
            self._start_adapter(adapter, services)
            self.links += [Dialler(adapter.name, link, clock) for link in adapter.links()]
        self._watch()
        if self.membership is not None:
            self.membership.started(loop)
        self.ready = True

    def _when_acting(self, post: Post) -> Post:
        """Run calls as *post* does, but in a cluster only while this gateway accepts."""
        if (membership := self.membership) is None:
            return post
        return lambda call: post(lambda: membership.when_acting(call))

    def _work_when_acting(self) -> Work:
        """Run calls as the worker does, but in a cluster run what follows only while this gateway accepts."""
        submit = self._worker.submit
        if (membership := self.membership) is None:
            return submit
        return lambda call, done: submit(call, lambda result: membership.when_acting(partial(done, result)))

    def _services(self, post: Post) -> Services:
        """What the adapters get."""
        work, work_aside = self._work_when_acting(), self._worker.submit
        return Services(
            *(self.bus, self.log, self.index, post, work, work_aside, self.sequencer.submit_fact),
            *(self.metrics, self.access, self.answer_scheduler),
            retention_ms=lambda: self.retention.limits.age,
            handshake_seconds=self.settings.limits.handshake_seconds,
            tell_members=self.membership.signalling.tell_adapters if self.membership else lambda _protocol, _data: None,
        )

    def _watch(self) -> None:
        """Watch that every queue makes progress."""
        log, index, dog = self.log, self.index, self.watchdog
        dog.watch("the log", lambda: Progress(log.next_seq - 1 - log.synced_seq, log.synced_seq))
        dog.watch("the index", lambda: Progress(index.synced_seq - index.level, index.level))
        dog.watch("the worker", lambda: self._worker.progress)
        dog.watch("the long answers", lambda: self.answer_scheduler.progress)

    def _start_adapter(self, adapter: Adapter, services: Services) -> None:
        """Start *adapter*; if it fails, rebuild the index, whose damage may be the cause, and start it again."""
        try:
            adapter.start(services)
        except Exception as error:  # a byte of the index may have changed to anything
            self.faults.index(error)
            self.index.rebuild()
            adapter.start(services)

    def _open_storage(self, post: Post, ids: MessageIds) -> None:
        """Open the log and the index, and make the index agree with the log."""
        segments = Segments(self.settings.data / "log")
        self.index = self._open_index(segments, post, ids)
        applied = self.index.catch_up()
        for fault in segments.faults:
            self.faults.record(fault)
        segments.on_fault = self.faults.record
        limits = self.settings.log
        sealing = SealPolicy(bytes=limits.segment_bytes)
        agreed = clock if self.membership is None else self.membership.agreed_clock(clock)
        self.log_clock = LogClock(agreed, self.index.last_time)
        self.log = IndexedLog(
            self.index, segments, post, self.log_clock.now, sealing=sealing, on_fault=self.faults.disk
        )
        logger.info("started", gateway=self.home.gateway_id, last_seq=segments.next_seq - 1, indexed=applied)

    def _open_index(self, segments: Segments, post: Post, ids: MessageIds) -> Index:
        path, search = self.settings.data / "index.sqlite", self.settings.log.search
        index = Index(path, segments, ids, self.adapters, post, search=search)
        index.on_fault = self.faults.index
        return index

    def _index_log(self, post: Post, ids: MessageIds) -> None:
        """Index what the log has, before the gateway starts."""
        segments = Segments(self.settings.data / "log")
        index = self._open_index(segments, post, ids)
        try:
            index.catch_up()
        finally:
            index.close()
            segments.close()

    def _open_retention(self, post: Post) -> None:
        """Set up retention and compaction."""
        segments = self.log.segments
        compaction = Compaction(
            segments, self.index, Lifetimes(self.adapters), GatewayFactCache(self.bus, self.adapters), post
        )
        self.retention = Retention(
            segments,
            self.index,
            retention_limits(self.settings),
            clock,
            post=post,
            append_marker=lambda: self.sequencer.submit_fact(
                "counts", {"minute": clock() // MINUTE * MINUTE, "flows": []}
            ),
            compaction=compaction,
        )
        self.retention.on_fault, self.retention.on_retired = self.faults.retention, self.faults.retired

    def _open_bus(self, ids: MessageIds) -> None:
        """Set up the channels, the peers and the bus."""
        about = self.settings.channels
        self.channels = Channels(
            self.adapters, self._channel_fact, create=about.create == "open", limit=about.limit, kept=self._kept
        )
        load_channels(self.channels, self.index.channels(), self.metrics)
        self.peers = PeerRegistry(
            self.index.next_number, self._block_fact, self._peer_fact, self.index.peer, self.index.peer_numbered
        )
        limits = self.settings.limits
        self.budget = memory_budget(self.settings, self.metrics)
        self._read_pacer = read_pacer(limits, self.budget, lambda: self.log.crowded)
        self.throttle = Throttle(limits, monotonic) if limits.rates == "on" else None
        self.bus = Bus(
            self.log,
            self.channels,
            self.peers,
            Stamper(ids, self.log_clock.now),
            clock,
            self.metrics,
            translators=self.adapters,
            policies=Policies(self.access.allowed, self.throttle, self._read_pacer, limits.subscriptions),
        )
        self.log.on_resume = self.bus.resume_waiting
        self.bus.charge = self.charge
        self.bus.on_join, self.bus.on_leave = self.access_log.opened, self.access_log.closed
        self.metrics.on_refused = self.access_log.refused
        if self.tracing is not None:
            self.tracing.install(self.bus)
        self.tracer = Tracer(self.bus, partial(self.log.when_synced, hurry=False))
        self.admission = Admission(self.access, limits, self.bus, self.metrics)

    def charge(self, network: str, requests: float) -> None:
        """Charge *network* for work that equals *requests* usual requests."""
        if self.throttle is not None:
            self.throttle.charge(network, requests)

    def unready_reasons(self) -> list[str]:
        """Why this gateway is not ready, each in a sentence for operators; empty if it is."""
        if not self.ready:
            return ["the gateway starts or stops"]
        found: list[str] = []
        if self.log.failing is not None:
            found.append(f"the log cannot be written: {self.log.failing}")
        elif self.log.congested and not self.log.held:
            found.append("the disk does not keep up")
        if self.index.trouble is not None:
            found.append(self.index.trouble)
        if self.membership is not None and self.membership.trouble is not None:
            found.append(self.membership.trouble)
        return found + [f"{name} makes no progress" for name in self.watchdog.stalled]

    def cluster_report(self) -> dict[str, Any] | None:
        """How this gateway is doing in its cluster; None if it runs alone."""
        membership = self.membership
        return None if membership is None else cluster_report.report(membership, self.settings.cluster.name)

    def tick(self) -> None:
        """Do all of `tick_in_slices` now."""
        for _ in self.tick_in_slices():
            pass

    def tick_in_slices(self) -> Iterator[None]:
        """Do what is due, once a second; yield often, for others to have a turn of the loop."""
        self.watchdog.tick()
        systemd.notify(systemd.ALIVE)
        self.metrics.counts["log_lines_left_out"][()] = logs.flush()
        self.budget.audit_soon()
        self.answer_scheduler.tick()
        self.tracer.tick()
        self.access_manager.tick()
        self._trimmer.tick()
        yield from self.bus.tick_in_slices()  # not in a turn: timeouts hold also while nobody accepts
        if self.membership is None:
            self._tick()
            return
        self.membership.tick()
        cluster_report.count(self.metrics, self.membership)
        if not self._ticking:
            self._ticking = True
            self.membership.when_acting(self._tick)

    def _tick(self) -> None:
        """Do what is due and may log something."""
        self._ticking = False
        self._tell_flows()
        for adapter in self.adapters:
            adapter.tick(clock())
        if (now := monotonic()) >= self._retain_at:
            self._retain_at = now + MINUTE / 1000
            self.retention.tick()

    def _tell_flows(self, *, last: bool = False) -> None:
        """Log what was delivered in a minute, once it is over or the gateway stops."""
        self.bus.flows.tick()
        if (now := clock() // MINUTE * MINUTE) == self._minute and not last:
            return
        minute, self._minute = self._minute, now
        if flows := self.bus.flows.take_counts():
            self.sequencer.submit_fact("counts", {"minute": minute, "flows": flows})

    def goodbye(self) -> None:
        """Tell every peer, in its protocol, that the gateway stops."""
        self.ready = False
        systemd.notify(systemd.STOPPING)
        self.bus.gathering.publish()
        if self.membership is not None:
            self.membership.goodbye()
        for link in self.links:
            link.stop()
        for session in self.bus.sessions():
            session.goodbye()
        for call in list(self.at_goodbye):
            call()

    def stop(self) -> None:
        """Finish pending work, write the log to its end, and unlock the data directory. Once is enough."""
        if self._is_stopped:
            return
        self.ready, self._is_stopped = False, True
        self.watchdog.stop()
        self.retention.stop()
        self._worker.stop()
        self.access_manager.stop()
        if self.membership is None or self.membership.turn.acting:
            self._tell_flows(last=True)
        if self.membership is not None:
            self.membership.leave()
        self.log.close()
        if self.membership is not None:
            self.membership.closed()
        self.index.close()
        if self.tracing is not None:
            self.tracing.stop()
        os.close(self._lock)
        logger.info("stopped", last_seq=self.log.next_seq - 1)

    def _kept(self, channels: Sequence[str]) -> set[str]:
        """Those of *channels* that have a message in the log, or one that is about to be."""
        return {name for name, seq in self.index.last_seqs(channels).items() if seq or self.index.unapplied(name)}

    def _channel_fact(self, channel: str, addresses: Any, is_open: bool) -> None:
        self.sequencer.submit_fact("channel", {"channel": channel, "addresses": dict(addresses), "open": is_open})
        if is_open and self.ready:  # until then each adapter looks for itself what there is
            for adapter in self.adapters:
                adapter.channel_registered(channel)

    def _block_fact(self, first: int, count: int) -> None:
        self.sequencer.submit_fact("peer", {"first": first, "count": count})

    def _peer_fact(self, peer: Peer) -> None:
        name = {} if peer.name is None else {"name": peer.name}
        self.sequencer.submit_fact(
            "peer", {"peer": peer.number, "protocol": peer.protocol, "sender": peer.identity} | name
        )
