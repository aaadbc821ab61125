"""`/v1/keys`: API keys over REST, for those who may administer every channel. A secret is shown once, when it is made.

Without keys nobody can administer the gateway over the network, so the first key is always made by `trellis key add`. A
caller cannot remove the key of the request itself, so there is always one left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.access.authorization import DEFAULT_RIGHTS, ApiKey, KeyFile, SecretFileError
from gateway.access.keyfile import MAX_EXPIRY, MAX_KEY_NAME, now_ms
from gateway.runtime import Gateway

from . import views
from .bodies import read_body
from .callers import Caller, path_segment
from .problems import Problem
from .routing import Route

MAX_BODY = 1 << 16  # bytes
MAX_RIGHTS = 256  # of one key
MAX_OVERLAP = 365 * 86_400  # seconds

Name = Annotated[str, Path(description="The name of the key, percent-encoded.")]
Result = TypeVar("Result")
Body = TypeVar("Body", bound=BaseModel)


class NewKey(BaseModel):
    """The body of `POST /v1/keys`."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=MAX_KEY_NAME, description="Also the name of the sender of its messages.")
    rights: tuple[str, ...] = Field(
        DEFAULT_RIGHTS, max_length=MAX_RIGHTS, description="`VERB:PATTERN`, `!VERB:PATTERN`."
    )
    expires: int | None = Field(None, gt=0, lt=MAX_EXPIRY, description="ms since 1970; null: never.")


class Rotation(BaseModel):
    """The body of `POST /v1/keys/{name}/rotate`."""

    model_config = ConfigDict(extra="forbid")

    overlapSeconds: int = Field(3_600, ge=0, le=MAX_OVERLAP, description="How long the old secret remains valid.")  # noqa: N815


def with_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return an addition to an OpenAPI operation: the body is a *model*."""
    return {"requestBody": {"required": True, "content": {views.MEDIA_TYPE: {"schema": model.model_json_schema()}}}}


class Keys:
    """The handlers; each needs the right `admin` on every channel. Files are read and written in a thread."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def keys(self, request: Request) -> Response:
        """List the API keys: names, rights, when they expire and were last used; never secrets (right: `admin`)."""
        self._administrator(request)
        found = await self._in_thread(lambda file: file.load())
        used = self.gateway.access_manager.last_used()
        return _private({"keys": [shown(key, used.get(key.id)) for key in found]})

    async def add(self, request: Request) -> Response:
        """Add an API key; the answer has its secret, which is never shown again (right: `admin`)."""
        self._administrator(request)
        wanted = await self._body(request, NewKey)
        secret = await self._change(lambda file: file.add(wanted.name, wanted.rights, wanted.expires))
        return _private({"name": wanted.name, "secret": secret}, 201)

    async def rotate(self, request: Request, name: Name) -> Response:
        """Make a new secret for a key; the old one ends after the overlap, and its connections too (right: `admin`)."""
        self._administrator(request)
        wanted, name = await self._body(request, Rotation), path_segment(name)
        await self._find(name)
        secret = await self._change(lambda file: file.rotate(name, wanted.overlapSeconds * 1000))
        return _private({"name": name, "secret": secret}, 201)

    async def remove(self, request: Request, name: Name) -> Response:
        """Remove a key; its connections end. A caller cannot remove the key of the request (right: `admin`)."""
        caller, name = self._administrator(request), path_segment(name)
        if name == caller.key:
            raise Problem(
                "own-key", f"the key {name!r} is your own; remove it with another one, or with `trellis key remove`"
            )
        await self._find(name)
        await self._change(lambda file: file.remove(name))
        return Response(status_code=204)

    def _administrator(self, request: Request) -> Caller:
        caller = Caller(self.gateway, request)
        caller.check("admin", "")
        return caller

    async def _body(self, request: Request, model: type[Body]) -> Body:
        async with read_body(request, MAX_BODY, self.gateway.bus.read_pacer) as body:
            try:
                return model.model_validate_json(body)
            except ValidationError as error:
                faults = (f"{'.'.join(map(str, each['loc'])) or 'the body'}: {each['msg']}" for each in error.errors())
                raise Problem("invalid-key", "; ".join(faults)) from None

    async def _find(self, name: str) -> None:
        """Raise `Problem` 404 unless there is a valid key called *name*."""
        found = await self._in_thread(lambda file: file.load())
        if not any(key.name == name and key.is_valid_at(now_ms()) for key in found):
            raise Problem("unknown-key-name", f"there is no key called {name!r}; GET /v1/keys lists them")

    async def _change(self, change: Callable[[KeyFile], Result]) -> Result:
        """Change the file, and apply it to every connection before the answer."""
        try:
            done = await self._in_thread(change)
        except ValueError as error:
            raise Problem("invalid-key", str(error)) from None
        self.gateway.access_manager.reload_keys()
        return done

    async def _in_thread(self, call: Callable[[KeyFile], Result]) -> Result:
        """Call *call* with the key file in a thread."""
        file = KeyFile(self.gateway.access_manager.keys.path)
        try:
            return await anyio.to_thread.run_sync(call, file)
        except (OSError, SecretFileError) as error:
            raise Problem("unavailable", f"the key file cannot be used: {error}") from None


def shown(key: ApiKey, used: int | None) -> dict[str, Any]:
    """Return what REST shows of *key*, last *used* at that time (ms)."""
    about = {"id": key.id, "name": key.name, "rights": key.rights, "expires": key.expires, "lastUsed": used}
    return about | {"valid": key.is_valid_at(now_ms())}


def _private(value: Any, status: int = 200) -> Response:
    """Return a JSON response that must not be cached."""
    response = views.json_response(value, status)
    response.headers["Cache-Control"] = "no-store"
    return response


# fmt: off
ROUTES = [
    Route("GET",    "/v1/keys",               Keys.keys, schema="Keys"),
    Route("POST",   "/v1/keys",               Keys.add, 201, more=with_body(NewKey), schema="KeySecret"),
    Route("POST",   "/v1/keys/{name}/rotate", Keys.rotate, 201, more=with_body(Rotation), schema="KeySecret"),
    Route("DELETE", "/v1/keys/{name}",        Keys.remove, 204),
]
# fmt: on
