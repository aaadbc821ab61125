"""Creates the Spark session: one for each process, with little output and memory for a laptop."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from .config import Options
from .errors import NotStarted
from .jvm import class_sharing_options, find_java, jars, java_home
from .locks import FOLDER
from .places import ENDPOINT
from .preflight import SUBMITTED_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION_BYTES = 16 << 20  # input of one task, which bounds its memory
# Of the AWS SDK what `s3a://` needs (19 MB with what they need) in place of all of it (half a gigabyte). The version is
# that of Hadoop's release.
AWS_PACKAGES = tuple(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts"))
AWS_BUNDLE = "software.amazon.awssdk:bundle"
DAEMON = "pipeline.worker_daemon"  # forks Python workers on this machine
SHUFFLE_PARTITIONS = 8  # partitions after a shuffle; adaptive execution merges those that stay small


def start(options: Options) -> SparkSession:
    """Return the session for *options*; the first call starts a JVM.

    Raise `NoJava` if there is no Java for it, `NotStarted` if Spark refuses its settings or its master.

    Under `spark-submit` the JVM runs already, and the settings and the master of spark-submit take precedence.
    """
    share, local = "", options.master.startswith("local")
    if submitted := SUBMITTED_VARIABLE in os.environ:
        _export_python_path(os.environ)
    else:
        share = class_sharing_options(find_java(os.environ), os.environ)
        prepare(os.environ, local=local)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("trellis")
    if not submitted:
        builder = builder.master(options.master)
        if local:  # on other machines, and with code that spark-submit brings along, a daemon may not find it
            builder = builder.config("spark.python.daemon.module", DAEMON)
    submitted_settings = _submitted_settings() if submitted else {}
    for name, value in settings(options, share).items():
        if name not in submitted_settings:
            builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (Py4JError, PySparkRuntimeError) as error:
        raise NotStarted(f"Spark does not start: {_reason(error)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _reason(error: Exception) -> str:
    """Return the first line of what *error* says; in Java's words, with the first cause, if it is Java's."""
    cause = thrown = getattr(error, "java_exception", None)
    while cause is not None and (deeper := cause.getCause()) is not None:
        cause = deeper
    said = [str(error if thrown is None else each).partition("\n")[0] for each in (thrown, cause)]
    return ", because of ".join(dict.fromkeys(said))


def prepare(environment: os._Environ[str], *, local: bool) -> None:
    """Set the variables in *environment* that tell Spark which Java and which Python to run."""
    environment["JAVA_HOME"] = str(java_home(environment))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _export_python_path(environment)
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _submitted_settings() -> dict[str, str]:
    """Return the settings of `spark-submit`: its arguments and Spark's configuration files."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # before this no setting has been read
    return dict(SparkConf().getAll())


def _export_python_path(environment: os._Environ[str]) -> None:
    """Add the folder of this package to PYTHONPATH, so that Spark's Python workers import the same code."""
    root = str(Path(__file__).parents[1])
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, *paths)))


def settings(options: Options, share: str = "") -> dict[str, str]:
    """Return Spark's settings: UTC, zstd, and no marker files beside those of the tables.

    *share* holds options for the driver's Java alone.
    """
    log4j = files("pipeline").joinpath("log4j2.properties")
    store = {} if options.objects is None else object_store(os.environ)
    quiet = f"-Dlog4j2.configurationFile=file:{log4j}" if Path(str(log4j)).is_file() else ""  # no file in a zip
    return {
        "spark.driver.memory": f"{options.heap_megabytes}m",
        "spark.executor.memory": f"{options.heap_megabytes}m",
        "spark.driver.extraJavaOptions": f"{quiet} -XX:+UseParallelGC {share} {options.java_options}",
        "spark.executor.extraJavaOptions": quiet,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(options.warehouse / FOLDER),  # for nothing; else Spark makes one where it runs
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.files.maxPartitionBytes": str(PARTITION_BYTES),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.sql.execution.pythonUDF.arrow.enabled": "true",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        **store,
    }


def object_store(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for `s3a://`: its packages, unless they are among its jars, and where the store is."""
    options = {}
    if not any(jars().glob("hadoop-aws-*.jar")):
        hadoop = next(jars().glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
        options["spark.jars.packages"] = ",".join((f"org.apache.hadoop:hadoop-aws:{hadoop}", *AWS_PACKAGES))
        options["spark.jars.excludes"] = AWS_BUNDLE
    if endpoint := environment.get(ENDPOINT):
        options["spark.hadoop.fs.s3a.endpoint"] = endpoint
        options["spark.hadoop.fs.s3a.path.style.access"] = "true"  # a bucket is no host name there
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        options["spark.hadoop.fs.s3a.endpoint.region"] = region
    return options
