"""The principal of a connection or request: the identity that rights are granted to."""

from __future__ import annotations

from typing import NamedTuple


class Principal(NamedTuple):
    """An identity with the *name* that grants refer to.

    A principal with an API key has only the rights of that *key* (its id), also if other keys share its name.
    """

    name: str
    network: str = ""  # of its address, for rate limits
    key: str = ""
