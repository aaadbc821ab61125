"""The Parquet files of tables: written once under a new name, and described by what their footers say."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.places import Place, files_in, filesystem, remove_file
from pipeline.schemas import MESSAGES, TableSpec

DICTIONARY_COLUMNS: Final = ("gateway_id", "day", "kind", "channel", "protocol", "peer", "sender", "file", "reason")
ROW_GROUP: Final = 50_000  # rows in a row group
# The columns whose least and greatest values a table keeps of each file: numbers, dates, and this text.
TEXT_WITH_STATISTICS: Final = "gateway_id"


@dataclass(frozen=True, slots=True)
class File:
    """A complete file; *name* is its path in the folder of its table, *statistics* as the Delta log has them."""

    name: str
    rows: int
    bytes: int
    modified_ms: int
    statistics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Staged:
    """The files in a folder of a table that no commit names yet; no reader sees them."""

    path: Place
    files: tuple[File, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)


class Writer:
    """Writes a file of a table, by default of `bronze/messages`, without Spark.

    Columns whose values hardly repeat have no dictionary, which would cost more than everything else.
    """

    def __init__(self, path: Place, spec: TableSpec = MESSAGES) -> None:
        schema, (system, name) = to_arrow_schema(spec.schema), filesystem(path)
        dictionaries = [column for column in DICTIONARY_COLUMNS if column in schema.names]
        self._file = pq.ParquetWriter(name, schema, compression="zstd", use_dictionary=dictionaries, filesystem=system)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._file.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of *batch*; several batches become one row group."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._rows = [], 0


def finished(path: Place) -> Staged:
    """Sync everything in the folder *path* of a table, and remove files without rows."""
    if isinstance(path, Path):
        path.mkdir(parents=True, exist_ok=True)
    files: list[File] = []
    for file in files_in(path):
        if file.name.endswith(".parquet") and not file.name.startswith("."):
            data_file = described(path.parent, file)
            if data_file.rows:
                sync(file)
                files.append(data_file)
                continue
        remove_file(file)
    sync(path)
    sync(path.parent)
    return Staged(path, tuple(files))


def described(table: Place, file: Place) -> File:
    """Describe *file* in the folder *table*, by its footer."""
    system, path = filesystem(file)
    footer, about = pq.read_metadata(path, filesystem=system), system.get_file_info(path)
    name = str(file).removeprefix(f"{table}/")
    return File(name, footer.num_rows, about.size, about.mtime_ns // 1_000_000, _statistics(footer))


def _statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return the statistics of a file as the Delta protocol has them (Per-file Statistics)."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    schema = footer.schema.to_arrow_schema()
    for place in range(footer.num_columns):
        name = footer.schema.column(place).path
        if name not in schema.names or not (
            pa.types.is_integer(kind := schema.field(name).type)
            or pa.types.is_date(kind)
            or name == TEXT_WITH_STATISTICS
        ):
            continue
        found = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        if found and all(each is not None and each.has_min_max for each in found):
            least[name] = _json(min(each.min for each in found))
            greatest[name] = _json(max(each.max for each in found))
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": {}}


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def write_json(path: Path, value: Any) -> None:
    """Replace the file *path* by *value* as JSON, durably and atomically."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with temporary.open("w") as file:
        json.dump(value, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync(path.parent)


def sync(path: Place) -> None:
    """Wait until the file or directory *path* is on the disk; what an object store has accepted is."""
    if not isinstance(path, Path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
