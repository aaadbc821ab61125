"""Tables in the format of Delta Lake, committed by the driver with the package `deltalake`.

Laws of this file.
- A data file is complete and on the disk before a commit names it, has a name of its own, and never changes. Files that
  no commit names are what an interrupted batch left; nobody sees them, and `vacuum` removes them.
- A commit adds and removes files at once. It holds the application's transaction (`trellis/JOB`, the batch), so a batch
  is in a table once, and the state of the table (`TableState`), so nothing else needs to be kept with it.
- A commit is on the disk before the next step begins.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline import spans
from pipeline.errors import DamagedWarehouse, JobLocked
from pipeline.places import Place, escape_glob, files_in, filesystem, remove_folder, storage_options
from pipeline.schemas import TableSpec

from .files import File, Staged, finished, sync
from .recovery import LINES, is_torn, recover, sync_added, sync_version
from .state import KEY, SpansByGateway, TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG: Final = "_delta_log"
TARGET_BYTES: Final = 128 << 20  # size of a merged file
MIN_FILES: Final = 8  # fewer small files are not worth merging
CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",  # commits, after which the log is summed up in one file
    "delta.logRetentionDuration": "interval 7 days",
    "delta.enableExpiredLogCleanup": "false",  # `vacuum` does it: a commit with a `TableState` has to be left
}
# What other programs may do with a table; anything else changes its rows.
HARMLESS: Final = frozenset(
    ("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN", "SET TBLPROPERTIES", "UPDATE TABLE METADATA")
)


class Table:
    """One table below *warehouse*; *job* names the job that writes it, for its transactions.

    Everything that reads the table raises `DamagedWarehouse` if its log is unreadable, and without *job* also if its
    newest commit is incomplete; with *job* that is repaired.
    """

    def __init__(self, warehouse: Place, spec: TableSpec, job: str = "") -> None:
        self.spec = spec
        self.place = warehouse / spec.name
        self._uri, self._storage = str(self.place), storage_options(warehouse)
        self._job = job
        self._opened: DeltaTable | None = None
        self._durable = -1  # this version, and all before it, are on the disk

    @property
    def path(self) -> Path:
        """The folder of a table that is on a file system."""
        assert isinstance(self.place, Path)
        return self.place

    # Reading

    def exists(self) -> bool:
        """Whether there is such a table."""
        return self._latest() is not None

    def state(self) -> TableState:
        """Return the state after the last commit; raise `DamagedWarehouse` if another program has changed the rows."""
        table = self._latest()
        if table is None:
            return TableState()
        for limit in (1, 32, None):
            for commit in table.history(limit):
                if KEY in commit:
                    return TableState.load(commit[KEY])
                if commit["operation"] not in HARMLESS:
                    raise DamagedWarehouse(
                        f"{self.place}: another program has changed the rows ({commit['operation']}, version"
                        f" {commit['version']}); remove that version from {LOG}, or restore the folder from a copy"
                    )
        raise DamagedWarehouse(f"{self.place}: no commit of this pipeline is left in {LOG}")

    def batch_of(self, job: str) -> int:
        """Return the last batch of *job* in the table, 0 if there is none."""
        table = self._latest()
        return 0 if table is None else table.transaction_version(f"trellis/{job}") or 0

    def names(self) -> list[str]:
        """Return the names of all files, in the table's folder."""
        return [file["path"] for file in self._files()]

    def holding(self, todo: SpansByGateway, seq: str = "seq") -> list[str]:
        """Return the names of the files that can have rows of the sequences *todo*, by the statistics of *seq*."""
        return [file["path"] for file in self._files() if _can_hold(file, todo, seq)]

    def frame(self, spark: SparkSession, names: Iterable[str] | None = None) -> DataFrame:
        """Read the rows of the files *names*, by default of all."""
        paths = [escape_glob(self.place / name) for name in (self.names() if names is None else names)]
        if not paths:
            return spark.createDataFrame([], self.spec.schema)
        return spark.read.schema(self.spec.schema).parquet(*paths)

    # Writing

    def stage(self, frame: DataFrame) -> Staged:
        """Run *frame* and write its rows to files that no commit names; they are on disk when this returns."""
        path = self.folder()
        frame.select(*self.spec.schema.fieldNames()).write.parquet(str(path))
        return finished(path)

    def stage_rows(self, rows: list[tuple[Any, ...]]) -> Staged:
        """Write a few *rows* like `stage`, without Spark."""
        path = self.folder()
        if isinstance(path, Path):
            path.mkdir(parents=True)
        system, name = filesystem(path / "part-0.parquet")
        schema = to_arrow_schema(self.spec.schema, timezone="UTC")
        columns = zip(*rows, strict=True) if rows else [()] * len(schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), name, compression="zstd", filesystem=system)
        return finished(path)

    def folder(self) -> Place:
        """Return a new path in the table for files that no commit names yet; the table is created if it is missing."""
        self._open()
        return self.place / uuid.uuid4().hex

    def discard(self, staged: Staged) -> None:
        """Delete *staged*."""
        remove_folder(staged.path)

    def append(self, staged: Staged, state: TableState, version: int | None = None) -> TableState:
        """Commit *staged* as the batch *version* of the job, by default the batch of *state*.

        *state* is what `state` returned, changed for the new batch; return it with its rows counted. Raise `JobLocked`
        if the table has the batch.
        """
        changes = state.changes + bool(staged.rows)
        state = replace(state, rows=state.rows + staged.rows, added=staged.rows, changes=changes)
        self._commit(_added(staged.files), state, state.batch if version is None else version)
        return state

    def replace(
        self, staged: Staged, state: TableState, names: Sequence[str] | None = None, *, batch: bool = False
    ) -> TableState:
        """Commit *staged* with *state* instead of the files *names*, by default of all; *batch* as in `append`."""
        files = {file["path"]: file for file in self._files()}
        gone = set(files if names is None else names)
        kept = sum(file["num_records"] for name, file in files.items() if name not in gone)
        added, changes = (staged.rows, state.changes) if batch else (state.added, state.changes + 1)
        state = replace(state, rows=kept + staged.rows, added=added, changes=changes)
        now = _now()
        removed = [RemoveAction(name, True, now, files[name]["size_bytes"], {}) for name in gone]
        self._commit([*_added(staged.files), *removed], state, state.batch if batch else None)
        return state

    def create_with(self, files: Sequence[File], state: TableState, batches: Mapping[str, int]) -> None:
        """Create the table with *files* that are in its folder already; *batches* has the last one of each job."""
        transactions = [Transaction(f"trellis/{job}", batch, _now()) for job, batch in batches.items()]
        create_table_with_add_actions(
            self._uri,
            self._schema(),
            _added(files),
            "error",
            configuration=CONFIGURATION,
            commit_properties=_properties(state, 3 + len(files), transactions),
        )
        self._sync_created()

    def note(self, state: TableState) -> None:
        """Commit *state* alone."""
        self._commit([], state, None)

    # Housekeeping

    def compact(self) -> tuple[int, int]:
        """Merge small files that are neighbours; return how many files were merged into how many."""
        if sum(file["size_bytes"] < TARGET_BYTES // 2 for file in self._files()) < MIN_FILES:
            return 0, 0
        table, state = self._open(), self.state()
        made = table.optimize.compact(
            target_size=TARGET_BYTES,
            writer_properties=WriterProperties(compression="ZSTD"),
            commit_properties=_properties(state),
        )
        if isinstance(self.place, Path):
            sync_added(self.place / LOG, table.version())
        self._sync()
        return made["numFilesRemoved"], made["numFilesAdded"]

    def vacuum(self, keep_hours: int, at_least: int = 1) -> int:
        """Delete files that no version of the last *keep_hours* hours names, if they are *at_least* so many."""
        table = self._latest()
        if table is None:
            return 0
        if len(table.vacuum(keep_hours, enforce_retention_duration=False, full=True)) < at_least:
            return 0
        gone = table.vacuum(
            keep_hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
            commit_properties=_properties(self.state()),
        )
        self._sync()
        table.cleanup_metadata()
        for folder in self.place.iterdir() if isinstance(self.place, Path) else ():
            if folder.is_dir() and folder.name != LOG and not any(folder.rglob("*.parquet")):
                shutil.rmtree(folder)
        return len(gone)

    # The log

    def _latest(self) -> DeltaTable | None:
        """Return the table as it is now, or None if there is none."""
        try:
            if self._opened is not None:
                self._opened.update_incremental()
            elif self._has_log() and DeltaTable.is_deltatable(self._uri, self._storage):
                self._opened = DeltaTable(self._uri, storage_options=self._storage)
                self._durable = self._opened.version()
        except DeltaError as error:
            reason = str(error).partition("\n")[0]  # a trace of the library's follows
            raise DamagedWarehouse(f"{self.place / LOG} cannot be read: {reason}") from None
        return self._opened

    def _has_log(self) -> bool:
        """Whether there may be a log; repair it, or refuse it without a job."""
        if not isinstance(self.place, Path):
            return True
        log = self.place / LOG
        if not log.is_dir():
            return False
        if self._job:
            recover(log)
        elif is_torn(log):
            raise DamagedWarehouse(
                f"{self.place}: the newest commit is incomplete, as a power failure leaves it;"
                f" trellis pipeline {self.spec.job or 'ingest'} repairs the table"
            )
        return True

    def _open(self) -> DeltaTable:
        """Return the table for writing, created or given new columns if necessary.

        It may be older than the newest version: a commit finds out what others have committed since.
        """
        table = self._opened or self._latest()
        schema = self._schema()
        if table is None:
            if any(file.name.endswith(".parquet") for file in files_in(self.place, below=True)):
                raise DamagedWarehouse(f"{self.place} has files but no {LOG}: put it back, or remove the folder")
            if isinstance(self.place, Path):
                self.place.mkdir(parents=True, exist_ok=True)
            options: dict[str, Any] = {"configuration": CONFIGURATION, "storage_options": self._storage}
            first = _properties(TableState(), 3)
            table = self._opened = DeltaTable.create(self._uri, schema, "ignore", commit_properties=first, **options)
            self._sync_created()
        elif new := self._new_columns(table, schema):
            table.alter.add_columns(new, commit_properties=_properties(self.state(), 2))
            self._sync()
        return table

    def _schema(self) -> Schema:
        return Schema.from_arrow(to_arrow_schema(self.spec.schema, timezone="UTC"))

    def _new_columns(self, table: DeltaTable, schema: Schema) -> list[Field]:
        there = {column.name: column for column in table.schema().fields}
        for column in schema.fields:
            if column.name in there and there[column.name].type != column.type:
                raise DamagedWarehouse(f"{self.place}: the column {column.name} is {there[column.name].type}")
        return [column for column in schema.fields if column.name not in there]

    def _commit(self, actions: Sequence[AddAction | RemoveAction], state: TableState, batch: int | None) -> None:
        table, app = self._open(), f"trellis/{self._job}"
        if batch is not None and (table.transaction_version(app) or 0) >= batch:
            raise JobLocked(
                f"another process has written batch {batch} of {self._job} into {self.place}; stop it first"
            )
        transactions = [] if batch is None else [Transaction(app, batch, _now())]
        properties = _properties(state, 1 + len(actions), transactions)
        try:
            table.create_write_transaction([*actions], "append", table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise JobLocked(f"another process writes {self.place}; stop it first ({error})") from None
        self._sync()

    def _sync(self) -> None:
        """Wait until all versions are on the disk."""
        assert self._opened is not None
        self._opened.update_incremental()
        if not isinstance(self.place, Path):
            return
        for version in range(self._durable + 1, self._opened.version() + 1):
            sync_version(self.place / LOG, version)
        self._durable = self._opened.version()

    def _sync_created(self) -> None:
        """Wait until a new table, and the folders above it, are on the disk."""
        if not isinstance(self.place, Path):
            return
        sync_version(self.place / LOG, 0)
        for folder in (self.place, *self.place.parents[: len(Path(self.spec.name).parts)]):
            sync(folder)

    def _files(self) -> list[dict[str, Any]]:
        """Return what the log says of each file, in the order of their first sequences."""
        table = self._latest()
        if table is None:
            return []
        files: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return sorted(files, key=_order)


def _can_hold(file: dict[str, Any], todo: SpansByGateway, seq: str) -> bool:
    """Whether *file* can have rows of the sequences *todo*; it can if another program has written no statistics."""
    if any(file.get(name) is None for name in ("min.gateway_id", "max.gateway_id", f"min.{seq}", f"max.{seq}")):
        return True
    return any(
        file["min.gateway_id"] <= gateway <= file["max.gateway_id"]
        and spans.overlap([[file[f"min.{seq}"], file[f"max.{seq}"]]], ranges)
        for gateway, ranges in todo.items()
    )


def _order(file: dict[str, Any]) -> tuple[Any, ...]:
    first = file.get("min.seq") or file.get("min.log_seq") or 0
    return (file.get("min.gateway_id") or "", first, file["modification_time"], file["path"])


def _added(files: Iterable[File]) -> list[AddAction]:
    return [AddAction(file.name, file.bytes, {}, file.modified_ms, True, json.dumps(file.statistics)) for file in files]


def _properties(state: TableState, lines: int = 1, transactions: Sequence[Transaction] = ()) -> CommitProperties:
    """Return the metadata of a commit that has so many *lines*, apart from those of *transactions*."""
    metadata = {KEY: state.dump(), LINES: lines + len(transactions)}
    return CommitProperties(custom_metadata=metadata, app_transactions=[*transactions] or None)


def _now() -> int:
    return time.time_ns() // 1_000_000
