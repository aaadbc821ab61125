"""`/v1/webhooks`: creates, shows, changes and deletes webhooks, and their dead letters. Everything needs `admin:*`."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query, Request, Response

from gateway.core.errors import Unavailable
from gateway.core.jsontext import loads
from gateway.http import views
from gateway.http.abandoned_requests import while_wanted
from gateway.http.bodies import read_body
from gateway.http.callers import Caller
from gateway.http.problems import Problem, shortened
from gateway.http.routing import MAX_INTEGER, After, ProblemRoute, Route, add_route

from .addresses import AddressPolicy
from .administration import Administration
from .courier import Courier
from .model import MAX_URL, DeadLetter, Webhook, parse_pattern
from .store import MAX_PAGE

MAX_BODY = 1 << 14  # bytes
MAX_PATTERN = 1_024  # characters

Id = Annotated[str, Path(description="The id of a webhook.")]
Sequence = Annotated[int, Path(ge=1, le=MAX_INTEGER, description="The sequence of a message.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="The maximum number of results.")]

# The members of bodies, with their JSON Schema; the types are checked by `_members`.
FIELDS: dict[str, dict[str, Any]] = {
    "url": {
        "type": "string",
        "description": "Where messages are sent: `https`, or `http` to `webhooks.allow_networks`.",
        "example": "https://example.com/hook",
    },
    "channels": {
        "type": "string",
        "description": "The pattern of the channels, as in rights: `news/*`.",
        "example": "news/*",
    },
    "after": {"type": "integer", "minimum": 0, "description": "Begin after this sequence instead of now; 0 sends all."},
    "enabled": {"type": "boolean", "description": "Whether messages are sent."},
}
TYPES = {"string": str, "boolean": bool}


def _body(required: tuple[str, ...], *optional: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {name: FIELDS[name] for name in (*required, *optional)},
        "required": list(required),
        "additionalProperties": False,
    }
    schema = {name: value for name, value in schema.items() if value != []}
    return {"requestBody": {"required": True, "content": {views.MEDIA_TYPE: {"schema": schema}}}}


class WebhookRoutes:
    """The handlers."""

    def __init__(self, courier: Courier) -> None:
        self.courier = courier
        self._administration = Administration(courier)

    async def webhooks(self, request: Request) -> Response:
        """List all webhooks, with their state and the number of their dead letters."""
        self._admit(request)
        return views.json_response({"webhooks": [each.as_json() for each in self.courier.webhooks.values()]})

    async def create_webhook(self, request: Request) -> Response:
        """Create a webhook; the response, and no later one, has its `secret`, with which deliveries are signed."""
        caller = self._admit(request)
        given = await self._members(request, "url", "channels", "after")
        for name in ("url", "channels"):
            if name not in given:
                raise Problem("invalid-webhook", f"{name} is missing")
        self._check_url(given["url"])
        _check_pattern(given["channels"])
        webhook = await self._administration.create(given["url"], given["channels"], given.get("after"), caller.key)
        if webhook is None:
            limit = self.courier.settings.limit
            raise Problem("too-many-webhooks", f"there are {limit} webhooks (webhooks.limit); delete one")
        return views.json_response(webhook.as_json() | {"secret": self._administration.secret(webhook)}, 201)

    async def webhook(self, request: Request, id: Id) -> Response:
        """Get one webhook."""
        self._admit(request)
        return views.json_response(self._find(id).as_json())

    async def change_webhook(self, request: Request, id: Id) -> Response:
        """Change the URL of a webhook, disable it, or enable it: it then continues where it was."""
        self._admit(request)
        webhook = self._find(id)
        given = await self._members(request, "url", "enabled")
        if "url" in given:
            self._check_url(given["url"])
        await self._administration.change(webhook, url=given.get("url"), enabled=given.get("enabled"))
        return views.json_response(webhook.as_json())

    async def delete_webhook(self, request: Request, id: Id) -> Response:
        """Delete a webhook and its dead letters."""
        self._admit(request)
        await self._administration.delete(self._find(id))
        return Response(status_code=204)

    async def rotate_secret(self, request: Request, id: Id) -> Response:
        """Give a webhook a new secret; for a day, deliveries are signed with the old one as well."""
        self._admit(request)
        return views.json_response({"secret": await self._administration.rotate(self._find(id))}, 201)

    async def dead_letters(self, request: Request, id: Id, after: After = 0, limit: Limit = 100) -> Response:
        """List the messages that a receiver refused, lowest sequence first; `next` is the next page, or null."""
        self._admit(request)
        found = await self._administration.dead_letters(self._find(id), after, limit + 1)
        letters, has_more = found[:limit], len(found) > limit
        more = f"/v1/webhooks/{id}/dead-letters?after={letters[-1].seq}&limit={limit}" if has_more else None
        return views.json_response({"deadLetters": [letter.as_json() for letter in letters], "next": more})

    async def retry_dead_letter(self, request: Request, id: Id, sequence: Sequence) -> Response:
        """Send one dead letter again, at once; it is deleted once it is delivered."""
        self._admit(request)
        webhook = self._find(id)
        letter = await self._find_letter(webhook, sequence)
        gateway, outcome, tried = self.courier.gateway, None, False
        async with while_wanted(gateway, request):
            outcome, tried = await self._administration.retry(webhook, letter), True
        if not tried:
            raise Unavailable("the gateway is stopping")
        if outcome is None:
            raise Problem("unknown-message", f"message {sequence} is not kept any more; delete the dead letter")
        delivered = not outcome.error
        return views.json_response({"delivered": delivered, "status": outcome.status, "error": outcome.error or None})

    async def delete_dead_letter(self, request: Request, id: Id, sequence: Sequence) -> Response:
        """Delete one dead letter; its message stays in the history."""
        self._admit(request)
        webhook = self._find(id)
        await self._find_letter(webhook, sequence)
        await self._administration.delete_dead_letter(webhook, sequence)
        return Response(status_code=204)

    # What they need

    def _admit(self, request: Request) -> Caller:
        caller = Caller(self.courier.gateway, request)
        caller.check("admin", "")
        self.courier.check_ready()
        return caller

    def _find(self, id: str) -> Webhook:
        if (found := self.courier.webhooks.get(id)) is None:
            raise Problem("unknown-webhook", f"there is no webhook {shortened(id)}; GET /v1/webhooks lists them all")
        return found

    async def _find_letter(self, webhook: Webhook, sequence: int) -> DeadLetter:
        for letter in await self._administration.dead_letters(webhook, sequence - 1, 1):
            if letter.seq == sequence:
                return letter
        raise Problem("unknown-dead-letter", f"message {sequence} is not a dead letter of {webhook.id}; GET lists them")

    async def _members(self, request: Request, *names: str) -> dict[str, Any]:
        """Return the members of a JSON object with these *names*; raise `Problem` 400 or 422."""
        async with read_body(request, MAX_BODY, self.courier.gateway.bus.read_pacer) as body:
            try:
                given = loads(body)
            except ValueError as error:
                raise Problem("malformed-content", f"the body is not one JSON value: {error}") from None
        if type(given) is not dict:
            raise Problem("invalid-webhook", f"the body is not a JSON object with {', '.join(names)}")
        for name, value in given.items():
            if name not in names:
                raise Problem("invalid-webhook", f"{shortened(name)} is not one of {', '.join(names)}")
            if not _fits(value, FIELDS[name]["type"]):
                raise Problem("invalid-webhook", f"{name} is not a valid {FIELDS[name]['type']}")
        return given

    def _check_url(self, url: str) -> None:
        """Raise `Problem` 422 unless *url* may be the URL of a receiver; names are resolved when it is used."""
        allowed = self.courier.settings.allow_networks
        if (reason := _url_fault(url)) is not None:
            raise Problem("invalid-webhook", f"url: {reason}")
        parts = urlsplit(url)
        if parts.scheme == "http" and not allowed:
            raise Problem("invalid-webhook", "url: use https; http is only sent to webhooks.allow_networks")
        policy = AddressPolicy(map(ip_network, allowed), public=parts.scheme == "https")
        try:
            permitted = policy.permits(str(ip_address(parts.hostname or "")))
        except ValueError:
            return  # a name
        if not permitted:
            raise Problem("invalid-webhook", f"url: {policy.reason}")


def _fits(value: Any, kind: str) -> bool:
    if kind == "integer":
        return type(value) is int and 0 <= value <= MAX_INTEGER
    return type(value) is TYPES[kind]


def _url_fault(url: str) -> str | None:
    """Return why *url* cannot be the URL of a receiver; None if it can."""
    if len(url) > MAX_URL:
        return f"it has more than {MAX_URL} characters"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "it has characters that a URL cannot have; encode them"
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return "it is not an https URL"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return "it has a user, a password or a fragment; put what authorizes it into the path or the query"
    return None


def _check_pattern(channels: str) -> None:
    """Raise `Problem` 422 unless *channels* is a pattern that some channel can match."""
    try:
        if len(channels) > MAX_PATTERN:
            raise ValueError(f"it has more than {MAX_PATTERN} characters")
        parse_pattern(channels)
    except ValueError as error:
        raise Problem("invalid-webhook", f"channels: {error}") from None


# fmt: off
HOOK = "/v1/webhooks/{id}"
CREATE, CHANGE = _body(("url", "channels"), "after"), _body((), "url", "enabled")
LETTER = HOOK + "/dead-letters/{sequence}"
ROUTES = [
    Route("GET",    "/v1/webhooks",           WebhookRoutes.webhooks, schema="WebhookList"),
    Route("POST",   "/v1/webhooks",           WebhookRoutes.create_webhook, 201, more=CREATE, schema="NewWebhook"),
    Route("GET",    HOOK,                     WebhookRoutes.webhook, schema="Webhook"),
    Route("PATCH",  HOOK,                     WebhookRoutes.change_webhook, more=CHANGE, schema="Webhook"),
    Route("DELETE", HOOK,                     WebhookRoutes.delete_webhook, 204),
    Route("POST",   HOOK + "/secret",         WebhookRoutes.rotate_secret, 201, schema="WebhookSecret"),
    Route("GET",    HOOK + "/dead-letters",   WebhookRoutes.dead_letters, schema="DeadLetterPage"),
    Route("POST",   LETTER + "/retry",        WebhookRoutes.retry_dead_letter, schema="Retry"),
    Route("DELETE", LETTER,                   WebhookRoutes.delete_dead_letter, 204),
]
# fmt: on


def router(courier: Courier) -> APIRouter:
    """Return the routes; include them before those of REST, which take every path of /v1/."""
    routes = APIRouter(route_class=ProblemRoute)
    owner = WebhookRoutes(courier)
    for route in ROUTES:
        add_route(routes, owner, route)
    return routes
