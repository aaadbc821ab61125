"""Turns groves, dumps and exported logs into a folder of segments, which `trellis import` appends to a log."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pyspark import StorageLevel

from gateway.storage.archive import UNPUBLISHED
from gateway.storage.archive import sealed_files as segments_of
from gateway.storage.layout import SEGMENT_BYTES, paths
from gateway.storage.record import Fact, encode
from gateway.storage.segments import parse_header
from pipeline.config import DumpSource, GroveSource, LogSource
from pipeline.errors import PipelineError
from pipeline.run import BatchCounts, Run
from pipeline.sources import imports
from pipeline.sources.fast_decoder import Row

JOB = "import"
REJECTS = "rejects.jsonl"


def run(run: Run) -> int:
    """Write the folder atomically; return 0, because no other job depends on it."""
    began, output = time.monotonic(), run.options.output
    if output is None:
        raise PipelineError("import needs a folder for its segments: --output FOLDER")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise PipelineError(f"{output} is not empty; choose another folder with --output")
    folder = output.with_name(f".{output.name}.{uuid.uuid4().hex}")
    folder.mkdir(parents=True)
    try:
        count, rejects = _write(run, folder)
        (folder / REJECTS).write_text("".join(f"{json.dumps(_as_object(reject))}\n" for reject in rejects))
        with suppress(FileNotFoundError):
            output.rmdir()
        folder.rename(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for reject in rejects[:100]:
        run.say(f"{JOB}: {reject[0]}, {reject[1]}: {reject[2]}")
    counts = BatchCounts(JOB, 1, rows_in=count + len(rejects), rows_out=count, rejected=len(rejects))
    counts.seconds = time.monotonic() - began
    run.say(f"{counts}; now: trellis import {output}")
    return 0


def _write(run: Run, folder: Path) -> tuple[int, list[Row]]:
    """Write the segments; return the number of their records, and the rejects."""
    match run.options.source:
        case GroveSource(path) if path.is_dir():
            return _write_sorted(imports.read_grove(run.spark, path), folder)
        case DumpSource(path) if path.exists():
            return _write_sorted(imports.read_streamr(run.spark, path), folder)
        case LogSource() as source if (path := source.directory).exists():
            return _copy_all(run, segments_of(path) if path.is_dir() else [path], folder)
        case None:
            raise PipelineError("import needs a source: grove:DIR, streamr:PATH or log:PATH")
        case source:
            raise PipelineError(f"nothing to import was found in {source}")


def _write_sorted(results: Any, folder: Path) -> tuple[int, list[Row]]:
    """Write entries that no gateway has published yet, in the order in which they are to be published."""
    judged = results.persist(StorageLevel.MEMORY_AND_DISK)
    rejects = judged.filter(lambda one: one[0] is None).map(lambda one: one[1]).collect()
    good = judged.filter(lambda one: one[0] is not None).map(lambda one: one[0])
    ordered = good.sortBy(lambda one: one.sort_key).toLocalIterator()
    entries = (imports.make_entry(one, seq) for seq, one in enumerate(ordered, 2))
    start = Fact("start", {"gateway": UNPUBLISHED, "version": ""}, 1)
    count = _write_segments(folder, (encode(entry) for entry in chain([start], entries))) - 1
    judged.unpersist()
    return count, rejects


def _write_segments(folder: Path, lines: Iterator[bytes]) -> int:
    """Write *lines*, whose sequences have no gaps from 1 on, as segments; return how many there were."""
    count = 0
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        count += 1
        waiting.append(line)
        size += len(line)
        if size >= SEGMENT_BYTES:
            _write_segment(folder, count - len(waiting) + 1, waiting)
            waiting, size = [], 0
    if waiting:
        _write_segment(folder, count - len(waiting) + 1, waiting)
    return count


def _write_segment(folder: Path, first: int, lines: list[bytes]) -> None:
    with paths(folder, first)[1].open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def _copy_all(run: Run, files: list[Path], folder: Path) -> tuple[int, list[Row]]:
    """Copy the valid lines of an exported log on the workers; return how many there were, and the rejects."""
    results = run.spark.sparkContext.parallelize(files, max(1, len(files))).map(partial(_copy, folder)).collect()
    return sum(count for count, _ in results), [reject for _, rejects in results for reject in rejects]


def _copy(folder: Path, file: Path) -> tuple[int, list[Row]]:
    good, bad = imports.read_lines(file)
    if good:
        first, _ = parse_header(good[0])
        _write_segment(folder, first, good)
    return len(good), bad


def _as_object(reject: Row) -> dict[str, Any]:
    return dict(zip(("file", "line", "reason", "raw"), reject, strict=True))
