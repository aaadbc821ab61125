"""The JSON Schemas of what REST answers, by name, each with an example; `gateway.http.openapi` puts them into /docs.

`gateway.http.views` and the other modules here make the values; a test sends requests that schemathesis makes and
compares the answers with these schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .pipeline_report import Report
from .problem_types import PROBLEM_TYPES, uri

Schema = dict[str, Any]

STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer", "format": "int64"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
ANY: Final[Schema] = {"description": "Any JSON value."}
NULLABLE_STRING: Final[Schema] = {"type": ["string", "null"]}
NULLABLE_INTEGER: Final[Schema] = {"type": ["integer", "null"], "format": "int64"}
NEXT: Final[Schema] = NULLABLE_STRING | {"description": "The path of the next page; null at the end."}
MS: Final[Schema] = INTEGER | {"description": "Milliseconds since 1970."}


def ref(name: str) -> Schema:
    """A reference to the schema called *name*."""
    return {"$ref": f"#/components/schemas/{name}"}


def schemas_of(kind: type[msgspec.Struct]) -> Mapping[str, Schema]:
    """The schemas of *kind* and of what it contains, by name."""
    return msgspec.json.schema_components((kind,), ref_template="#/components/schemas/{name}")[1]


def array(items: Schema) -> Schema:
    """A list of *items*."""
    return {"type": "array", "items": items}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object; it may have more members than these."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


SENDER = {"peer": 1000, "protocol": "rest", "identity": "ada", "name": "ada"}
ACCEPTED = {
    "id": "019ab0c4-3a40-7a5c-8b1d-000000000412",
    "channel": "lobby",
    "sequence": 1042,
    "timestamp": 1_795_435_200_000,
    "undelivered": [],
}
MESSAGE = ACCEPTED | {"sender": SENDER, "content": {"text": "hello"}, "inReplyTo": None, "native": {}}
PEER = {"number": 1000, "protocol": "rest", "identity": "ada", "name": "ada"}
CHANNEL = {"name": "lobby", "addresses": {"topic_relay": "lobby"}, "topic": "lobby", "members": 2, "sequence": 1042}
WEBHOOK = {
    "id": "wh_0d5a6b6c1f0e4f7a",
    "url": "https://example.com/hook",
    "channels": "news/*",
    "enabled": True,
    "reason": None,
    "position": 1041,
    "created": 1_795_435_200_000,
    "createdBy": "ops",
    "failingSince": None,
    "failures": 0,
    "lastStatus": 204,
    "lastError": None,
    "deadLetters": 0,
}
LETTER = {
    "sequence": 1042,
    "message": ACCEPTED["id"],
    "channel": "news/today",
    "time": 1_795_435_300_000,
    "attempts": 8,
    "error": "it answered 500",
}
REPORT = {
    **{"made": 1_795_435_260_000, "gateways": ["5c7d0a1e"], "records": 1042, "messages": 1000, "channelCount": 1},
    **{"firstTime": 1_795_435_200_000, "lastTime": 1_795_435_259_000},
    "protocols": [{"protocol": "rest", "messages": 1000, "bytes": 17000}],
    "channels": [{"channel": "lobby", "messages": 1000, "bytes": 17000}],
    "flows": [
        {"from": "rest", "to": "sprout", "delivered": 2000, "undelivered": 0, "p50": 1.2, "p95": 4.7, "p99": 9.1}
    ],
    "verdicts": [{"check": "openpgp", "verdict": "ok", "count": 12}],
    "gaps": [],
    "nodes": [{"name": "nodes", "count": 12}],
    "unreadable": [],
    "work": [{"job": "ingest", "batches": 1, "rowsRead": 1042, "rowsWritten": 1042, "seconds": 2.5}],
}

_ACCEPTED = {"id": STRING, "channel": STRING, "sequence": INTEGER, "timestamp": MS, "undelivered": array(STRING)}
_PEER = {"number": INTEGER, "protocol": STRING, "identity": NULLABLE_STRING, "name": NULLABLE_STRING}
_COUNTS = {"type": "object", "additionalProperties": INTEGER}
_WEBHOOK = {
    **dict.fromkeys(("id", "url", "channels"), STRING),
    **dict.fromkeys(("reason", "createdBy", "lastError"), NULLABLE_STRING),
    **dict.fromkeys(("position", "created", "failures", "deadLetters"), INTEGER),
    **dict.fromkeys(("failingSince", "lastStatus"), NULLABLE_INTEGER),
    "enabled": BOOLEAN,
}
_KEY = {
    **dict.fromkeys(("id", "name"), STRING),
    "rights": array(STRING),
    **dict.fromkeys(("expires", "lastUsed"), NULLABLE_INTEGER),
    "valid": BOOLEAN | {"description": "Whether it has not expired."},
}
_TIME = {"type": "number", "description": "Milliseconds since 1970, to a microsecond."}
_LATER = {"type": ["number", "null"], "description": "As the others; null if it has not happened yet."}
_TRACE = {
    **dict.fromkeys(("id", "channel"), STRING),
    **dict.fromkeys(("sequence", "unlisted"), INTEGER),
    **dict.fromkeys(("received", "logged"), _TIME),
    "sender": ref("Peer"),
    "synced": _LATER,
    "deliveries": array(record({"peer": ref("Peer"), "protocol": STRING, "queued": _TIME, "written": _LATER})),
    "undelivered": array(STRING),
}
_EXPLANATION = dict.fromkeys(("type", "code", "title", "meaning", "remedy"), STRING) | {"status": INTEGER}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Problem": record(
        {
            "type": STRING | {"format": "uri-reference", "description": "Where this kind of problem is explained."},
            "code": STRING | {"enum": list(PROBLEM_TYPES), "description": "The stable name of this kind of problem."},
            "title": STRING,
            "status": INTEGER,
            "detail": STRING | {"description": "What is wrong this time, and what to do about it."},
        },
        {"line": INTEGER | {"description": "The number of the line of NDJSON that is refused."}},
    ),
    "ProblemType": record(_EXPLANATION),
    "ProblemTypes": record({"problems": array(ref("ProblemType"))}),
    "Sender": record({"peer": INTEGER, "protocol": STRING, "identity": NULLABLE_STRING, "name": NULLABLE_STRING}),
    "Accepted": record(_ACCEPTED),
    "Message": record(
        _ACCEPTED
        | {"sender": ref("Sender"), "content": ANY, "inReplyTo": NULLABLE_STRING, "native": {"type": "object"}}
    ),
    "MessagePage": record({"messages": array(ref("Message")), "next": NEXT}),
    "Direct": record({"id": STRING, "delivered": INTEGER}),
    "Channel": record(
        {
            "name": STRING,
            "addresses": {"type": "object", "additionalProperties": STRING},
            "members": INTEGER,
            "sequence": INTEGER | {"description": "That of the last message; 0 without one."},
        },
        {"topic": STRING, "stream": STRING, "partition": INTEGER, "community": STRING},
    ),
    "ChannelPage": record({"channels": array(ref("Channel")), "next": NEXT}),
    "Peer": record(_PEER),
    "PeerList": record({"peers": array(ref("Peer"))}),
    "PeerDetails": record(
        _PEER
        | {
            "connections": INTEGER,
            "connectionNumbers": array(INTEGER),
            "protocols": array(STRING),
            "boundTo": NULLABLE_INTEGER,
            "key": NULLABLE_STRING,
            "addresses": {"type": "object"},
            "channels": array(STRING),
            "saidIn": array(STRING),
        }
    ),
    "Protocols": record(
        {
            "protocols": array(
                record(
                    {
                        **dict.fromkeys(("name", "title"), STRING),
                        **{name: array(STRING) for name in ("versions", "paths", "listeners")},
                        "carries": {"type": "object", "additionalProperties": NULLABLE_STRING},
                        "limits": {"type": "object", "additionalProperties": STRING},
                    }
                )
            )
        }
    ),
    "Stats": record(
        {
            "version": STRING,
            **dict.fromkeys(("uptimeSeconds", "sequence", "factsBytes", "connections"), INTEGER),
            "protocols": {"type": "object", "additionalProperties": _COUNTS},
            "channels": array({"type": "object"}),
            "flows": array({"type": "object"}),
            "reports": {"type": "object"},
            "links": array({"type": "object"}),
            "cluster": {"type": ["object", "null"]},
            "faults": _COUNTS,
            "pipeline": {"type": ["object", "null"]},
        }
    ),
    "Home": record(dict.fromkeys(("name", "version", "console", "api", "channels", "protocols", "health"), STRING)),
    "Status": record({"status": STRING}),
    "AsyncApi": record({"asyncapi": STRING, "info": {"type": "object"}, "channels": {"type": "object"}}),
    "Webhook": record(_WEBHOOK),
    "NewWebhook": record(
        _WEBHOOK | {"secret": STRING | {"description": "With which deliveries are signed; shown only once."}}
    ),
    "WebhookList": record({"webhooks": array(ref("Webhook"))}),
    "WebhookSecret": record({"secret": STRING}),
    "DeadLetter": record({name: STRING if isinstance(value, str) else INTEGER for name, value in LETTER.items()}),
    "DeadLetterPage": record({"deadLetters": array(ref("DeadLetter")), "next": NEXT}),
    "Keys": record({"keys": array(record(_KEY))}),
    "KeySecret": record({"name": STRING, "secret": STRING | {"description": "It is not kept and not shown again."}}),
    "Trace": record(_TRACE),
    "Differences": record({"message": NULLABLE_STRING, "have": array(STRING), "need": array(STRING)}),
    "Tracing": record({"channel": STRING, "until": NULLABLE_INTEGER, "messages": array(ref("Trace"))}),
    "Retry": record({"delivered": BOOLEAN, "status": NULLABLE_INTEGER, "error": NULLABLE_STRING}),
    **schemas_of(Report),
}

_FORBIDDEN = PROBLEM_TYPES["forbidden"]
EXAMPLES: Final[Mapping[str, Any]] = {
    "Problem": {
        "type": uri("forbidden"),
        "code": "forbidden",
        "title": _FORBIDDEN.title,
        "status": _FORBIDDEN.status,
        "detail": "not allowed to publish on 'lobby'; use a key with the right `publish:lobby`",
    },
    "ProblemType": {"type": uri("forbidden"), "code": "forbidden"} | _FORBIDDEN._asdict(),
    "Accepted": ACCEPTED,
    "Message": MESSAGE,
    "MessagePage": {"messages": [MESSAGE], "next": "/v1/channels/lobby/messages?after=1042&limit=1&order=asc"},
    "Direct": {"id": ACCEPTED["id"], "delivered": 1},
    "Channel": CHANNEL,
    "ChannelPage": {"channels": [CHANNEL], "next": None},
    "PeerList": {"peers": [PEER]},
    "PeerDetails": PEER
    | {"connections": 1, "connectionNumbers": [1007], "protocols": ["rest"], "boundTo": None, "key": "ada"}
    | {"addresses": {"topic_relay": 1000}, "channels": ["lobby"], "saidIn": ["lobby"]},
    "Home": {"name": "Trellis", "version": "0.2.0", "console": "/console/", "api": "/docs", "channels": "/v1/channels"}
    | {"protocols": "/v1/protocols", "health": "/readyz"},
    "Status": {"status": "ready"},
    "Webhook": WEBHOOK,
    "NewWebhook": WEBHOOK | {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
    "WebhookList": {"webhooks": [WEBHOOK]},
    "WebhookSecret": {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
    "DeadLetterPage": {"deadLetters": [LETTER], "next": None},
    "Retry": {"delivered": False, "status": 500, "error": "it answered 500"},
    "Report": REPORT,
}

# Bodies that are no JSON, by media type.
TEXTS: Final[Mapping[str, Schema]] = {
    "application/octet-stream": STRING | {"format": "binary"},
    "text/plain": STRING,
    "text/html": STRING,
    "application/x-ndjson": STRING | {"description": "One JSON value on each line."},
    "text/event-stream": STRING
    | {
        "description": "Server-sent events: `welcome`, `message`, `direct`, `joined`, `left` and `gap`.",
        "example": 'event: message\nid: 1042\ndata: {"sequence": 1042, "content": {"text": "hello"}}\n\n',
    },
}


def content(media_type: str, name: str = "") -> dict[str, Schema]:
    """The OpenAPI content of a response: a *media_type*, with the schema called *name* if it is JSON."""
    if media_type in TEXTS:
        return {media_type: {"schema": TEXTS[media_type]}}
    if not name:
        return {media_type: {"schema": ANY}}
    example = {"example": EXAMPLES[name]} if name in EXAMPLES else {}
    return {media_type: {"schema": ref(name)} | example}
