"""The principal of a connection or request: who is asking, as far as the gateway can tell."""

from __future__ import annotations

from typing import NamedTuple


class Principal(NamedTuple):
    """Who is asking: a *name* that grants refer to.

    A principal with an API key has the rights of that *key* (its id) and no others, whatever else has its name.
    """

    name: str
    address: str = ""  # its network, for rate limits
    key: str = ""
