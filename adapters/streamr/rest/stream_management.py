"""The REST calls that change streams: they create, describe and delete them, and grant permissions."""

from __future__ import annotations

from typing import Any

from adapters.streamr.model.login import ADDRESS
from adapters.streamr.model.streams import OPERATIONS, InvalidDescription
from adapters.streamr.wire.checks import MAX_NAME
from adapters.streamr.wire.ids import NAME, channel_of, inbox_of
from gateway.access.authorization import ANONYMOUS
from gateway.core.channels import CREATION_COST
from gateway.core.jsontext import loads
from gateway.core.principal import Principal

from .core_api import MAX_DIGITS, ApiError, CoreApi, RestCaller

# Of a message whose fields are detected: reading it takes less than a millisecond.
MAX_DETECTED_BYTES = 1 << 16
MAX_DETECTED_VALUES = 1_024
# What the reference calls the JSON types of fields.
FIELD_TYPES = {dict: "map", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}


class StreamManagement(CoreApi):
    """Returns JSON values, or raises `ApiError`. To change a stream takes the right to `admin` one of its channels."""

    def admit_change(self, caller: RestCaller, stream: str | None) -> None:
        """Raise unless the caller may see *stream* and the log can be written: checked before a body is read."""
        self._context.bus.check_log()
        if stream is None:
            self._user_of(caller)
        else:
            self._check_visible(caller, stream)

    def create(self, caller: RestCaller, fields: dict[str, Any]) -> dict[str, Any]:
        """Create a stream, if the caller may publish there; an existing one is not changed."""
        stream = fields.get("id") or fields.get("name")
        if not isinstance(stream, str) or not 0 < len(stream) <= MAX_NAME or inbox_of(stream) is not None:
            raise ApiError(400, f"a stream needs an id of at most {MAX_NAME} characters, and not that of an inbox")
        principal, address = self._user_of(caller)
        if not self._is_allowed(principal, "stream_publish", stream, address):
            raise ApiError(403, f"Not allowed to create stream: {stream}")
        channels, channel = self._context.bus.channels, channel_of(stream, 0)
        if not self._exists(channel):
            raise ApiError(404, f"There can be no stream: {stream}")
        if not channels.exists(channel):
            if not self._streams.is_configured(stream):
                self._describe(stream, fields)
            channels.register(channel)
            self._context.bus.charge(caller.network, CREATION_COST)
        return self._streams.shown(stream)

    def update(self, caller: RestCaller, stream: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Change the given fields of a stream's description."""
        self._authorize_change(caller, stream, "stream_edit")
        self._describe(stream, fields)
        return self._streams.shown(stream)

    def delete(self, caller: RestCaller, stream: str) -> None:
        """Delete a stream's description and take it off the list; its history stays."""
        self._authorize_change(caller, stream, "stream_delete")
        self._context.bus.check_log()
        channels = self._streams.channels_of(stream)
        try:
            self._streams.forget(stream)
        except InvalidDescription as error:
            raise _invalid(error) from None
        for channel in channels:
            self._context.bus.channels.close(channel)

    def set_fields(self, caller: RestCaller, stream: str, items: list[Any]) -> dict[str, Any]:
        """Set the fields that a stream's messages have."""
        config = self.stream(caller, stream)["config"]
        return self.update(caller, stream, {"config": config | {"fields": items}})

    def detect_fields(self, caller: RestCaller, stream: str) -> dict[str, Any]:
        """The description of a stream with the fields of its newest message, unless that is long or has many values."""
        shown = self.stream(caller, stream)
        principal, _ = self._user_of(caller)
        channel = self._streams.channels_of(stream)[0]
        if not self._context.bus.allowed(principal, "history", channel):
            raise ApiError(403, f"Not allowed to read stream: {stream}")
        newest = self._context.services.index.history(channel, newest_first=True, limit=1)
        text = newest[0].content if newest else b"null"
        try:
            content = loads(text, max_values=MAX_DETECTED_VALUES) if len(text) <= MAX_DETECTED_BYTES else None
        except ValueError:  # it has more values
            content = None
        items = content.items() if isinstance(content, dict) else ()
        fields = [{"name": name, "type": FIELD_TYPES[type(value)]} for name, value in items if value is not None]
        return shown | {"config": shown["config"] | {"fields": fields}}

    def permissions(self, caller: RestCaller, stream: str) -> list[dict[str, Any]]:
        """The permissions that were granted on a stream, and the operations that are open to everybody."""
        self._authorize_change(caller, stream, "stream_share")
        given = self._streams.permissions(stream)
        anybody = Principal(f"{NAME}:{ANONYMOUS}")
        public = {permission.operation for permission in given if permission.user is None}
        open_to_all = (name for name in OPERATIONS if name not in public and self._is_allowed(anybody, name, stream))
        return [
            *(permission.shown() for permission in given),
            *({"id": None, "anonymous": True, "operation": name} for name in open_to_all),
        ]

    def grant(self, caller: RestCaller, stream: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Grant a user, or everybody (`anonymous`), an operation on a stream."""
        self._authorize_change(caller, stream, "stream_share")
        operation, user = fields.get("operation"), fields.get("user")
        if not isinstance(operation, str) or operation not in OPERATIONS:
            raise ApiError(422, f"operation: one of {', '.join(OPERATIONS)}", "VALIDATION_ERROR")
        if user is None and not (fields.get("anonymous") is True or fields.get("public") is True):
            raise ApiError(422, "expected a user, or anonymous: true", "VALIDATION_ERROR")
        if user is not None and not (isinstance(user, str) and ADDRESS.fullmatch(user)):
            raise ApiError(422, "user: an Ethereum address", "VALIDATION_ERROR")
        try:
            return self._streams.grant(stream, operation, user and user.lower()).shown()
        except InvalidDescription as error:
            raise _invalid(error) from None

    def revoke(self, caller: RestCaller, stream: str, permission: str) -> None:
        """Revoke a permission; `gateway.access.revocation` closes connections that lose a right by it."""
        self._authorize_change(caller, stream, "stream_share")
        self._context.bus.check_log()
        number = int(permission) if permission.isdecimal() and len(permission) <= MAX_DIGITS else -1
        if not self._streams.revoke(stream, number):
            raise ApiError(404, f"Permission not found: {permission}")

    def store(self, caller: RestCaller, stream: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Answer with this gateway's address: it stores every stream, and no other node does."""
        self._check_visible(caller, stream)
        address = fields.get("address")
        if not isinstance(address, str) or not ADDRESS.fullmatch(address):
            raise ApiError(422, "address: an Ethereum address", "VALIDATION_ERROR")
        return {"storageNodeAddress": self._own}

    def _describe(self, stream: str, fields: dict[str, Any]) -> None:
        try:
            self._streams.describe(stream, fields)
        except InvalidDescription as error:
            raise _invalid(error) from None

    def _authorize_change(self, caller: RestCaller, stream: str, operation: str) -> None:
        """Raise unless *stream* exists and the caller may do *operation* on it."""
        self._check_visible(caller, stream)
        principal, address = self._user_of(caller)
        if not self._is_allowed(principal, operation, stream, address):
            raise ApiError(403, f"Not allowed to {operation.removeprefix('stream_')} stream: {stream}")


def _invalid(error: InvalidDescription) -> ApiError:
    return ApiError(422, str(error), "VALIDATION_ERROR")
