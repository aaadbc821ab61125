"""The checks of single fields, in the words of the reference library.

Genuine clients show these sentences to their users, so a field refused here is refused as
streamr-client-protocol 8 would say it. A missing field is `UNDEFINED`, unlike a null one.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from .errors import StreamrError

# The largest integer that every JSON reader keeps exactly (ECMAScript: Number.MAX_SAFE_INTEGER).
MAX_INTEGER = 2**53 - 1

# Characters of the texts that a peer chooses and that are looked up, stored or echoed (contents are limited by the
# frame). Genuine ids have some 40, and a stream's name with what marks an inbox in it has at most 302; S0 writes an RSA
# public key (800) for a groupKeyId. A requestId may hold the id of a stream.
MAX_NAME = 512
MAX_ID = 1_024
MAX_KEY = 8_192
# fmt: off
MAX_LENGTHS: Final = {
    **dict.fromkeys(("streamId", "publisherId", "signature", "source", "targetNode", "subType", "errorCode"), MAX_NAME),
    **dict.fromkeys(("requestId", "subId", "msgChainId", "sessionToken", "apiKey", "nodeAddresses"), MAX_ID),
    **dict.fromkeys(("groupKeyId", "newGroupKey", "encryptedGroupKeyHex", "groupKey", "rsaPublicKey"), MAX_KEY),
    "errorMessage": MAX_KEY,
}
# fmt: on

# Characters of a refused value that an error repeats: enough to recognise it, without echoing a megabyte.
MAX_QUOTED = 200


class _Missing(Enum):
    UNDEFINED = "undefined"


UNDEFINED: Final = _Missing.UNDEFINED

_JS_TYPES: Final = {bool: "boolean", int: "number", float: "number", str: "string"}
_JS_WORDS: Final = {None: "null", True: "true", False: "false", UNDEFINED: "undefined"}


def text(name: str, value: Any) -> str:
    """A string, which may be empty; names, ids and keys of at most `MAX_LENGTHS` characters."""
    if type(value) is str:
        if len(value) > MAX_NAME and len(value) > MAX_LENGTHS.get(name, len(value)):
            raise StreamrError(f"Expected {name} to have at most {MAX_LENGTHS[name]} characters.")
        return value
    _require(name, value)
    raise StreamrError(f"Expected {name} to be a string but was a {_js_type(value)} ({js_text(value)}).")


def nonempty(name: str, value: Any) -> str:
    """A string of at least one character."""
    if value == "":
        raise StreamrError(f"Expected {name} to not be an empty string.")
    return text(name, value)


def optional_text(name: str, value: Any) -> str | None:
    """A string, or None where the field is null or missing."""
    return None if value is None or value is UNDEFINED else text(name, value)


def integer(name: str, value: Any) -> int:
    """An integer from 0 to `MAX_INTEGER`; 5.0 is one, as in JavaScript."""
    if type(value) is not int:
        _require(name, value)
        if type(value) is not float or not value.is_integer():
            raise StreamrError(f"Expected {name} to be an integer but was a {_js_type(value)} ({js_text(value)}).")
    if value < 0:
        raise StreamrError(f"Expected {name} to not be negative ({js_text(value)}).")
    if value > MAX_INTEGER:
        raise StreamrError(f"Expected {name} to be an integer but was a number ({js_text(value)}).")
    return int(value)


def as_integer(value: Any) -> Any:
    """*value* as an integer if JavaScript does not distinguish them, as 2.0 and 2; otherwise unchanged."""
    return int(value) if type(value) is float and value.is_integer() else value


def optional_integer(name: str, value: Any) -> int | None:
    """An integer, or None where the field is null or missing."""
    return None if value is None or value is UNDEFINED else integer(name, value)


def array(name: str, value: Any) -> list[Any]:
    """A JSON array."""
    if type(value) is list:
        return value
    _require(name, value)
    raise StreamrError(f"Expected {name} to be an array but was a {_js_type(value)} ({js_text(value)}).")


def padded(elements: list[Any], size: int) -> list[Any]:
    """Exactly *size* elements: extra ones are cut off, missing ones are `UNDEFINED`."""
    if len(elements) == size:
        return elements
    return [*elements[:size], *[UNDEFINED] * (size - len(elements))]


def echoed_id(value: Any) -> str:
    """*value* as the requestId of an error; empty if it is not a string, or too long to echo."""
    return value if type(value) is str and len(value) <= MAX_ID else ""


def code(kind: str, value: Any, allowed: frozenset[int]) -> int:
    """One of the *allowed* numbers of an enumeration; *kind* names it in the error."""
    if type(value) in (int, float) and value in allowed:
        return int(value)
    raise StreamrError(f"Unsupported {kind}: {js_text(value)}")


def js_text(value: Any) -> str:
    """*value* as a JavaScript template string shows it, cut after `MAX_QUOTED` characters."""
    return _js_text(value)[:MAX_QUOTED]


def _js_text(value: Any) -> str:
    if type(value) is str:
        return value
    if type(value) is list:
        return ",".join("" if item is None else _js_text(item) for item in value)
    if type(value) is dict:
        return "[object Object]"
    if type(value) in (int, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e21 else repr(value)
    return _JS_WORDS[value]


def _js_type(value: Any) -> str:
    return _JS_TYPES.get(type(value), "object")


def _require(name: str, value: Any) -> None:
    if value is UNDEFINED or value is None:
        raise StreamrError(f"Expected {name} to not be {_JS_WORDS[value]}.")
