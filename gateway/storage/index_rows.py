"""What entries of the log add to the tables of the index: to its own, and to those of the adapters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from gateway.core.jsontext import dumps
from gateway.core.message import Message

from .fact_lifetimes import FactRules
from .index_schema import FACT_COLUMNS, MESSAGE_COLUMNS, KnownId, Row, Statement, deletion_trigger
from .log import SyncedBatch
from .record import Entry, Fact


class IndexedAdapter(FactRules, Protocol):
    """What the index needs of an adapter."""

    @property
    def tables(self) -> str:
        """SQL that creates the adapter's tables."""

    @property
    def tables_by_record(self) -> Sequence[str]:
        """The names of those of its tables whose rows have a `seq` and are deleted with the record of that sequence."""

    def rows(self, entries: Sequence[Entry]) -> Iterable[Row | KnownId]:
        """The rows that *entries* add to the adapter's tables, and further ids by which records are found.

        They are the same when the entries are read back from the log.
        """

    def removal_statements(self, fact: Fact) -> Iterable[Statement]:
        """Statements that delete what *fact* added to the tables, except the rows that are deleted with its record."""

    def pruning_statements(self) -> Iterable[Statement]:
        """Statements that delete rows that no message supports any more, once messages have been deleted."""


def adapter_schema(adapters: Iterable[IndexedAdapter]) -> str:
    """The SQL that creates the tables of *adapters*, and deletes their rows with the records that they belong to."""
    each = list(adapters)
    by_record = [table for adapter in each for table in adapter.tables_by_record]
    return "".join(adapter.tables for adapter in each) + deletion_trigger(by_record)


def record_rows(batch: SyncedBatch) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of `records` for the entries of a *batch*, by their columns."""
    facts: list[tuple[Any, ...]] = []
    messages: list[tuple[Any, ...]] = []
    for entry, offset in zip(*batch, strict=True):
        if isinstance(entry, Message):
            messages.append((entry.seq, offset, entry.channel, entry.sender.number, entry.timestamp))
        else:
            facts.append((entry.seq, offset))
    return {FACT_COLUMNS: facts, MESSAGE_COLUMNS: messages}


def id_rows(chosen: Iterable[tuple[str, int]]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows for *chosen* ids with their sequences: a message's first goes to `ids`, the others to `aliases`."""
    rows: dict[str, list[tuple[Any, ...]]] = {"ids": [], "aliases": []}
    last = 0
    for row in chosen:
        seq = row[1]
        rows["aliases" if seq == last else "ids"].append(row)
        last = seq
    return rows


def fact_rows(fact: Fact) -> Iterator[Row]:
    """The row that *fact* adds to `peers` or `channels`, if any."""
    match fact.kind, fact.fields:
        case "peer", {"first": _}:
            pass
        case "peer", {"peer": number, "protocol": protocol, "sender": identity, **rest}:
            yield Row("peers", (number, protocol, identity, rest.get("name")))
        case "channel", {"channel": name, "addresses": addresses, "open": is_open}:
            yield Row("channels", (name, dumps(addresses).decode(), int(is_open)))
