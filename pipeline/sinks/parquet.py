"""Tables as folders of Parquet files, which Spark, DuckDB and programs that list files see in a consistent state.

Laws of this file.
- A part is a directory, `batch=NAME`, written elsewhere and moved into the table by one rename; it never changes.
- `_manifest.json` names the valid parts and what they hold; it is replaced by one rename, which commits the batch. A
  part that was moved into the table and is not named yet is overwritten when the batch is repeated.
- Many parts are exchanged for others by exchanging the whole folder (`renameat2`), so a program that lists the files
  gets either all of the old or all of the new. The old folder is kept for a while for its readers.
Only the Python process that holds the checkpoint's lock moves anything; a JVM that outlives it writes into a staging
directory that is never read.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.errors import DamagedWarehouse
from pipeline.schemas import MESSAGES, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFEST = "_manifest.json"
PART = "batch="
STAGING = ".staging"
TRASH = ".trash"
DICTIONARY_COLUMNS = ("gateway_id", "day", "kind", "channel", "protocol", "peer", "sender")
ROW_GROUP = 50_000  # rows in a row group
_PATTERN = re.compile(r"[\\*?\[\]{}]")
_AT_FDCWD, _EXCHANGE = -100, 2


@dataclass(frozen=True, slots=True)
class Part:
    """A part in a manifest. *spans* are the sequences that it covers, by gateway: lists of first and last.

    *segments* are the log's segments that it was made from, by their keys (`Segment.key`); empty if it was made from
    none.
    """

    name: str
    rows: int
    bytes: int
    spans: dict[str, list[list[int]]] = field(default_factory=dict)
    segments: list[int] = field(default_factory=list)
    gateway: str = ""


@dataclass(slots=True)
class Manifest:
    """The valid parts of a table, its checkpoint, and the last batch in it."""

    checkpoint: str = ""
    batch: int = 0
    parts: list[Part] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete directory of Parquet files that is not in a table yet."""

    path: Path
    rows: int
    bytes: int


