"""Validates nodes by `RULES`; each says what the reference relay does with a node that breaks it.

The rules are checked in order: the node alone, then its author and signature, then its parent; so a forged
node never causes a request for its ancestors. All nodes that are held were validated: a reply whose depth,
community and conversation follow from its parent's is valid, and its community and conversation need not
be looked up.

The reference has most of these rules, in functions that its relay never calls. Content that claims to be
text and is not UTF-8 is accepted, as it is there; its `Content.text` is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from itertools import product
from time import perf_counter
from typing import Any, Final, NamedTuple

from gateway.core.histogram import SECONDS, Histogram

from . import forest, twig
from .forest import NO_PAIRS, NULL_ID, TWIG, UTF8, Community, Content, Identity, Node, Reply
from .openpgp import PublicKey
from .packets import OpenPGPError
from .twig import TwigError

MAX_NAME: Final = 256  # bytes (forest-go, nodes.go)
MAX_CREATED: Final = 253_402_300_799_999  # the end of the year 9999 in ms, the last year of `datetime`
MAX_KEYS: Final = 1024  # cached keys, each with its bytes
USUAL_KEY: Final = 4096  # bytes of a public key; those of genuine programs have 1,200 to 2,500
MAX_LONG_KEYS: Final = 32  # cached keys of more bytes than that, 64 KiB at most

EXPIRATION: Final = "expiration/1"  # an RFC 3339 time after which a node is to be deleted
ACTIVITY: Final = "activity/1"  # presence
INVISIBLE: Final = "invisible/1"  # not to be displayed
_RFC3339: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class ValidationResult(NamedTuple):
    """The result for a node: `reason` says why it is refused, `missing` names the nodes that must come first."""

    reason: str = ""
    missing: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the node is valid."""
        return not self.reason and not self.missing


CHECKS: Final = Histogram(SECONDS)  # of signatures, in this process
OK: Final = ValidationResult()
EXPIRED: Final = "it has expired"
FORGED: Final = "the signature is not the author's"


def validate(node: Node, raw: bytes, now_ms: int, author: Node | None, parent: Node | None) -> ValidationResult:
    """Validate *node*, encoded as *raw*, at *now_ms*; *author* and *parent* are None if they are not held.

    A node that breaks no rule is neither accepted nor refused while its author or parent is missing: the result
    names the nodes to request.
    """
    if _is_plain(node, author, parent):
        return OK if _is_signed(node, raw, author) else ValidationResult(FORGED)
    author = node if isinstance(node, Identity) else author
    return _by_rules(_Case(node, raw, now_ms, _pairs(node), author, parent))


def _is_plain(node: Node, author: Node | None, parent: Node | None) -> bool:
    """Whether *node* is a reply that breaks none of `RULES` if its signature is valid, as nearly all replies are."""
    return (
        type(node) is Reply
        and node.metadata == NO_PAIRS
        and node.content.type == UTF8
        and node.created <= MAX_CREATED
        and type(author) is Identity
        and (type(parent) is Reply or type(parent) is Community)
        and (node.parent, node.depth, node.community, node.conversation) == forest.position_below(node.parent, parent)
    )


def _by_rules(case: _Case) -> ValidationResult:
    node, author, parent = case.node, case.author, case.parent
    for rule in _RULES_OF[type(node), author is not None, parent is not None]:
        if not rule.holds(case):
            return ValidationResult(rule.reason)
    if author is not None and (parent is not None or not isinstance(node, Reply)):
        return OK
    missing = [node.author] if author is None else []
    if parent is None and isinstance(node, Reply):
        missing.append(node.parent)
    return ValidationResult(missing=tuple(missing))


class ReferenceAction(Enum):
    """What the reference relay does with an invalid node; it answers status 0 unless it closes the connection."""

    STORES = "stores it"
    DROPS = "drops it without a word"
    CLOSES = "closes the connection"


