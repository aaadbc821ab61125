"""Delivers what is published: groups the listeners of each channel by class, and calls each class once for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .errors import RequestError
from .flows import Flows
from .listener_groups import Group, Trace, group_sessions
from .message import Message
from .subscriber import Subscriber
from .watchers import Watchers


class FanOut:
    """Delivers runs to *members*, the listening sessions by channel, and to *watchers*, and counts them in *flows*."""

    def __init__(
        self,
        members: Mapping[str, Mapping[Subscriber, None]],
        watchers: Watchers,
        may_listen: Callable[[Subscriber, str], bool],
        tracers: Mapping[str, Trace],
        flows: Flows,
    ) -> None:
        self._members = members
        self._watchers = watchers
        self._may_listen = may_listen
        self._tracers = tracers
        self._flows = flows
        self._groups: dict[str, list[Group]] = {}  # by channel; dropped when members change

    def members_changed(self, channel: str) -> None:
        """Forget the groups of *channel*: its listeners have changed, or the dialect of one."""
        self._groups.pop(channel, None)

    def deliver(self, run: Sequence[Message], origins: Sequence[Subscriber | None]) -> int:
        """Deliver *run* to the members of its channel and to its watchers, but no message to its origin.

        *run* is as in `Bus.take`. Return the number of deliveries.
        """
        first, deliveries = run[0], 0
        groups = self._groups.get(first.channel) or self._group(first.channel)
        if self._watchers.prefixes:
            groups = groups + self._watching_groups(first.channel)
        for kind, sessions, flows in groups:
            if not first.late or kind.protocol == first.protocol:
                skipped = (None,) * len(run) if kind.echo else origins
                try:
                    delivered = kind.deliver_all(run, sessions, skipped)
                except RequestError as error:  # what a form depends on cannot be read
                    delivered = 0
                    _close_all(sessions, skipped, str(error))
                flow = flows[first.protocol]
                flow.delivered += delivered
                if flow.samples and delivered:
                    only = sessions[0] if all(origin is sessions[0] for origin in skipped) else None
                    sessions[0 if only is None else -1].sample(flow)
                deliveries += delivered
        return deliveries

    def _group(self, channel: str) -> list[Group]:
        """The members of *channel* in groups, which are kept until the members change."""
        groups = group_sessions(channel, self._members.get(channel, ()), self._flows, self._tracers.get(channel))
        if groups:
            self._groups[channel] = groups
        return groups

    def _watching_groups(self, channel: str) -> list[Group]:
        """The watchers of *channel* that may listen to it and are no members, in groups."""
        members = self._members.get(channel, ())
        watching = (session for session in self._watchers.of(channel) if session not in members)
        may_listen = (session for session in watching if self._may_listen(session, channel))
        return group_sessions(channel, may_listen, self._flows)


def _close_all(sessions: Sequence[Subscriber], skipped: Sequence[Subscriber | None], reason: str) -> None:
    """Close the *sessions* that miss a message: they can catch up when they connect again."""
    for session in sessions:
        if any(origin is not session for origin in skipped):
            session.close(1011, reason)
