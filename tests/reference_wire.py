"""docs/reference/wire.md: an example of every message on every wire, made from the tables of the adapters.

An example is made of the schema that `/asyncapi.json` shows: what a field is called says which value it gets. Sprout is
no JSON, and the fields of `/v1/ws` depend on each other; their examples are here, and a test compares them with the
schema as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adapters import ADAPTERS
from gateway.adapter import WireMessage
from gateway.app import create_app
from gateway.core.errors import Forbidden
from gateway.http.problems import problem_of
from gateway.http.websocket.asyncapi import RestSocket
from gateway.settings import config

HEAD = """# Messages on the wire

{made}
A running gateway describes the same in `/asyncapi.json`, with a schema of each message. What the messages mean is in
[Protocols](../protocols.md).

In the column "who", C stands for the client and G for the gateway. Ids, addresses and signatures are shortened here
where nothing depends on them; `NODE` stands for a node in base64url.
"""
ID = "SHA512_B32__h7aAuFQFyjHhTAQF3-ZqMuEpTQ0Ws2C4bJxQmL1fVdA"
SPROUT = {
    "version": "version 0 0.0\n",
    "list": "list 1 1 10\n",
    "query": f"query 2 1\n{ID}\n",
    "ancestry": f"ancestry 3 {ID} 8\n",
    "leaves_of": f"leaves_of 4 {ID} 10\n",
    "subscribe": f"subscribe 5 {ID}\n",
    "unsubscribe": f"unsubscribe 6 {ID}\n",
    "announce": f"announce 7 1\n{ID} NODE\n",
    "response": f"response 2 1\n{ID} NODE\n",
    "status": "status 5 0\n",
}
MESSAGE_ID = "019aa4b6-4500-707c-9f31-00000000002a"
PEER = {"number": 3, "protocol": "rest", "identity": None, "name": None}
SENDER = {"peer": 3, "protocol": "rest", "identity": None, "name": None}
DIRECT: dict[str, Any] = {
    **{"id": MESSAGE_ID, "channel": "garden", "timestamp": 1763700000000, "sender": SENDER, "content": "hello"},
    **{"inReplyTo": None, "native": {}, "undelivered": []},
}
HEARD = {"id": MESSAGE_ID, "sequence": 42, **DIRECT}
STORED = {"id": MESSAGE_ID, "channel": "garden", "sequence": 42, "timestamp": 1763700000000, "undelivered": []}
REST: dict[str, dict[str, Any]] = {  # without their types
    "subscribe": {"request": 1, "channel": "garden", "after": 17},
    "unsubscribe": {"request": 2, "pattern": "news/*"},
    "publish": {"request": 3, "channel": "garden", "content": "hello", "idempotencyKey": "5f1c"},
    "direct": {"request": 4, "channel": "garden", "peer": 3, "content": "psst"},
    "history": {"request": 5, "channel": "garden", "before": 43, "limit": 10, "newestFirst": True},
    "presence": {"request": 6, "channel": "garden"},
    "ping": {"request": 7},
    "subscribed.told": {"request": 1, "channel": "garden", "sequence": 17},
    "unsubscribed.told": {"request": 2, "pattern": "news/*"},
    "published.told": {"request": 3, **STORED},
    "delivered.told": {"request": 4, "id": MESSAGE_ID, "delivered": 1},
    "history.told": {"request": 5, "channel": "garden", "messages": [HEARD], "next": 42},
    "presence.told": {"request": 6, "channel": "garden", "peers": [PEER], "more": False},
    "pong.told": {"request": 7},
    "error.told": {"request": 3, "problem": json.loads(problem_of(Forbidden("publish", "garden")).body())},
    "welcome.told": {**PEER, "version": "0.2.0"},
    "message.told": {"pattern": "gar*", **HEARD},
    "direct.told": {**DIRECT, "content": "psst"},
    "joined.told": {**PEER, "channel": "garden"},
    "left.told": {**PEER, "channel": "garden"},
    "gap.told": {"channel": "garden", "after": 17, "before": 30},
}
ADDRESS = "0x3971292981aab0456bbbc199d527298355cbb514"
VALUES: dict[str, Any] = {  # by the name of a field
    "type": 3,
    "topic": "garden",
    "streamId": "garden",
    "requestId": "r1",
    "subId": "s1",
    "peers": [0, 1],
    "src": 3,
    "dst": 1,
    "error": "NotSubscribed",
    "errorMessage": "the stream is not known",
    "errorCode": "NOT_FOUND",
    "sessionToken": None,
    "numberLast": 10,
    "fromMsgRef": [1763700000000, 0],
    "toMsgRef": [1763700060000, 0],
    "publisherId": ADDRESS,
    "msgChainId": "chain",
    "streamMessage": [
        *(32, ["garden", 0, 1763700000000, 0, ADDRESS, "chain"], None, 27, 0, 0, None),
        *('{"content":"hello"}', None, 2, "0x5eed"),
    ],
    "nodeAddresses": [ADDRESS],
    "source": ADDRESS,
    "targetNode": ADDRESS,
    "status": {},
    "originator": {"peerId": ADDRESS},
    "subType": "offer",
    "data": {},
    "counter": 1,
    "controlLayerPayload": [2, 9, "r1", "garden", 0, None],
    "serializedControlLayerPayload": '[2,9,"r1","garden",0,null]',
}
SAID = {"Broadcast", "Broadcast.told", "Message", "Message.told", "Echo", "Echo.told"}  # they have fields of their own


def page(made: str) -> str:
    """Return the page; *made* says how it is made."""
    lines = [HEAD.format(made=made)]
    for title, messages in places():
        lines += [f"## {title}", "", "| message | who | example |", "|---|---|---|"]
        for message in messages:
            who = "C and G" if message.sent and message.received else "G" if message.sent else "C"
            text = example(title, message).rstrip("\n").replace("|", "\\|")
            shown = "<br>".join(f"`{line}`" for line in text.split("\n"))
            lines.append(f"| `{message.name}` | {who} | {shown} |")
        lines.append("")
    return "\n".join(lines)


def places() -> list[tuple[str, list[WireMessage]]]:
    """Return each wire with its messages; one that has the same as another one is left out."""
    with TemporaryDirectory() as folder:
        app = create_app(config.load(ADAPTERS, None, {"data": Path(folder)}))
    found: list[tuple[str, list[WireMessage]]] = []
    for adapter in (*app.state.gateway.adapters, RestSocket()):
        for place, messages in adapter.wire_messages().items():
            if all(messages != others for _, others in found):
                title = f"{adapter.title}, `{place}`" if place in adapter.paths else f"{adapter.title}, TCP and TLS"
                found.append((title, messages))
    return found


def example(title: str, message: WireMessage) -> str:
    """Return the text of an example of *message* on the wire with this *title*."""
    if message.media_type != "application/json":
        return SPROUT[message.name]
    if title.startswith("REST"):
        return json.dumps({"type": message.name.removesuffix(".told"), **REST[message.name]}, separators=(",", ":"))
    value = _value("", message.schema)
    if message.name in SAID:
        value["content"] = "hello"
    return json.dumps(value, separators=(",", ":"))


def _value(name: str, schema: Mapping[str, Any]) -> Any:
    if "const" in schema:
        return schema["const"]
    if name in VALUES:
        return VALUES[name]
    if "examples" in schema:
        return schema["examples"][0]
    if schema.get("type") == "object":
        return {key: _value(key, schema["properties"][key]) for key in schema.get("required", ())}
    if "items" in schema and isinstance(schema["items"], list):
        return [_value(each.get("title", ""), each) for each in schema["items"]]
    kinds = schema.get("type", "integer")
    return {"integer": 0, "boolean": False, "null": None, "array": [], "string": "x"}[
        kinds if isinstance(kinds, str) else kinds[-1]
    ]
