"""What the parts of the running adapter share: the gateway's services, and the state of streams and users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.streamr.crypto.keys import EthereumAccount
    from adapters.streamr.model.bridge_signer import BridgeSigner
    from adapters.streamr.model.login import Logins
    from adapters.streamr.model.publishers import Publishers
    from adapters.streamr.model.streams import Streams
    from gateway.access.authorization import Access
    from gateway.adapter import Installation, Services
    from gateway.core.bus import Bus


@dataclass(frozen=True, slots=True)
class Context:
    """Made when the adapter starts.

    *own* is the account with which the gateway signs on its own behalf; *batch_verification* is the setting.
    """

    bus: Bus
    access: Access
    services: Services
    home: Installation
    streams: Streams
    bridge_signer: BridgeSigner
    publishers: Publishers
    logins: Logins
    own: EthereumAccount
    batch_verification: bool
