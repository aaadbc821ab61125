"""`POST .../messages` with one short message, answered without an ASGI application.

It is the most frequent request, and its way through a task, the middleware and the router takes three times as long as
publishing itself (decision 64). A server that has received a whole request passes it to `direct_post`, and lets
`DirectPublisher` answer it if that returns something. Everything else is left to the application: NDJSON, long bodies,
pages of other origins. The checks are those of `gateway.http.publish`, and a property test compares the two ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import Scope

from gateway.runtime import Gateway

from . import views
from .bodies import SHORT_BODY
from .head_limits import MAX_TARGET
from .media import is_ndjson
from .problems import MEDIA_TYPE, Problem, refusal
from .publish import begin, parse_short
from .rest_helpers import outcome_unknown

_PATH: Final = re.compile(rb"/v1/channels/([^/]+)/messages")
_UNSUPPORTED: Final = frozenset((b"origin", b"transfer-encoding", b"expect", b"upgrade"))  # headers for the application


class Answer(NamedTuple):
    """A whole response."""

    status: int
    media_type: str
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})


class _Headers(Headers):
    """Headers of which no two have the same name: looked up in a table, where starlette compares one by one."""

    def __init__(self, table: Mapping[bytes, bytes]) -> None:
        super().__init__(raw=[*table.items()])
        self._table = table

    def get(self, key: str, default: Any = None) -> Any:
        found = self._table.get(key.encode("latin-1"))
        return default if found is None else found.decode("latin-1")


class Post(NamedTuple):
    """A request that can be answered here: the *segment* of its path that names the channel, and its headers."""

    segment: str
    headers: Mapping[bytes, bytes]


def direct_post(scope: Scope, size: int) -> Post | None:
    """Return the request of *scope*, whose body has *size* bytes, if it can be answered here, else None."""
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET:
        return None
    if scope["method"] != "POST" or size > SHORT_BODY or (found := _PATH.fullmatch(scope["raw_path"])) is None:
        return None
    headers = dict(scope["headers"])
    if len(headers) < len(scope["headers"]) or not _UNSUPPORTED.isdisjoint(headers):
        return None
    if is_ndjson(headers.get(b"content-type", b"").decode("latin-1")):
        return None
    return Post(found[1].decode("latin-1"), headers)


class DirectPublisher:
    """Publishes on the bus of *gateway*."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered here; they cannot while they are traced."""
        return self._gateway.tracing is None

    def answer(self, scope: Scope, post: Post, body: bytes, answer: Callable[[Answer], None]) -> None:
        """Publish the *body* of *post*, whose scope is *scope*; call *answer* once it is on disk, or refused.

        In a cluster it waits until it is this gateway's turn to accept, or the gateway is cut off.
        """
        gateway = self._gateway
        if gateway.membership is not None and gateway.log.held and gateway.log.failing is None:
            gateway.membership.park(partial(self._publish, scope, post, body, answer))
        else:
            self._publish(scope, post, body, answer)

    def _publish(self, scope: Scope, post: Post, body: bytes, answer: Callable[[Answer], None]) -> None:
        gateway = self._gateway
        request = Request({**gateway.proxies.with_forwarded(scope), "path": scope["raw_path"].decode("latin-1")})
        request._headers = _Headers(post.headers)

        def refuse(error: Exception) -> None:
            answer(_answer_of(refusal(error, request, gateway.metrics)))

        try:
            publisher, read = begin(gateway, request, post.segment)
            assert read is not None  # as it is no NDJSON
            taken = publisher.publish_alone(parse_short(publisher.caller, body, read), refuse)
        except Exception as error:
            refuse(error)
            return
        gateway.bus.acceptance.when_accepted(
            taken,
            lambda: answer(Answer(201, views.MEDIA_TYPE, publisher.answer(taken))),
            lambda: refuse(outcome_unknown(gateway.log)),
        )


def _answer_of(problem: Problem) -> Answer:
    return Answer(problem.status, MEDIA_TYPE, problem.body(), problem.headers)
