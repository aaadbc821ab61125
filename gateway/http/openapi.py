"""The OpenAPI document: what FastAPI finds in the routes, with schemas, security schemes and the body of webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from . import schemas

DESCRIPTION: Final = (
    "Publish, listen and read history on channels that Arbor, the topic relay and Streamr share. WebSockets and TCP are"
    " described at `/asyncapi.json`, and every problem at `/problems`."
)
SECURITY_SCHEMES: Final = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key (`trellis key add`). While there are none, nobody needs one.",
    },
    "keyInQuery": {
        "type": "apiKey",
        "in": "query",
        "name": "key",
        "description": "The same key for an `EventSource`, which cannot send headers.",
    },
}
KEY: Final[list[dict[str, list[str]]]] = [{"key": []}, {}]  # required only where anonymous callers may not do it
KEY_IN_QUERY: Final[list[dict[str, list[str]]]] = [{"key": []}, {"keyInQuery": []}, {}]
OPEN: Final = frozenset({"/", "/healthz", "/readyz", "/asyncapi.json", "/problems", "/problems/{code}"})
EVENTS: Final = "text/event-stream"


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document of *app*; it is made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=DESCRIPTION,
            routes=app.routes,
            tags=[
                {"name": "REST", "description": "Channels, messages and peers."},
                {"name": "webhooks", "description": "Messages that are pushed to URLs; every request needs `admin:*`."},
                {"name": "operations", "description": "Health, metrics and descriptions."},
                {"name": "streamr", "description": "Streamr's own REST interface; it has its own form of errors."},
            ],
        )
        components = made.setdefault("components", {})
        components["schemas"] = {**components.get("schemas", {}), **schemas.SCHEMAS}
        components["securitySchemes"] = SECURITY_SCHEMES
        for path, operation in _operations(made):
            operation["security"] = _security(path, operation)
            for response in operation["responses"].values():
                for media_type, content in response.get("content", {}).items():
                    content.setdefault("schema", schemas.TEXTS.get(media_type, schemas.ANY))
        made["webhooks"] = {"message": {"post": _delivery()}}
        app.openapi_schema = made
    return app.openapi_schema


def _operations(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in made["paths"].items():
        for operation in methods.values():
            yield path, operation


def _security(path: str, operation: dict[str, Any]) -> list[dict[str, list[str]]]:
    if path in OPEN:
        return []
    streams = any(EVENTS in response.get("content", {}) for response in operation["responses"].values())
    return KEY_IN_QUERY if streams else KEY


def _delivery() -> dict[str, Any]:
    """What the receiver of a webhook gets."""
    headers = ("webhook-id", "webhook-timestamp", "webhook-signature")
    about = {"in": "header", "required": True, "schema": schemas.STRING, "description": "As Standard Webhooks has it."}
    return {
        "operationId": "message_delivered",
        "summary": "A message, sent to the URL of a webhook",
        "tags": ["webhooks"],
        "parameters": [{"name": name} | about for name in headers],
        "requestBody": {"required": True, "content": schemas.content("application/json", "Message")},
        "responses": {"2XX": {"description": "It is delivered; anything else sends it again, or gives it up."}},
    }