class Table:
    """One table below *warehouse*; *job* names the job that writes it, for its staging directory."""

    def __init__(self, warehouse: Path, spec: TableSpec, job: str = "") -> None:
        self.spec = spec
        self.path = warehouse / spec.name
        self._warehouse = warehouse
        self._job = job

    # Reading

    def manifest(self) -> Manifest:
        """Read the manifest; raise `DamagedWarehouse` if it is unreadable, or missing although there are parts."""
        try:
            told = json.loads((self.path / MANIFEST).read_text())
        except FileNotFoundError:
            if any(self.path.glob(f"{PART}*")):
                raise DamagedWarehouse(
                    f"{self.path} has files but no {MANIFEST}: put it back, or remove the folder"
                ) from None
            return Manifest()
        except ValueError as error:
            raise DamagedWarehouse(f"{self.path / MANIFEST} cannot be read: {error}") from None
        return Manifest(told["checkpoint"], told["batch"], [Part(**part) for part in told["parts"]], told["notes"])

    def frame(self, spark: SparkSession, parts: Iterable[Part] | None = None) -> DataFrame:
        """Read the rows of *parts*, by default of all in the manifest."""
        chosen = self.manifest().parts if parts is None else parts
        paths = [escape_glob(self.path / part.name) for part in chosen if part.rows]
        if not paths:
            return spark.createDataFrame([], self.spec.schema)
        return spark.read.schema(self.spec.schema).parquet(*paths)

    # Writing

    def stage(self, frame: DataFrame) -> Staged:
        """Run *frame* and write its rows to a staging directory; they are on disk when this returns."""
        path = self.staging()
        names = self.spec.schema.fieldNames()
        frame.select(*names).write.mode("overwrite").parquet(str(path))
        return finished(path)

    def stage_rows(self, rows: list[tuple[Any, ...]]) -> Staged:
        """Write a few *rows* to a staging directory without Spark."""
        path = self.staging()
        path.mkdir(parents=True)
        schema = to_arrow_schema(self.spec.schema)
        columns = zip(*rows, strict=True) if rows else [()] * len(schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path / "part-0.parquet", compression="zstd")
        return finished(path)

    def discard(self, staged: Staged) -> None:
        """Delete *staged*."""
        shutil.rmtree(staged.path)

    def install(self, staged: Staged, name: str) -> Path:
        """Move *staged* into the table as the part *name*, replacing that of an earlier attempt."""
        part = self.path / f"{PART}{name}"
        self.path.mkdir(parents=True, exist_ok=True)
        if part.exists():
            exchange(staged.path, part)
            shutil.rmtree(staged.path)
        else:
            staged.path.rename(part)
        _sync(self.path)
        return part

    def publish(self, manifest: Manifest) -> None:
        """Replace the manifest by *manifest*, which commits it."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / MANIFEST, asdict(manifest))

    def append(self, staged: Staged, part: Part, manifest: Manifest) -> None:
        """Put *staged* into the table as *part* and publish *manifest* with it; idempotent."""
        if not (self.path / MANIFEST).exists():
            self.publish(Manifest(manifest.checkpoint))  # parts without a manifest would be damage
        self.install(staged, part.name.removeprefix(PART))
        manifest.parts = [*(old for old in manifest.parts if old.name != part.name), part]
        self.publish(manifest)

    def replace(self, new: dict[str, Staged], manifest: Manifest) -> None:
        """Exchange the folder for one with the parts in *manifest*: those in *new*, and the existing others."""
        folder = self.staging()
        folder.mkdir(parents=True)
        for part in manifest.parts:
            if part.name in new:
                new[part.name].path.rename(folder / part.name)
            else:
                shutil.copytree(self.path / part.name, folder / part.name, copy_function=os.link)
        write_json(folder / MANIFEST, asdict(manifest))
        _sync(folder)
        if self.path.exists():
            exchange(folder, self.path)
            self._to_trash(folder)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(self.path)
        _sync(self.path.parent)

    def staging(self) -> Path:
        """Return a new path for a staging directory, which no reader lists."""
        parent = self._warehouse / STAGING / self._job
        parent.mkdir(parents=True, exist_ok=True)
        return parent / f"{self.spec.name.replace('/', '.')}-{uuid.uuid4().hex}"

    def _to_trash(self, folder: Path) -> None:
        trash = self._warehouse / TRASH
        trash.mkdir(parents=True, exist_ok=True)
        folder.rename(trash / f"{int(time.time())}-{folder.name}")


class Writer:
    """Writes a file of `bronze/messages` without Spark.

    Columns whose values hardly repeat have no dictionary, which would cost more than everything else.
    """

    def __init__(self, path: Path) -> None:
        schema = to_arrow_schema(MESSAGES.schema)
        self._file = pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=list(DICTIONARY_COLUMNS))
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


def escape_glob(path: Path | str) -> str:
    """Escape the characters in *path* that Spark takes for patterns."""
    return _PATTERN.sub(r"\\\g<0>", str(path))


def part_of(name: str, staged: Staged, **more: Any) -> Part:
    """Return the manifest's entry for *staged* as the part *name*."""
    return Part(f"{PART}{name}", staged.rows, staged.bytes, **more)


def finished(path: Path) -> Staged:
    """Sync everything in the directory *path*, and remove files without rows."""
    rows = size = 0
    path.mkdir(parents=True, exist_ok=True)
    for file in list(path.iterdir()):
        count = pq.read_metadata(file).num_rows if file.suffix == ".parquet" and not file.name.startswith(".") else 0
        if not count:
            file.unlink()
            continue
        rows, size = rows + count, size + file.stat().st_size
        _sync(file)
    _sync(path)
    return Staged(path, rows, size)


def sweep(warehouse: Path, job: str, grace_seconds: float) -> None:
    """Remove the staging directories of *job*, and what was replaced more than *grace_seconds* ago."""
    shutil.rmtree(warehouse / STAGING / job, ignore_errors=True)
    for folder in _listed(warehouse / TRASH):
        if int(folder.name.partition("-")[0]) + grace_seconds <= time.time():
            shutil.rmtree(folder, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Replace the file *path* by *value* as JSON, durably and atomically."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with temporary.open("w") as file:
        json.dump(value, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    _sync(path.parent)


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two directories atomically (Linux: renameat2(2), RENAME_EXCHANGE); raise `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _EXCHANGE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(other))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _listed(folder: Path) -> Iterator[Path]:
    yield from folder.iterdir() if folder.is_dir() else ()
