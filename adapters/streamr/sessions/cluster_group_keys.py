"""Group keys over all gateways of a cluster: key exchanges and rotations go to the clients of all.

They are neither on the bus nor in the log. Each gateway checks what another one tells as it checks its own clients,
except for rights, which the gateway of the sender has checked.
"""

from __future__ import annotations

from adapters.streamr.publishing.validation import check_key_exchange, check_signature, check_time
from adapters.streamr.shared_parts import StreamrParts
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME, channel_of, key_exchange_address
from adapters.streamr.wire.message import GROUP_KEY_ROTATE, parse_message

from .session import rotate


def hear(parts: StreamrParts, data: bytes) -> None:
    """Take a group-key message that was sent at another gateway; raises `StreamrError` if *data* is not one."""
    message, now = parse_message(data), parts.context.bus.clock()
    if (address := key_exchange_address(message.id.stream_id)) is not None:
        check_key_exchange(message, now)
        parts.key_exchange.receive(message, address)
    elif message.message_type == GROUP_KEY_ROTATE:
        check_time(message, now)
        check_signature(message)
        bus = parts.context.bus
        channel = bus.channels.channel(NAME, channel_of(message.id.stream_id, message.id.stream_partition))
        rotate(parts, message, channel)
    else:
        raise StreamrError("neither a key exchange nor a rotation of a group key")
