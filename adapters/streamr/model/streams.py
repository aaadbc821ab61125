"""The rules, descriptions and permissions of streams.

A stream without a description has the defaults. The operator describes streams in the configuration, and nobody else
can change those; users describe others by REST. Each description is an `entity` fact in the log, and the newest edition
of each is a row of `streamr_streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from glob import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.ids import NAME, channel_of, inbox_of, key_exchange_address, stream_of
from adapters.streamr.wire.validation_errors import invalid_message
from gateway.access.authorization import ANONYMOUS, Right
from gateway.core.bounded_maps import CACHED_CHANNELS
from gateway.core.errors import RequestError
from gateway.core.jsontext import dumps, loads
from gateway.storage.fact_lifetimes import Lifetime
from gateway.storage.index_queries import PAGE
from gateway.storage.index_schema import Row

if TYPE_CHECKING:
    from adapters.streamr.wire.message import StreamMessage
    from gateway.access.authorization import Access
    from gateway.adapter import Services
    from gateway.storage.index_schema import Statement
    from gateway.storage.record import Fact

MAX_PARTITIONS = 100  # the reference's limit
MAX_DESCRIBED = 10_000  # streams that users described
MAX_DESCRIPTION = 16_384  # bytes of one description, as JSON
MAX_PERMISSIONS = 256  # of one stream

TABLE = """
CREATE TABLE streamr_streams (stream TEXT PRIMARY KEY, description TEXT NOT NULL) WITHOUT ROWID;
"""
_SELECT_PAGE = "SELECT stream, description FROM streamr_streams WHERE stream > ? ORDER BY stream LIMIT ?"

_VALIDATION_FIELDS = ("partitions", "requireSignedData", "requireEncryptedData")

# The operations of the reference, and the verbs of the gateway that each grants.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "stream_get": (),
    "stream_subscribe": ("subscribe", "history"),
    "stream_publish": ("publish", "direct"),
    "stream_edit": ("admin",),
    "stream_delete": ("admin",),
    "stream_share": ("admin",),
}


class ConfiguredStream(BaseModel):
    """A stream in the configuration: a table, or its number of partitions alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partitions: int | None = Field(None, ge=1, le=MAX_PARTITIONS)
    require_signed_data: bool = False
    require_encrypted_data: bool = False
    decrypt: bool = Field(False, description="The gateway asks for group keys, and bridges the plain text.")
    public: bool = Field(False, description="Every Streamr user may subscribe, even without a right by `auth`.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"partitions": value} if type(value) is int else value


class StreamDescription(BaseModel):
    """A user's description of a stream, with the field names of the reference's REST interface; others are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True)

    partitions: int | None = Field(None, ge=1, le=MAX_PARTITIONS)
    require_signed_data: bool = False
    require_encrypted_data: bool = False
    name: str | None = Field(None, max_length=255)
    description: str = Field("", max_length=4096)
    config: dict[str, Any] = Field(default_factory=lambda: {"fields": []})
    storage_days: int = Field(0, ge=0, le=1 << 31)
    inactivity_threshold_hours: int = Field(0, ge=0, le=1 << 31)


DEFAULT_DESCRIPTION = StreamDescription.model_validate({})  # of a stream without a description


class Permission(NamedTuple):
    """The permission of a user (a lower-case address, None for everybody) to use one operation."""

    id: int
    operation: str
    user: str | None

    def shown(self) -> dict[str, Any]:
        """The permission in the reference's JSON form."""
        who = {"anonymous": True} if self.user is None else {"user": self.user}
        return {"id": self.id, **who, "operation": self.operation}


class StreamRules(NamedTuple):
    """What the messages of a stream must satisfy."""

    partitions: int
    require_signed_data: bool = False
    require_encrypted_data: bool = False

    def check(self, message: StreamMessage) -> None:
        """Raise unless *message* is signed and encrypted as required; the error has the validator's text."""
        if self.require_signed_data and not message.signature:
            raise invalid_message("Stream data is required to be signed", message)
        if self.require_encrypted_data and message.encryption_type == kinds.NONE:
            raise invalid_message("Non-public streams require data to be encrypted", message)


class InvalidDescription(RequestError):
    """A description or permission is refused; the text says why."""


class _StreamRecord(NamedTuple):
    """What users set for a stream."""

    description: StreamDescription = DEFAULT_DESCRIPTION
    permissions: tuple[Permission, ...] = ()


class Streams:
    """The rules of every stream, and the channels of its partitions."""

    def __init__(self, configured: Mapping[str, ConfiguredStream], partitions: int) -> None:
        self._configured = configured
        self._default = StreamRules(partitions)
        self._streams: dict[str, _StreamRecord] = {}
        self._rules: dict[str, StreamRules] = {}
        self.rules = lru_cache(CACHED_CHANNELS)(self._find_rules)  # it is asked for each message
        self.channel_rules = lru_cache(CACHED_CHANNELS)(self._find_channel_rules)
        self._rights: dict[str | None, dict[str, tuple[Right, ...]]] = {}  # by user and by stream

    def start(self, services: Services) -> None:
        """Read the stored descriptions."""
        self._services = services
        self.read(services.access, services.index.rows)

    def read(self, access: Access, rows: Callable[..., list[Any]]) -> None:
        """Read the descriptions in the *rows* of the table, and give *access* the rights of their users."""
        self._access = access
        for stream, settings in self._configured.items():
            self._set_rules(stream, settings)
            given = [Permission(0, "stream_subscribe", None)] if settings.public else []
            self._set_rights(stream, (), given)
        last = ""
        while found := rows(_SELECT_PAGE, (last, PAGE)):
            for last, text in found:
                if (record := _parse(text)) is not None and last not in self._configured:
                    self._apply_record(last, record)

    # Queries

    def _find_rules(self, stream: str) -> StreamRules:
        """The rules of *stream*; an inbox and a key exchange have one partition and no others."""
        found = self._rules.get(stream)
        if found is not None:
            return found
        special = inbox_of(stream) is not None or key_exchange_address(stream) is not None
        return StreamRules(1) if special else self._default

    def _find_channel_rules(self, channel: str) -> StreamRules | None:
        """The rules for *channel*; None if its stream has no such partition."""
        stream, partition = stream_of(channel)
        rules = self.rules(stream)
        return rules if partition < rules.partitions and key_exchange_address(stream) is None else None

    def partitions(self, stream: str) -> int:
        """The number of partitions of *stream*; inboxes and key exchanges have one."""
        return self.rules(stream).partitions

    def channels_of(self, stream: str) -> list[str]:
        """The channels of the partitions of *stream*; of an inbox, the channel it is in."""
        inbox = inbox_of(stream)
        return (
            [inbox.stream_id] if inbox is not None else [channel_of(stream, p) for p in range(self.partitions(stream))]
        )

    @property
    def decrypts_any(self) -> bool:
        """Whether the gateway decrypts any stream."""
        return any(settings.decrypt for settings in self._configured.values())

    def decrypts(self, stream: str) -> bool:
        """Whether the gateway decrypts messages on *stream*, which only the operator can configure."""
        settings = self._configured.get(stream)
        return settings is not None and settings.decrypt

    def is_configured(self, stream: str) -> bool:
        """Whether the operator describes *stream* in the configuration."""
        return stream in self._configured

    def shown(self, stream: str) -> dict[str, Any]:
        """The stream in the JSON form of the reference's REST interface."""
        description = self._record(stream).description
        return (
            {"id": stream}
            | description.model_dump(by_alias=True)
            | self.validation_fields(stream)
            | {"name": description.name or stream}
        )

    def validation_fields(self, stream: str) -> dict[str, Any]:
        """The fields that clients need to validate messages of *stream*, by the reference's names."""
        return {"id": stream, **dict(zip(_VALIDATION_FIELDS, self.rules(stream), strict=True))}

    def permissions(self, stream: str) -> tuple[Permission, ...]:
        """The permissions that users were granted on *stream*."""
        return self._record(stream).permissions

    # Changes by users

    def describe(self, stream: str, fields: Mapping[str, Any]) -> None:
        """Update the description of *stream* with *fields*; other fields stay unchanged."""
        record = self._record(stream)
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            description = StreamDescription.model_validate(record.description.model_dump(by_alias=True) | given)
        except ValidationError as error:
            fault = error.errors()[0]
            raise InvalidDescription(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
        if description != record.description:
            self._log_record(stream, record._replace(description=description))

    def grant(self, stream: str, operation: str, user: str | None) -> Permission:
        """Let *user* (an address, None is everybody) use *operation* on *stream*; a repeated grant changes nothing."""
        record = self._record(stream)
        for permission in record.permissions:
            if permission[1:] == (operation, user):
                return permission
        if len(record.permissions) >= MAX_PERMISSIONS:
            raise InvalidDescription(f"a stream has at most {MAX_PERMISSIONS} permissions")
        added = Permission(max((permission.id for permission in record.permissions), default=0) + 1, operation, user)
        self._log_record(stream, record._replace(permissions=(*record.permissions, added)))
        return added

    def revoke(self, stream: str, id: int) -> bool:
        """Revoke the permission *id*; False if there is none."""
        record = self._record(stream)
        kept = tuple(permission for permission in record.permissions if permission.id != id)
        if len(kept) == len(record.permissions):
            return False
        self._log_record(stream, record._replace(permissions=kept))
        return True

    def forget(self, stream: str) -> None:
        """Reset *stream* to the defaults."""
        if stream in self._streams:
            self._log_record(stream, _StreamRecord())

    def learn(self, fact: Fact) -> None:
        """Apply *fact*, in which another gateway logged what users declared about a stream."""
        if fact.kind == "entity":
            stream, record = fact.fields["native"][NAME], _parse(fact.fields["wire"])
            if record is not None and stream not in self._configured:
                self._apply_record(stream, record)

    @staticmethod
    def rows(fact: Fact) -> Iterator[Row]:
        """The row that *fact* adds to the table."""
        if fact.kind == "entity" and fact.protocol == NAME:
            yield Row("streamr_streams", (fact.fields["native"][NAME], fact.fields["wire"]))

    @staticmethod
    def lifetime(fact: Fact) -> Lifetime | None:
        """The lifetime of *fact*: unlimited for the newest edition of a stream, unless that resets the stream."""
        if fact.kind != "entity" or fact.protocol != NAME:
            return None
        record = _parse(fact.fields["wire"])
        return Lifetime(f"{NAME} {fact.fields['native'][NAME]}", () if record in (None, _StreamRecord()) else None)

    @staticmethod
    def removal_statements(fact: Fact) -> Iterator[Statement]:
        """The statement that deletes the row of the stream that *fact* describes."""
        if fact.kind == "entity" and fact.protocol == NAME:
            yield "DELETE FROM streamr_streams WHERE stream = ?", (fact.fields["native"][NAME],)

    def _record(self, stream: str) -> _StreamRecord:
        return self._streams.get(stream) or _StreamRecord()

    def _log_record(self, stream: str, record: _StreamRecord) -> None:
        """Log *record* as the record of *stream*, then apply it."""
        if stream in self._configured:
            raise InvalidDescription("this stream is described by the configuration of the gateway")
        text = dumps([record.description.model_dump(by_alias=True), record.permissions])
        if len(text) > MAX_DESCRIPTION:
            raise InvalidDescription(f"a description has at most {MAX_DESCRIPTION} bytes")
        if len(self._streams) >= MAX_DESCRIBED and stream not in self._streams:
            raise InvalidDescription(
                f"this gateway keeps at most {MAX_DESCRIBED} descriptions, and has that many already"
            )
        edition = self._services.bus.ledger.next_seq  # no two facts about a stream are the same one
        native = {NAME: stream, "edition": edition}
        self._services.fact("entity", {"protocol": NAME, "native": native, "wire": text.decode()})
        self._apply_record(stream, record)

    def _apply_record(self, stream: str, record: _StreamRecord) -> None:
        before = self.permissions(stream)
        self._streams[stream] = record
        if record == _StreamRecord():
            del self._streams[stream]
        self._set_rules(stream, record.description)
        self._set_rights(stream, before, record.permissions)

    def _set_rules(self, stream: str, description: ConfiguredStream | StreamDescription) -> None:
        partitions = description.partitions or self._default.partitions
        rules = StreamRules(partitions, description.require_signed_data, description.require_encrypted_data)
        self._rules[stream] = rules
        if rules == self._default:
            del self._rules[stream]
        self.rules.cache_clear()
        self.channel_rules.cache_clear()

    def _set_rights(self, stream: str, before: Sequence[Permission], now: Sequence[Permission]) -> None:
        """Give the users in *before* and *now* the rights to *stream* that they have *now*."""
        for user in dict.fromkeys(permission.user for permission in (*before, *now)):
            streams = self._rights.setdefault(user, {})
            operations = [permission.operation for permission in now if permission.user == user]
            streams[stream] = tuple(self._rights_on(stream, operations))
            if not operations:
                del streams[stream]
            given = [right for rights in streams.values() for right in rights]
            self._access.set_given_rights(f"{NAME}:{ANONYMOUS if user is None else user}", given)
            if not streams:
                del self._rights[user]

    def _rights_on(self, stream: str, operations: list[str]) -> Iterator[Right]:
        for verb in dict.fromkeys(verb for operation in operations for verb in OPERATIONS[operation]):
            for partition in range(self.rules(stream).partitions):
                yield Right(verb, escape(channel_of(stream, partition)))


def _parse(text: str) -> _StreamRecord | None:
    """The record that `_log_record` wrote as *text*; None if it is malformed."""
    try:
        description, permissions = loads(text)
        given = tuple(Permission(*permission) for permission in permissions)
        if not all(permission.operation in OPERATIONS for permission in given):
            return None
        return _StreamRecord(StreamDescription.model_validate(description), given)
    except (ValueError, TypeError):
        return None
