"""The text that `trellis serve` prints once it listens: the address of each protocol, and three commands to try.

README.md shows the same three commands; a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from .adapter import Adapter

DEFAULT_ADDRESS = "127.0.0.1:8080"  # of the gateway that the commands use without --gateway
RELAY = "/relay"  # the path of the protocol whose messages are easiest to type
PACKET = '{"type":6,"topic":"lobby","content":"hello from the topic relay"}'


def welcome(adapters: Iterable[Adapter], http: str, listening: Mapping[str, str | None], *, tls: bool) -> str:
    """Return the text. *http* and *listening* are addresses as in the ready line."""
    adapters = list(adapters)
    http = reachable(http)
    places = {"REST": f"{_scheme('http', tls)}{http}/v1, described at /docs"}
    for adapter in adapters:
        found = [f"{_scheme('ws', tls)}{http}{path}" for path in adapter.paths]
        found += [
            f"{address} ({'TLS' if listener.tls else 'TCP'})"
            for listener in adapter.listeners()
            if (address := listening.get(listener.name)) is not None
        ]
        places[adapter.title] = ", ".join(found)
    width = max(map(len, places))
    lines = [f"  {title.ljust(width)}  {place}" for title, place in places.items()]
    relay = any(RELAY in adapter.paths for adapter in adapters)
    tries = [f"  {line}" for line in lines_to_try(http, prefix(sys.argv[0]), tls=tls)[: 3 if relay else 2]]
    return "\n".join(["Trellis listens:", *lines, "Try it from another terminal; Ctrl-C stops the gateway:", *tries])


def lines_to_try(http: str = DEFAULT_ADDRESS, prefix: str = ".venv/bin/", *, tls: bool = False) -> list[str]:
    """Return a command that listens, and two that publish on different protocols; *prefix* is their folder."""
    where = "" if http == DEFAULT_ADDRESS and not tls else f" --gateway {_scheme('http', tls)}{http}"
    return [
        f"{prefix}trellis tail lobby{where}",
        f"{prefix}trellis publish lobby 'hello from REST'{where}",
        f"echo '{PACKET}' | {prefix}websockets {_scheme('ws', tls)}{http}{RELAY}",
    ]


def prefix(program: str) -> str:
    """Return the folder, with its slash, under which *program* was started; empty if it was found on the PATH."""
    return program.removesuffix("trellis") if program.endswith("/trellis") else ""


def reachable(address: str) -> str:
    """Return *address* with the loopback address in place of "all interfaces", so that this machine can dial it."""
    return address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")


def _scheme(name: str, tls: bool) -> str:
    return f"{name}s://" if tls else f"{name}://"
