"""Groups the listeners of a channel: delivering to a whole class costs less than to each session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from .channels import GATEWAY_PREFIX
from .flows import Flow, Flows
from .subscriber import Subscriber


class Group(NamedTuple):
    """The sessions of a channel of one class and dialect, and the flows to their protocol, by protocol of origin."""

    kind: type[Subscriber]
    sessions: list[Subscriber]
    flows: Mapping[str, Flow]


Trace = Callable[[list[Group]], list[Group]]  # the groups in the place of others: see `trace`


def group_sessions(
    channel: str, sessions: Iterable[Subscriber], flows: Flows, trace: Trace | None = None
) -> list[Group]:
    """*sessions*, which hear what is published on *channel*, by class and dialect; *flows* are those to be counted."""
    classes: dict[tuple[type[Subscriber], str], list[Subscriber]] = {}
    for session in sessions:
        classes.setdefault((type(session), session.dialect(channel)), []).append(session)
    if channel.startswith(GATEWAY_PREFIX):  # what the gateway publishes about itself is not counted
        flows = Flows()
    groups = [Group(kind, group, flows.to_protocol(kind.protocol)) for (kind, _), group in classes.items()]
    return groups if trace is None else trace(groups)
