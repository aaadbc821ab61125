"""The channels that a gateway begins with: those of the index, and those that the operator names."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import structlog

from gateway.core.channels import Channels, valid_name

if TYPE_CHECKING:
    from gateway.monitoring.metrics import Metrics
    from gateway.settings.settings import ChannelSettings

logger = structlog.get_logger("trellis")


def load_channels(channels: Channels, indexed: Iterable[tuple[str, dict[str, str], bool]], metrics: Metrics) -> None:
    """Load the *indexed* channels; an address that another channel has is left out and reported."""
    for name, addresses, is_open in indexed:
        if not valid_name(name):
            continue
        taken = {key for key, address in addresses.items() if channels.owner(key, address) not in (None, name)}
        if taken:
            metrics.count("faults", "channel")
            logger.error("a channel's address belongs to another channel", channel=name, left_out=sorted(taken))
        channels.restore(name, {key: each for key, each in addresses.items() if key not in taken}, open=is_open)


def configure_channels(
    channels: Channels, settings: ChannelSettings, protocols: Collection[str], metrics: Metrics
) -> None:
    """Make the channels in *settings*; a pin that conflicts with the log is reported and not applied.

    Pins of others than the enabled *protocols* are ignored.
    """
    for name, addresses in settings.pins.items():
        try:
            channels.pin(name, {key: value for key, value in addresses.items() if key in protocols})
        except ValueError as error:
            metrics.count("faults", "pin")
            logger.error("a pin is not followed", channel=name, reason=str(error))
    for name in settings.names:
        channels.configure(name)
