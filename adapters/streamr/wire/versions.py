"""The versions that a client requests in the URL, and the reference's errors for unsupported ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gateway.core.errors import RequestError

from .control import CONTROL
from .message_layouts import LAYOUTS

# The parameter, its name in the reference's errors, and the supported versions.
LAYERS = (
    ("controlLayerVersion", "ControlLayer", tuple(map(str, CONTROL))),
    ("messageLayerVersion", "MessageLayer", tuple(map(str, LAYOUTS))),
)
_INTEGER = re.compile(r"\s*([+-]?[0-9]+)")

Versions = tuple[int | None, int | None]  # of control frames and of messages; None if the client requests none


class UnsupportedVersion(RequestError):
    """A client requests an unsupported version; the text is the reference's."""


def versions_of(query: Mapping[str, str]) -> Versions:
    """The versions that the *query* of a URL requests; `UnsupportedVersion` if one is not supported."""
    control, message = (_version(query.get(parameter), layer, supported) for parameter, layer, supported in LAYERS)
    return control, message


def _version(text: str | None, layer: str, supported: Iterable[str]) -> int | None:
    if not text:
        return None
    version = _parse_int(text)
    if version in supported:
        return int(version)
    listed = f"Supported {layer} versions: [{','.join(supported)}]. Are you using an outdated library?"
    raise UnsupportedVersion(f"Unsupported version: {version}, message: {listed}")


def _parse_int(text: str) -> str:
    """The digits that JavaScript's `parseInt` would read."""
    found = _INTEGER.match(text)
    return str(int(found[1][:20])) if found else "NaN"