class NodeRule(NamedTuple):
    """Why a node is refused, the types that the rule applies to, what the reference relay does, and the condition.

    A rule *of* the author or the parent applies only if that node is held.
    """

    reason: str
    kinds: tuple[type, ...]
    reference: ReferenceAction
    holds: Callable[[_Case], bool]
    of: str | None = None


class _Case(NamedTuple):
    """A node and what is known about it; typed loosely, since each rule applies to certain types of nodes."""

    node: Any
    raw: bytes
    now_ms: int
    pairs: dict[str, bytes] | None
    author: Any
    parent: Any

    @property
    def expires(self) -> int | None:
        """When it expires, in ms; None if never; -1 if the value is malformed."""
        return None if self.pairs is None else _expires(self.pairs)

    @property
    def has_expired(self) -> bool:
        """Whether its expiration, if it has one, has passed."""
        return self.expires is not None and self.expires <= self.now_ms

    @property
    def in_thread(self) -> bool:
        """Whether a reply names a conversation."""
        return bool(self.node.conversation != NULL_ID)

    @property
    def is_signed(self) -> bool:
        """Whether the signature is the author's."""
        return _is_signed(self.node, self.raw, self.author)

    def follows(self, name: str) -> bool:
        """Whether the field *name* of a reply has the value that follows from its parent."""
        return bool(getattr(self.node, name) == getattr(forest.position_below(self.node.parent, self.parent), name))


def _pairs(node: Node) -> dict[str, bytes] | None:
    try:
        return twig.decode(node.metadata.blob)
    except TwigError:
        return None


def _is_readable(content: Content) -> bool:
    """Whether content of type TWIG is valid TWIG; content of any other type is readable."""
    try:
        return content.type != TWIG or twig.decode(content.blob) is not None
    except TwigError:
        return False


def expiration(ms: int) -> bytes:
    """The value of `expiration/1` for *ms*, to the second."""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}".encode()


def expires_at(node: Node) -> int | None:
    """When *node* expires, in ms; None if never; -1 if the value is malformed."""
    return _expires(twig.decode(node.metadata.blob))


def is_presence(node: Node) -> bool:
    """Whether *node* announces presence, and nothing else."""
    pairs = twig.decode(node.metadata.blob)
    return isinstance(node, Reply) and ACTIVITY in pairs and INVISIBLE in pairs


def offered_until(node: Node) -> int | None:
    """The time until which *node* is offered, in ms; None for ever.

    An expired identity is still needed to verify what its owner signed. Nodes that announce presence are held only if
    somebody replied to them: they have no text that could expire, and their replies do.
    """
    return None if isinstance(node, Identity) or is_presence(node) else expires_at(node)


def _expires(pairs: dict[str, bytes]) -> int | None:
    value = pairs.get(EXPIRATION)
    return None if value is None else _milliseconds(value)


def _milliseconds(value: bytes) -> int:
    try:
        if _RFC3339.fullmatch(value):
            return int(datetime.fromisoformat(value.decode()).timestamp() * 1000)
    except ValueError:  # the 31st of February
        pass
    return -1


def _has_key(case: _Case) -> bool:
    try:
        _key(case.node.public_key)
    except OpenPGPError:
        return False
    return True


def _is_signed(node: Node, raw: bytes, author: Any) -> bool:
    begin = perf_counter()
    try:
        _key(author.public_key).verify(forest.signed_part(node, raw), node.signature)
    except OpenPGPError:
        return False
    finally:
        CHECKS.observe(perf_counter() - begin)
    return True


_usual_key: Final = lru_cache(MAX_KEYS)(PublicKey)
_long_key: Final = lru_cache(MAX_LONG_KEYS)(PublicKey)


def _key(data: bytes) -> PublicKey:
    """The key encoded in *data*, from a cache if it was used lately; raise `OpenPGPError` if it is not valid."""
    return (_usual_key if len(data) <= USUAL_KEY else _long_key)(data)


_ALL: Final = (Identity, Community, Reply)
_ROOTS: Final = (Identity, Community)
_AUTHORED: Final = (Community, Reply)
_REPLY: Final = (Reply,)
_IDENTITY: Final = (Identity,)
_S, _D, _C = ReferenceAction.STORES, ReferenceAction.DROPS, ReferenceAction.CLOSES

