"""`python -m benchmarks.pipeline`: the pipeline beside DuckDB and a plain pool of Python processes, on the same data.

Wall-clock seconds are printed with CPU-seconds (of this process, the JVM and all workers), since other work on the
machine changes the former; and with the most memory that they had together.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import duckdb
import psutil
from coincurve import PrivateKey
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from adapters.streamr.crypto.signing import address_of, sign_message
from adapters.streamr.wire.message import MessageID, MessageRef, StreamMessage
from gateway.core.jsontext import dumps
from gateway.core.message import Message, Peer
from gateway.storage.record import Fact, encode
from pipeline import codecs
from pipeline.config import LogSource, Options
from pipeline.jobs import ingest
from pipeline.run import Run
from pipeline.schemas import STREAMR
from pipeline.session import start
from pipeline.transforms import integrity
from pipeline.transforms.gaps import gaps

SEGMENT = 16 << 20  # bytes
ROUNDS = 4  # in turns, since other work on the machine comes and goes
BEGIN = 1_763_700_000_000
KEY = PrivateKey(bytes(31) + b"\7")


class Figure(NamedTuple):
    """One measurement."""

    what: str
    rows: int
    seconds: float
    cpu_seconds: float
    megabytes: float


class Watch:
    """Measures what this process and everything below it uses, also what has ended since."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._used: dict[psutil.Process, float] = {}
        self.figures: list[Figure] = []

    @contextmanager
    def measured(self, what: str, rows: int) -> Iterator[None]:
        """Add a figure for what is done meanwhile."""
        peak, over = [0.0], threading.Event()
        sampler = threading.Thread(target=self._sample, args=(peak, over), daemon=True)
        self._look()
        began, cpu = time.perf_counter(), sum(self._used.values())
        sampler.start()
        yield
        seconds = time.perf_counter() - began
        over.set()
        sampler.join()
        self._look()
        used = sum(self._used.values()) - cpu
        self.figures.append(Figure(what, rows, seconds, used, peak[0]))
        sys.stderr.write(f"{what}: {rows:,} rows, {seconds:.2f} s, {used:.2f} CPU-s, {peak[0]:.0f} MB\n")

    def _look(self) -> int:
        """Note what each process has used, for nobody tells it of Spark's workers once they ended; bytes of all."""
        size = 0
        for process in [self._me, *self._me.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._used[process] = times.user + times.system
                size += process.memory_info().rss
        return size

    def _sample(self, peak: list[float], over: threading.Event) -> None:
        while not over.wait(0.5):  # a look takes 5 ms of a core
            peak[0] = max(peak[0], self._look() / 1e6)


def write_log(folder: Path, count: int) -> None:
    """A log of *count* records in segments of `SEGMENT` bytes: messages of three protocols."""
    folder.mkdir(parents=True)
    lines, size, first = [encode(Fact("start", {"gateway": "be7c", "version": "1"}, 1, BEGIN))], 0, 1
    for seq in range(2, count + 1):
        lines.append(encode(_message(seq)))
        size += len(lines[-1])
        if size >= SEGMENT:
            (folder / f"{first:020d}.jsonl").write_bytes(b"".join(lines))
            lines, size, first = [], 0, seq + 1
    if lines:
        (folder / f"{first:020d}.jsonl").write_bytes(b"".join(lines))


def _message(seq: int) -> Message:
    protocol = ("topic_relay", "sprout", "streamr")[seq % 3]
    content = dumps({"n": seq, "temperature": seq % 40 / 2, "text": "a usual message of a usual length"})
    time = BEGIN + seq * 5
    return Message(
        f"channel {seq % 50}",
        Peer(seq % 200, protocol, None),
        protocol,
        content,
        id=f"{seq:036d}",
        seq=seq,
        time=time,
        timestamp=time,
        refs={"streamr": [time, 0, time - 5, 0], "sprout": {}},
        wire=b'{"type":6,"topic":"channel","src":1,%b' % content[1:],
    )


def measure_ingest(watch: Watch, spark: SparkSession, folder: Path, counts: Sequence[int]) -> None:
    """`ingest`, beside DuckDB that reads the same files and writes the same kind of files."""
    for count in counts:
        log = folder / f"log-{count}"
        write_log(log, count)
        for turn in ("cold", "warm"):
            warehouse = folder / f"warehouse-{count}-{turn}"
            with watch.measured(f"ingest, {turn}", count):
                ingest.run(Run(spark, Options(warehouse, LogSource(log))))
            shutil.rmtree(warehouse)
        with watch.measured("ingest by DuckDB (no checksums)", count):
            source = f"read_json('{log}/*.jsonl', format = 'newline_delimited', maximum_object_size = 4194304)"
            duckdb.execute(f"COPY (SELECT * FROM {source}) TO '{folder}/duck.parquet' (COMPRESSION zstd)")
        shutil.rmtree(log)


def measure_integrity(watch: Watch, spark: SparkSession, folder: Path, count: int) -> None:
    """Verifying signatures, beside a pool of two processes that calls the same function."""
    address = address_of(KEY.public_key)
    wires = []
    for n in range(count):
        said = StreamMessage(MessageID("s", 0, n + 1, 0, address, "c"), f'{{"n":{n}}}', MessageRef(n, 0) if n else None)
        wires.append(sign_message(said, KEY).encode(32).decode())
    rows = [("g", n, "message", "streamr", "{}", wire) for n, wire in enumerate(wires)]
    path = str(folder / "wires.parquet")
    shape = "gateway_id string, seq bigint, kind string, protocol string, native string, wire string"
    spark.createDataFrame(rows, shape).repartition(8).write.parquet(path)
    chunks = [wires[begin : begin + 10_000] for begin in range(0, count, 10_000)]
    with get_context("spawn").Pool(2) as pool:
        pool.map(codecs.check_streams, [wires[:100]] * 8)
        for turn in ("cold", "warm", "warm", "warm"):
            with watch.measured(f"integrity, {turn}", count):
                verdicts = integrity.streamr(spark.read.parquet(path), 0).groupBy("verdict").count().collect()
            assert [tuple(row) for row in verdicts] == [("ok", count)]
            with watch.measured("integrity by two processes", count):
                checks = pool.imap_unordered(codecs.check_streams, chunks)
                assert all(each.verdict == "ok" for chunk in checks for each in chunk)


DUCK_GAPS = """
SELECT count(*) FROM (
    SELECT *, lag(ts) OVER w AS have_ts, lag(seq) OVER w AS have_seq FROM '{}'
    WINDOW w AS (PARTITION BY stream, partition, publisher, chain ORDER BY ts, seq, log_seq)
) WHERE prev_ts IS NOT NULL AND (have_ts IS NULL OR (have_ts, have_seq) < (prev_ts, prev_seq))
"""


def measure_gaps(watch: Watch, spark: SparkSession, folder: Path, count: int) -> None:
    """Gaps in 500 chains, of which each hundredth message is missing, beside DuckDB."""
    at = F.floor(F.col("id") / 500)
    columns = {name: F.lit(None).cast(STREAMR.schema[name].dataType) for name in STREAMR.schema.fieldNames()}
    columns |= {
        "gateway_id": F.lit("g"),
        "log_seq": F.col("id"),
        "stream": F.concat(F.lit("s"), F.col("id") % 500),
        "partition": F.lit(0),
        "publisher": F.lit("0xabc"),
        "chain": F.lit("c"),
        "ts": at,
        "seq": F.lit(0).cast("bigint"),
        "prev_ts": F.when(at > 0, at - 1),
        "prev_seq": F.when(at > 0, F.lit(0).cast("bigint")),
    }
    path = str(folder / "chains.parquet")
    every = spark.range(count * 100 // 99).where(F.xxhash64("id") % 100 != 0)
    every.select(*(column.alias(name) for name, column in columns.items())).write.parquet(path)
    for turn in ("cold", *["warm"] * ROUNDS):
        with watch.measured(f"gaps, {turn}", count):
            found = gaps(spark.read.schema(STREAMR.schema).parquet(path)).count()
        with watch.measured("gaps by DuckDB", count):
            ((others,),) = duckdb.execute(DUCK_GAPS.format(f"{path}/*.parquet")).fetchall()
        assert found == others, (found, others)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, nargs="+", default=[50_000, 500_000], help="sizes of the logs")
    parser.add_argument("--signatures", type=int, default=240_000)
    parser.add_argument("--chained", type=int, default=5_000_000, help="messages in chains")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(argv)
    watch = Watch()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with watch.measured("session and first job", 1):
            spark = start(Options(folder, master=options.master))
            spark.range(1).count()
        duckdb.execute(f"SET threads = {min(2, os.cpu_count() or 1)}")
        parts: list[Callable[[], None]] = [
            lambda: measure_ingest(watch, spark, folder, options.records),
            lambda: measure_integrity(watch, spark, folder, options.signatures),
            lambda: measure_gaps(watch, spark, folder, options.chained),
        ]
        for part in parts:
            part()
        spark.stop()
    for figure in watch.figures:
        rate, cpu = figure.rows / figure.seconds, figure.rows / max(figure.cpu_seconds, 0.01)
        sys.stdout.write(
            f"| {figure.what} | {figure.rows:,} | {figure.seconds:.2f} | {rate:,.0f} | {cpu:,.0f}"
            f" | {figure.megabytes:,.0f} |\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
