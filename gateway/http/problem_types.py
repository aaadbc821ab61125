"""Every problem that REST reports: its code, its status, what it means, and what to do about it.

This table is the only place that defines them. The members `type`, `code`, `title` and `status` of a problem
(`gateway.http.problems`), the pages below `/problems` and docs/reference/problems.md are made from it. A code is
stable: programs may compare it. `python -m gateway.http.problem_types` prints docs/reference/problems.md.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple

PATH: Final = "/problems"  # a problem's `type` is this, a slash and its code


class ProblemType(NamedTuple):
    """One kind of problem, as every occurrence of it."""

    status: int
    title: str
    meaning: str
    remedy: str

    @property
    def phrase(self) -> str:
        """The status with its phrase, as in `404 Not Found`."""
        return f"{self.status} {HTTPStatus(self.status).phrase}"


# fmt: off
PROBLEM_TYPES: Final = MappingProxyType({
    # The request itself
    "malformed-request": ProblemType(400, "The request is not valid HTTP",
        "The head of the request cannot be read, or is too long.", "Send HTTP/1.1 as RFC 9112 has it."),
    "malformed-path": ProblemType(400, "The path is not valid",
        "A name in the path is not percent-encoded UTF-8.", "Encode each name by itself: `weather%2Fberlin`."),
    "target-too-long": ProblemType(414, "The path and its query are too long",
        "They have more than 8,192 bytes together.", "Ask for less at a time."),
    "head-too-long": ProblemType(431, "The headers are too many, or too long",
        "A request has more than 100 headers, a line of more than 8,192 bytes, or more than 65,536 bytes of them.",
        "Send fewer and shorter headers."),
    "malformed-content": ProblemType(400, "The content cannot be read",
        "The body is not one JSON value, or its bytes are not text in the charset that it claims.",
        "Send one JSON value as `application/json`, or text as `text/plain`."),
    "body-cut-off": ProblemType(400, "The body ended early",
        "The connection ended, or the length was wrong, before the whole body had arrived.", "Send it again."),
    "invalid-idempotency-key": ProblemType(400, "The Idempotency-Key is not valid",
        "It is longer than a key may be.", "Send a shorter one, such as a UUID."),
    "request-refused": ProblemType(400, "The request is refused",
        "The gateway does not do what was asked; `detail` says why.", "Follow what `detail` says."),
    "invalid-parameter": ProblemType(422, "A parameter is not valid",
        "A parameter does not exist, or it or a member of the body has the wrong type, or is out of range.",
        "Correct what `detail` names."),
    "invalid-query": ProblemType(422, "The search is not valid",
        "The text to search for has no words, too many, or control characters.", "Search for 1 to 16 words."),
    "invalid-key": ProblemType(422, "The new key is not valid",
        "The name is taken or not valid, or the rights or the time are not valid.", "Correct what `detail` names."),
    "own-key": ProblemType(409, "The key is that of the request",
        "A caller cannot remove the key that the request uses, so that one is always left.",
        "Use another key, or `trellis key remove`."),
    "invalid-webhook": ProblemType(422, "The webhook is not valid",
        "A member of the body is missing, unknown or wrong, or the URL leads where webhooks may not reach.",
        "Correct what `detail` names; docs/how-to/webhooks.md has examples."),
    "idempotency-conflict": ProblemType(422, "The Idempotency-Key belongs to another message",
        "A message with other content came with this key before.", "Use a new key for each message."),
    "content-too-long": ProblemType(413, "The content is too long",
        "The body, or the JSON text that is made of it, is longer than a message may be.", "Send less, or in parts."),
    "body-timeout": ProblemType(408, "The body took too long",
        "The whole body did not arrive in time.", "Send less, or in parts."),
    "unsupported-media-type": ProblemType(415, "The media type is not supported",
        "A message cannot be read from a body of this Content-Type.",
        "Send `application/json`, `text/plain`, or lines as `application/x-ndjson`."),
    "unsupported-charset": ProblemType(415, "The charset is not supported",
        "The gateway does not decode the `charset` of the Content-Type, or there are two. JSON is always UTF-8.",
        "Send UTF-8."),
    "ambiguous-content": ProblemType(415, "The content can be read in two ways",
        "The body came as `application/x-www-form-urlencoded`, as `curl -d` sends it. It is not JSON, and may be "
        "plain text, a form or percent-encoded text.",
        "Say that it is plain text: `-H 'Content-Type: text/plain'`."),

    # Who asks
    "key-required": ProblemType(401, "A key is required",
        "The request came without an API key, and anonymous callers may not do this.",
        "Send a key as `Authorization: Bearer KEY`."),
    "unknown-key": ProblemType(401, "The key is not valid",
        "There is no such API key: it is wrong, was removed, or has expired.", "Ask the operator for a new key."),
    "forbidden": ProblemType(403, "The right is missing",
        "The caller does not have the right that `detail` names.",
        "Ask the operator; `trellis explain` shows the rule that decides."),
    "foreign-origin": ProblemType(403, "The origin is refused",
        "The request comes from a web page, or by a host name, that the gateway does not serve.",
        "The operator lists the page in `auth.origins`."),
    "too-many-requests": ProblemType(429, "Too many requests",
        "A rate limit is exceeded, or too many long answers are under way.",
        "Wait for as many seconds as `Retry-After` says."),

    # What there is
    "not-found": ProblemType(404, "There is nothing at this path",
        "No route has this path.", "`/docs` lists all paths."),
    "unknown-channel": ProblemType(404, "There is no such channel",
        "The channel does not exist, or only the operator creates channels.",
        "`GET /v1/channels` lists the channels that you may see; `PUT` creates one."),
    "invalid-channel-name": ProblemType(404, "No channel can have this name",
        "A name has 1 to 255 characters, no control characters, and no `/` right before `@`.", "Use another name."),
    "unknown-message": ProblemType(404, "There is no such message",
        "No message of this channel has this id, or retention removed it.",
        "`GET /v1/channels/{channel}/messages` lists all messages."),
    "unknown-peer": ProblemType(404, "There is no such peer",
        "Nobody has this number, or is not in this channel.", "`GET /v1/channels/{channel}/peers` lists the peers."),
    "undeliverable": ProblemType(404, "The peer cannot get this message",
        "The message does not fit the protocol that the peer speaks.", "Send less."),
    "unknown-key-name": ProblemType(404, "There is no such key",
        "No valid API key has this name.", "`GET /v1/keys` lists the keys."),
    "not-traced": ProblemType(404, "The message was not traced",
        "Its channel was not traced when it was published, or its trace is forgotten.",
        "`PUT /v1/channels/{channel}/trace` traces the messages of the next minute."),
    "no-report": ProblemType(404, "There is no report",
        "The pipeline has not written a report into `warehouse`, or it cannot be read.",
        "`trellis pipeline report` writes one."),
    "unknown-webhook": ProblemType(404, "There is no such webhook",
        "No webhook has this id.", "`GET /v1/webhooks` lists all of them."),
    "unknown-dead-letter": ProblemType(404, "There is no such dead letter",
        "The message with this sequence is not a dead letter of this webhook.",
        "`GET /v1/webhooks/{id}/dead-letters` lists all of them."),
    "unknown-problem": ProblemType(404, "There is no such problem",
        "No problem has this code.", "`GET /problems` lists all of them."),
    "method-not-allowed": ProblemType(405, "The path does not have this method",
        "The path exists, but not with this method.", "Use a method that the header `Allow` lists."),
    "upgrade-required": ProblemType(426, "A WebSocket is required",
        "This path speaks a WebSocket protocol, and the request did not ask to upgrade.",
        "Connect with a WebSocket client."),

    # What the gateway can do now
    "internal-error": ProblemType(500, "The gateway has a bug",
        "The request failed because of a fault in the gateway; its log has the traceback.", "Report it."),
    "search-disabled": ProblemType(501, "Search is switched off",
        "The gateway does not index the words of messages.", "The operator sets `log.search` and starts it again."),
    "unavailable": ProblemType(503, "The gateway cannot do this now",
        "The log or the index cannot be used at the moment; nothing was accepted.",
        "Try again after as many seconds as `Retry-After` says."),
    "outcome-unknown": ProblemType(503, "Whether it was accepted is not known",
        "The disk failed while the request waited for it. The message may be accepted later, or never.",
        "Repeat it with the same `Idempotency-Key` to find out."),
    "out-of-memory": ProblemType(503, "The gateway is short of memory",
        "Too much memory is held for all peers together (`limits.memory`).", "Try again in a moment."),
    "too-many-connections": ProblemType(503, "There are too many connections",
        "`limits.connections`, `limits.connections_per_address` or the file descriptors are used up.",
        "Close idle connections, or try again later."),
    "address-pending": ProblemType(503, "The channel has no address yet",
        "The channel exists, but a protocol has not made its address yet.", "`PUT` it again to wait for it."),
    "search-timeout": ProblemType(503, "The search takes too long",
        "The search was stopped after a second.", "Search for rarer words, or in a shorter time."),
    "too-many-webhooks": ProblemType(507, "There are too many webhooks",
        "`webhooks.limit` is reached.", "Delete one that is not needed."),
    "too-many-channels": ProblemType(507, "There are too many channels",
        "`channels.limit` is reached.", "Use an existing channel."),
})
# fmt: on

# The code of an error of which only the status is known: one of FastAPI's own, or of a WebSocket that is refused.
CODE_OF_STATUS: Final = MappingProxyType(
    {
        400: "request-refused",
        401: "unknown-key",
        403: "forbidden",
        404: "not-found",
        405: "method-not-allowed",
        408: "body-timeout",
        413: "content-too-long",
        414: "target-too-long",
        415: "unsupported-media-type",
        422: "invalid-parameter",
        426: "upgrade-required",
        429: "too-many-requests",
        431: "head-too-long",
        503: "unavailable",
    }
)


def uri(code: str) -> str:
    """The `type` of the problem with this *code*: a URI reference that the gateway explains."""
    return f"{PATH}/{code}"


def markdown() -> str:
    """The text of docs/reference/problems.md."""
    lines = [
        "# Problems",
        "",
        "Every error of REST is `application/problem+json` (RFC 9457): `type` is the path of a page that explains it,",
        "`code` is its stable name, `title` and `status` are the same for all of its occurrences, and `detail` is",
        "about this one. The gateway itself serves this table at `GET /problems`.",
        "",
        "This page is made from `gateway/http/problem_types.py`, and a test compares the two. To make it again:",
        "`python -m gateway.http.problem_types > docs/reference/problems.md`.",
        "",
        "| code | status | what it means | what to do |",
        "|---|---|---|---|",
    ]
    for code, kind in PROBLEM_TYPES.items():
        lines.append(f"| `{code}` | {kind.phrase} | {kind.title}. {kind.meaning} | {kind.remedy} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
