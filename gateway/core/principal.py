"""Who stands behind a connection, as far as the gateway can tell."""

from __future__ import annotations

from typing import NamedTuple


class Principal(NamedTuple):
    """Who stands behind a connection, as far as the gateway can tell: a name that grants refer to.

    Who came with an API key has the rights of that *key* (its id) and no others, whatever else has its name.
    """

    name: str
    address: str = ""  # where from, for rate limits
    key: str = ""