# fmt: off
RULES: Final = (
    NodeRule("the metadata is not TWIG",             _ALL,      _D, lambda c: c.node.metadata.type == TWIG),
    NodeRule("the metadata cannot be read",          _ALL,      _D, lambda c: c.pairs is not None),
    NodeRule("the expiration cannot be read",        _ALL,      _D, lambda c: c.expires != -1),
    NodeRule(EXPIRED,                                _ALL,      _D, lambda c: not c.has_expired),
    NodeRule("it was made after the year 9999",      _ALL,      _S, lambda c: c.node.created <= MAX_CREATED),
    NodeRule("the name is not text",                 _ROOTS,    _S, lambda c: c.node.name.text is not None),
    NodeRule("the name is too long",                 _ROOTS,    _S, lambda c: len(c.node.name.blob) <= MAX_NAME),
    NodeRule("the name has a line break",            _ROOTS,    _S, lambda c: b"\n" not in c.node.name.blob),
    NodeRule("a root is not at depth 0",             _ROOTS,    _S, lambda c: c.node.depth == 0),
    NodeRule("a root has a parent",                  _ROOTS,    _S, lambda c: c.node.parent == NULL_ID),
    NodeRule("an identity has an author",            _IDENTITY, _S, lambda c: c.node.author == NULL_ID),
    NodeRule("it has no author",                     _AUTHORED, _D, lambda c: c.node.author != NULL_ID),
    NodeRule("a reply has no parent",                _REPLY,    _D, lambda c: c.node.parent != NULL_ID),
    NodeRule("a reply has no community",             _REPLY,    _D, lambda c: c.node.community != NULL_ID),
    NodeRule("a reply is at depth 0",                _REPLY,    _S, lambda c: c.node.depth > 0),
    NodeRule("a conversation within another",        _REPLY,    _S, lambda c: c.node.depth != 1 or not c.in_thread),
    NodeRule("a deep reply in no conversation",      _REPLY,    _D, lambda c: c.node.depth <= 1 or c.in_thread),
    NodeRule("the content is declared to be TWIG, and is not",  _REPLY,    _S, lambda c: _is_readable(c.node.content)),
    NodeRule("the key cannot be used",               _IDENTITY, _S, _has_key),
    NodeRule("the author is not an identity",        _AUTHORED, _S, lambda c: type(c.author) is Identity, "author"),
    NodeRule(FORGED,                                 _ALL,      _S, lambda c: c.is_signed, "author"),
    NodeRule("the parent is an identity",            _REPLY,    _S, lambda c: type(c.parent) is not Identity, "parent"),
    NodeRule("the depth is not the parent's and 1",  _REPLY,    _S, lambda c: c.follows("depth"), "parent"),
    NodeRule("the community is not the parent's",    _REPLY,    _S, lambda c: c.follows("community"), "parent"),
    NodeRule("the conversation is not the parent's", _REPLY,    _S, lambda c: c.follows("conversation"), "parent"),
)

# Why bytes are not a node: the reasons of `forest.NodeError` in decoding.
READING: Final = {
    "not the node of that id":              _C,
    "schema version 0":                     _S,
    "a later schema version":               _C,
    "no such node type":                    _C,
    "shorter than its fields":              _C,
    "bytes behind the signature":           _S,
    "an unknown kind of hash":              _C,
    "an id that is the null hash":          _S,
    "an unknown kind of id":                _C,
    "an unknown kind of content":           _C,
    "an unknown kind of key or signature":  _C,
}
# fmt: on
# The rules that apply, by the type of a node, and whether its author and its parent are held.
_RULES_OF: Final = {
    (kind, author, parent): tuple(
        rule for rule in RULES if kind in rule.kinds and {"author": author, "parent": parent}.get(rule.of or "", True)
    )
    for kind, author, parent in product(_ALL, (False, True), (False, True))
}
