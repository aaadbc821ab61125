"""The Spark session: one for a process, quiet, and small enough for a laptop."""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from .config import Options
from .jvm import class_sharing_options, find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION_BYTES = 16 << 20  # of input that one task reads: bounds its memory
SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"  # is in the environment of what spark-submit starts
SHUFFLE_PARTITIONS = 8  # partitions after a shuffle; adaptive execution merges those that stay small


def start(options: Options) -> SparkSession:
    """The session for *options*; the first call starts a JVM, `NoJava` where there is none.

    Under `spark-submit` the JVM runs already, on the master that it was told, and what it was told counts.
    """
    share = ""
    if submitted := SUBMITTED_VARIABLE in os.environ:
        _export_python_path(os.environ)
    else:
        share = class_sharing_options(find_java(os.environ), os.environ)
        prepare(os.environ, local=options.master.startswith("local"))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("trellis")
    if not submitted:
        builder = builder.master(options.master)
    told = _submitted_settings() if submitted else {}
    for name, value in settings(options, share).items():
        if name not in told:
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def prepare(environment: os._Environ[str], *, local: bool) -> None:
    """Say in *environment* which Java and which Python Spark is to run."""
    environment["JAVA_HOME"] = str(java_home(environment))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _export_python_path(environment)
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _submitted_settings() -> dict[str, str]:
    """What `spark-submit` was told, by its arguments or by Spark's own files."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # otherwise nothing has been read yet
    return dict(SparkConf().getAll())


def _export_python_path(environment: os._Environ[str]) -> None:
    """Let the Python processes that Spark starts find this very code, wherever it is installed."""
    root = str(Path(__file__).parents[1])
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, *paths)))


def settings(options: Options, share: str = "") -> dict[str, str]:
    """What Spark is told. Sessions count in UTC, write zstd, and leave no files beside those of the tables.

    *share* are options for the driver's Java alone.
    """
    log4j = files("pipeline").joinpath("log4j2.properties")
    quiet = f"-Dlog4j2.configurationFile=file:{log4j}" if Path(str(log4j)).is_file() else ""  # no file inside a zip
    return {
        "spark.driver.memory": f"{options.heap_megabytes}m",
        "spark.executor.memory": f"{options.heap_megabytes}m",
        "spark.driver.extraJavaOptions": f"{quiet} -XX:+UseParallelGC {share} {options.java_options}",
        "spark.executor.extraJavaOptions": quiet,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.files.maxPartitionBytes": str(PARTITION_BYTES),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.sql.execution.pythonUDF.arrow.enabled": "true",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    }
